import errno
import os
import signal
import socket
import subprocess
import sys

import pytest
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine import locks

HOLD = """
import pathlib, sys, time
from fl_labelskew_plugins.machine import locks
with locks.alone(pathlib.Path(sys.argv[1]), "run"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(locks, "PATIENCE_S", 0.0)


def test_a_second_process_is_told_of_the_first_whose_end_frees_the_folder(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(LabelSkewError) as refused, locks.alone(tmp_path, "run"):
        pass
    assert str(refused.value) == (
        f"{tmp_path}: process {first.pid} is writing this run already; wait until it has ended, or use another folder"
    )
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    with locks.alone(tmp_path, "run"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "another process"),
        (b"\xff{", "another process"),
        (b"[]", "another process"),
        (b'{"pid": 7, "machine": "north"}', "process 7 on north"),
        (b'{"pid": 7, "machine": "n\\u001b[31m"}', "process 7 on n?[31m"),
        (b'{"pid": "x\\n", "machine": "north"}', "another process"),
    ],
)
def test_what_stands_in_the_file_is_nobodys_to_forge(tmp_path, content, shown):
    with locks.alone(tmp_path, "run"):
        (tmp_path / locks.NAME).write_bytes(content)
        with (
            pytest.raises(LabelSkewError, match="is writing this run already") as refused,
            locks.alone(tmp_path, "run"),
        ):
            pass
    assert str(refused.value).startswith(f"{tmp_path}: {shown} is writing")


def test_a_lock_whose_file_was_removed_meanwhile_is_not_taken_for_one(tmp_path, monkeypatch):
    real, removed = locks.fcntl.flock, []

    def flock(handle, operation):
        real(handle, operation)
        if not removed:  # the holder before has ended just now, and has taken the file away
            removed.append((tmp_path / locks.NAME).unlink())

    monkeypatch.setattr("fcntl.flock", flock)
    with locks.alone(tmp_path, "run"):
        assert (tmp_path / locks.NAME).read_text() == (f'{{"pid": {os.getpid()}, "machine": "{socket.gethostname()}"}}')


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(tmp_path, monkeypatch, capsys):
    def flock(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with locks.alone(tmp_path, "run"):
        pass
    assert capsys.readouterr().err == (
        f"warning: {tmp_path}: cannot be locked (No locks available); a second process that writes there would not be "
        "noticed\n"
    )


def test_a_folder_where_nothing_can_be_written_is_one_line(tmp_path):
    with (
        pytest.raises(LabelSkewError, match="missing: cannot be written: No such file or directory; use another"),
        locks.alone(tmp_path / "missing", "run"),
    ):
        pass
