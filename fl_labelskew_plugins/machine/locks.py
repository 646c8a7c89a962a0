"""One process at a time writes in a folder, of this machine or of another one that shares it; others are told which.

A lock is a file that says who holds it, made with ``O_EXCL``, which network file systems have as well. It is stale

- at once, when its process has ended, if it is of this machine and container: a process holds ``flock`` on its file;
- at once, when this process is the same task of Slurm, which was put back into the queue since;
- elsewhere, or without ``flock``, when it has not been touched for :data:`LEASE_S`: the machine is gone, or cut off.
  Its holder touches it every few seconds. Both times are of the file server's clock.

A stale lock is replaced by renaming the file :data:`NEXT`, which only one process can make. A holder that comes back
from a long sleep finds that out from :meth:`Lock.check` before it writes.

No library does just this (seen in November 2026): ``filelock``'s leases are never taken over on a network file system,
which cannot swap two names; ``flufl.lock`` compares the clocks of machines, and has to be told that its holder lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.machine.files import open_regular, read_bytes
from fl_labelskew_plugins.machine.text import clean

NAME, NEXT = ".lock", ".lock.next"
LEASE_S = 120.0
"""Seconds without a touch after which another machine's lock is stale; its holder touches it six times as often."""
PATIENCE_S = 2.0
"""How long a lock is waited for: who was just told to end may still be saving."""


class HeldError(LabelSkewError):
    """Another process holds the lock; ``holder`` names it."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class Lock:
    """A lock that this process holds."""

    def __init__(self, folder: Path, content: bytes) -> None:
        self._folder, self._content = folder, content

    def check(self) -> None:
        """Raise RunError if another process has taken it over, because this one gave no sign of life."""
        content = _content(self._folder / NAME)
        if content is None:
            raise RunError(f"{self._folder}: its {NAME} is gone; was it removed? nothing was written since")
        if content != self._content:
            raise RunError(
                f"{self._folder}: {_holder(content)} has taken this run over, since this process had stood still; "
                "nothing was written since"
            )


def belongs(name: str) -> bool:
    """Whether a file of this name is a lock, one that is about to be, or what NFS keeps of one that was removed."""
    return name == NAME or name.startswith((f"{NAME}.", ".nfs"))


@contextlib.contextmanager
def alone(folder: Path, *, patience: float = PATIENCE_S) -> Iterator[Lock]:
    """Hold the lock of a run's folder.

    Args:
        folder: an existing one.
        patience: seconds for which another process that holds it is waited for.

    Raises:
        HeldError: another process holds it, which the line names.
        LabelSkewError: nothing can be written there.
    """
    me = {"pid": os.getpid(), "machine": socket.gethostname(), "here": _here(), "token": secrets.token_hex(8)}
    me |= _slurm()
    content = json.dumps(me).encode()
    try:
        handle = _taken(folder, content, patience)
    except OSError as error:
        raise LabelSkewError(f"{folder}: cannot be written: {error.strerror}; use another folder") from None
    done = threading.Event()

    def touch() -> None:
        while not done.wait(LEASE_S / 6):
            with contextlib.suppress(OSError):  # the next time, or it is lost
                os.utime(handle)

    beat = threading.Thread(target=touch, daemon=True, name=f"lock of {folder}")
    beat.start()
    owner = os.getpid()
    try:
        yield Lock(folder, content)
    finally:
        done.set()
        beat.join()
        with contextlib.suppress(OSError):
            if os.getpid() == owner and _content(folder / NAME) == content:  # not a process that it has forked
                (folder / NAME).unlink()
        os.close(handle)


def held_by(folder: Path) -> str:
    """The process that holds the folder's lock, as words; empty if none does."""
    with contextlib.suppress(OSError):
        content = _content(folder / NAME)
        if content is not None and not _stale(folder / NAME, content):
            return _holder(content)
    return ""


def _taken(folder: Path, content: bytes, patience: float) -> int:
    """Descriptor of the lock's file, now this process's."""
    file, until = folder / NAME, time.monotonic() + patience
    while True:
        before = _content(file)
        if before is None or _stale(file, before):
            handle = _made(file, content) if before is None else _replaced(file, content)
            if handle is not None:
                return handle
        elif time.monotonic() >= until:
            holder, far = _holder(before), _said(before).get("here") != _here()
            dead = f" (after {LEASE_S:.0f} s without a sign of life it is taken for dead)" if far else ""
            use = f"wait until it has ended{dead}, or use another folder"
            raise HeldError(f"{folder}: {holder} is writing this run already; {use}", holder)
        else:
            time.sleep(0.1)


def _made(file: Path, content: bytes) -> int | None:
    """Descriptor of a new file with this content, with ``flock`` on it; None if another process was faster."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    try:
        with contextlib.suppress(OSError):  # a file system without it
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.write(handle, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.unlink(missing_ok=True)
        os.close(handle)
        raise
    return handle


def _replaced(file: Path, content: bytes) -> int | None:
    """Like :func:`_made`, in place of a stale lock."""
    following = file.with_name(NEXT)
    if (handle := _made(following, content)) is None:
        left = _content(following)
        if left is not None and _stale(following, left):  # of a process that ended just here
            following.unlink(missing_ok=True)
        return None
    before = _content(file)
    if before is not None and _stale(file, before):
        following.replace(file)
        if _content(file) == content:
            return handle
    else:  # another process has replaced it
        following.unlink(missing_ok=True)
    os.close(handle)
    return None


def _content(file: Path) -> bytes | None:
    """What a lock's file says; None if there is none."""
    try:
        return read_bytes(file, 1000)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # NFS has the latter for what was just removed elsewhere
            raise
    return None


def _stale(file: Path, content: bytes) -> bool:
    """Whether the process that wrote a lock's file has ended, as far as one can tell from here."""
    with contextlib.suppress(FileNotFoundError), open(file, "rb", opener=open_regular) as opened:
        if _said(content).get("here") == _here():
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
            except OSError:  # a file system without it
                pass
        before, now = _said(content), _slurm()
        restarts = before.get("restarts")
        if now and before.get("job") == now["job"] and isinstance(restarts, int) and restarts < now["restarts"]:
            return True
        touched = os.fstat(opened.fileno()).st_mtime  # for which a network file system asks its server
        return abs(_server_time(file.parent) - touched) > LEASE_S  # also if a clock was put back
    return False


def _server_time(folder: Path) -> float:
    """The time now by the clock that files' times in a folder are of; by our own if nothing can be written."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=f"{NAME}.") as probe:
        return os.fstat(probe.fileno()).st_mtime
    return time.time()


def _here() -> str:
    """The machine since its start, and the container, whose processes ``flock`` is asked of."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()


def _slurm() -> dict[str, Any]:
    """The job of Slurm that this process belongs to, and how often it was put back into the queue; empty if none."""
    job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    if not job or not restarts.isdecimal():
        return {}
    return {"job": f"{os.environ.get('SLURM_CLUSTER_NAME')} {job}", "restarts": int(restarts)}


def _said(content: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(content)
        if isinstance(said, dict):
            return said
    return {}


def _holder(content: bytes) -> str:
    """The process in a lock's file, as words."""
    said = _said(content)
    if not isinstance(said.get("pid"), int):
        return "another process"
    machine = str(said.get("machine"))
    return f"process {said['pid']}" + ("" if machine == socket.gethostname() else f" on {clean(machine, 100)}")
