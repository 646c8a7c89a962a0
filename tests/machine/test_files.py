"""Files that are there as a whole or not at all."""

import contextlib
import errno
import os
import resource

import pytest
import torch

from fl_labelskew_plugins.machine.files import copied, replacing, write_text
from fl_labelskew_plugins.plots import figure, save
from fl_labelskew_plugins.tensors import save_atomic


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
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


def test_copied_over_a_link_of_the_same_file_leaves_no_part(tmp_path):
    for _ in range(2):
        (tmp_path / "a").write_text("x")
        copied(tmp_path / "a", tmp_path / "b")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_save_atomic_keeps_private_tensors_private_and_else_follows_the_umask(private, mode, tmp_path):
    before = os.umask(0o027)
    try:
        save_atomic({"x": torch.zeros(2)}, tmp_path / "a", private=private)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: write_text(folder / "a.json", 10_000 * "x"),
        lambda folder: save(figure(4, 4)[0], folder / "a.png"),
        lambda folder: save_atomic({"x": torch.zeros(10_000)}, folder / "a.safetensors"),
    ],
    ids=["text", "picture", "tensors"],
)
def test_a_file_that_finds_no_room_leaves_nothing(tmp_path, write):
    write(tmp_path)
    (made,) = tmp_path.iterdir()
    before = made.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match=f"^.Errno {errno.EFBIG}. {os.strerror(errno.EFBIG)}$"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [made]
    assert made.read_bytes() == before
