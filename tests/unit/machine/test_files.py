import contextlib
import errno
import os
import resource
import stat

import pytest
import torch
from error_messages import message

from fl_labelskew_plugins.machine.files import copied, open_regular, read_bytes, read_lines, replacing, write_text
from fl_labelskew_plugins.plots import figure, save
from fl_labelskew_plugins.runtimes.silo import keys
from fl_labelskew_plugins.tensors import save_atomic


def test_the_old_file_stays_until_the_new_file_is_complete(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with contextlib.suppress(KeyboardInterrupt), replacing(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_copying_onto_a_link_of_the_same_file_leaves_no_temporary_file(tmp_path):
    for _ in range(2):
        (tmp_path / "a").write_text("x")
        copied(tmp_path / "a", tmp_path / "b")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


PLANT = {
    "link": lambda part, target: part.symlink_to(target),
    "link to nothing": lambda part, target: part.symlink_to(target.with_name("new")),
    "hard link": lambda part, target: part.hardlink_to(target),
    "FIFO": lambda part, target: os.mkfifo(part),
}
WRITE = {
    "text": lambda file: write_text(file, 10_000 * "x"),
    "tensors": lambda file: save_atomic({"x": torch.zeros(10_000)}, file),
    "public tensors": lambda file: save_atomic({"x": torch.zeros(10_000)}, file, private=False),
    "copy": lambda file: copied(file.with_name("source"), file),
    "key": lambda file: keys.write(file, b"key", 0o600),
    "picture": lambda file: save(figure(4, 4)[0], file),
}


@pytest.mark.parametrize("plant", PLANT.values(), ids=PLANT)
@pytest.mark.parametrize("kind", WRITE)
def test_a_planted_temporary_file_is_not_written_to(kind, plant, tmp_path):
    for name in ("outside", "source"):
        (tmp_path / name).write_text("secret")
    plant(tmp_path / "a.png.part", tmp_path / "outside")
    before = os.umask(0o027)
    try:
        WRITE[kind](tmp_path / "a.png")
    finally:
        os.umask(before)
    assert (tmp_path / "outside").read_text() == "secret"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "outside", "source"]
    made = (tmp_path / "a.png").lstat()
    assert stat.S_ISREG(made.st_mode)
    modes = {"text": 0o640, "picture": 0o640, "tensors": 0o600, "public tensors": 0o640, "key": 0o600}
    assert made.st_mode & 0o777 == modes.get(kind, (tmp_path / "source").stat().st_mode & 0o777)


@pytest.mark.parametrize("name", ["link", "FIFO"])
def test_open_regular_appends_to_no_link_or_fifo(name, tmp_path):
    (tmp_path / "outside").write_text("secret")
    PLANT[name](tmp_path / "a", tmp_path / "outside")
    with pytest.raises(OSError, match="it is a link, FIFO or socket, not a regular file"):
        open_regular(tmp_path / "a", os.O_WRONLY | os.O_APPEND)
    assert (tmp_path / "outside").read_text() == "secret"


def test_open_regular_reads_links_but_no_fifo_or_device(tmp_path):
    (tmp_path / "outside").write_text("text")
    PLANT["link"](tmp_path / "a", tmp_path / "outside")
    assert read_bytes(tmp_path / "a") == b"text"
    PLANT["FIFO"](tmp_path / "fifo", None)
    for file in (tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(OSError, match="it is a FIFO or device, not a regular file"):
            read_bytes(file)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    assert message(lambda: read_lines(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"


@pytest.mark.parametrize("kind", ["text", "picture", "tensors"])
def test_a_full_disk_leaves_no_file(tmp_path, kind):
    made = tmp_path / "a.png"
    WRITE[kind](made)
    before = made.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match=f"^.Errno {errno.EFBIG}. {os.strerror(errno.EFBIG)}$"):
            WRITE[kind](made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [made]
    assert made.read_bytes() == before
