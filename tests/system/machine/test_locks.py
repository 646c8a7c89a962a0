import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.machine import locks

HOLD = """
import pathlib, sys, time
from fl_labelskew_plugins.machine import locks
locks.LEASE_S = float(sys.argv[2])
with locks.hold(pathlib.Path(sys.argv[1])) as check:
    print("held", flush=True)
    sys.stdin.readline()
    try:
        check()
    except Exception as error:
        print(error, flush=True)
"""
ELSEWHERE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A container; other containers do not see its processes, so for locks it is another machine."""
LONG_AGO = 1_000_000_000


def hold(folder, lease=locks.LEASE_S, *, before=()):
    command = [*before, sys.executable, "-c", HOLD, str(folder), str(lease)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def refused(folder):
    with pytest.raises(locks.HeldError) as error, locks.hold(folder, patience=0):
        pass
    return error.value


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    first = hold(tmp_path)
    os.utime(tmp_path / locks.NAME, (LONG_AGO, LONG_AGO))  # stopped, perhaps; but it is there
    assert str(refused(tmp_path)) == (
        f"{tmp_path}: process {first.pid} is writing this run already; wait until it has ended, or use another folder"
    )
    first.kill()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and has its number still
    assert locks.held_by(tmp_path) == ""
    with locks.hold(tmp_path) as check:
        check()
        assert locks.held_by(tmp_path) == f"process {os.getpid()}"
    first.wait()
    assert not list(tmp_path.iterdir())


def test_another_machine_loses_its_lock_when_it_stops(tmp_path, monkeypatch):
    if subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    lease = 1.2
    monkeypatch.setattr(locks, "LEASE_S", lease)
    far = hold(tmp_path, lease, before=ELSEWHERE)
    (inner,) = map(int, subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(far.pid)]).split())
    until = time.monotonic() + 2 * lease
    while time.monotonic() < until:
        assert refused(tmp_path).holder == "process 1"
        time.sleep(0.05)
    os.kill(inner, signal.SIGSTOP)
    stopped = time.monotonic()
    while locks.held_by(tmp_path):
        assert time.monotonic() < stopped + 20
    assert time.monotonic() - stopped > lease / 2
    with locks.hold(tmp_path) as check:
        os.kill(inner, signal.SIGCONT)
        said, _ = far.communicate("\n", timeout=20)  # it has awoken, and looks before it writes
        check()
        words = "process [0-9]+ has taken over this run, because this process was suspended; this process"
        assert re.search(f"{tmp_path}: {words}", said)
    assert not list(tmp_path.iterdir())


def written(folder, **facts):
    (folder / locks.NAME).write_text(json.dumps(facts))
    return folder / locks.NAME


def test_a_lock_from_before_a_reboot_is_stale(tmp_path):
    file = written(tmp_path, pid=os.getpid(), machine="north", here="another")
    assert str(refused(tmp_path)) == (
        f"{tmp_path}: process {os.getpid()} on north is writing this run already; wait until it has ended (its lock "
        "expires 120 s after its last sign of life), or use another folder"
    )
    now = os.stat(file).st_mtime
    os.utime(file, (now, now - locks.LEASE_S + 5))
    assert locks.held_by(tmp_path)
    for away in (-1, 1):  # a clock may have been put back
        os.utime(file, (now, now + away * (locks.LEASE_S + 1)))
        assert locks.held_by(tmp_path) == ""
    with locks.hold(tmp_path):
        assert [file.name for file in tmp_path.iterdir()] == [locks.NAME]
        refused(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_process_that_ended_during_a_takeover_does_not_block(tmp_path):
    for name in (locks.NAME, locks.NEXT):
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    assert locks.belongs(locks.NEXT)
    with locks.hold(tmp_path) as check:
        check()
    assert not list(tmp_path.iterdir())


def test_only_one_of_many_processes_takes_over_a_stale_lock(tmp_path):
    for turn in range(10):
        os.utime(written(tmp_path, turn=turn), (LONG_AGO, LONG_AGO))
        start, held = threading.Barrier(8), []

        def take(start=start, held=held):
            start.wait()
            stack = ExitStack()
            try:
                held.append((stack.enter_context(locks.hold(tmp_path, patience=0)), stack))
            except locks.HeldError:
                held.append(None)

        with ThreadPoolExecutor(8) as threads:
            for _ in range(8):
                threads.submit(take)
        ((check, stack),) = filter(None, held)
        check()
        if turn % 2:  # the holder is stopped, on another machine
            (tmp_path / locks.NAME).write_text("{}")
            os.utime(tmp_path / locks.NAME, (LONG_AGO, LONG_AGO))
            with locks.hold(tmp_path), pytest.raises(RunError, match="has taken over this run"):
                check()
        stack.close()
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
def test_a_forged_lock_file_has_no_effect(tmp_path, content, shown):
    (tmp_path / locks.NAME).write_bytes(content)
    assert str(refused(tmp_path)).startswith(f"{tmp_path}: {shown} is writing")


def test_a_full_disk_or_a_missing_folder_is_one_line_and_leaves_no_lock(tmp_path, monkeypatch):
    says = "missing: cannot be written: No such file or directory; use another"
    with pytest.raises(LabelSkewError, match=says), locks.hold(tmp_path / "missing"):
        pass
    whole = os.write
    for written in (lambda *_: 3, lambda *_: whole(-1, b"")):
        monkeypatch.setattr(os, "write", written)
        with pytest.raises(LabelSkewError, match=r"cannot be written: ") as error, locks.hold(tmp_path):
            pass
        assert type(error.value) is LabelSkewError
        assert not list(tmp_path.iterdir())


def test_a_forked_process_keeps_the_lock(tmp_path):
    child = 1
    try:
        with locks.hold(tmp_path) as check:
            if child := os.fork():
                os.waitpid(child, 0)
                check()
    finally:
        if not child:
            os._exit(0)
