"""Locks of folders: one process at a time writes, on this machine or on others that share the folder.

A lock is a file that describes its holder, created with ``O_EXCL``, which network file systems support. It is stale

- if its process, on this machine and in this container, has ended: it held ``flock`` on the file;
- if this process is the same Slurm job, requeued since then;
- if it was not touched for :data:`LEASE_S` by the file server's clock.

A stale lock is replaced by renaming the file :data:`NEXT`, which only one process can create. ``filelock`` never takes
over a lease on a network file system, and ``flufl.lock`` compares machines' clocks.
"""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.machine.files import open_regular, read_bytes, writing
from fl_labelskew_plugins.machine.text import clean

NAME, NEXT = ".lock", ".lock.next"
LEASE_S = 120.0
PATIENCE_S = 2.0  # a lock's holder may still save before it ends


class HeldError(LabelSkewError):
    """Another process holds the lock; ``holder`` describes it."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


def belongs(name: str) -> bool:
    """Whether a file is a lock, a future lock, or NFS's remainder of one."""
    return name == NAME or name.startswith((f"{NAME}.", ".nfs"))


@contextlib.contextmanager
def hold(folder: Path, *, patience: float = PATIENCE_S) -> Iterator[Callable[[], None]]:
    """Hold a folder's lock; raise HeldError after ``patience`` seconds, LabelSkewError if it is not writable.

    Yields a function that raises RunError if another process took over the lock, such as after a suspension.
    """
    pid = os.getpid()
    owner = {"pid": pid, "machine": socket.gethostname(), "here": _here(), "token": secrets.token_hex(8)}
    content = json.dumps(owner | _slurm()).encode()
    with writing(folder, "; use another folder"):
        handle = _acquire(folder, content, patience)
    done = threading.Event()

    def check() -> None:
        found = _content(folder / NAME)
        if found == content:
            return
        problem = f"its {NAME} is missing, perhaps because it was removed"
        if found is not None:
            problem = f"{_holder(found)} has taken over this run, because this process was suspended"
        raise RunError(f"{folder}: {problem}; this process writes nothing more to the folder")

    def touch() -> None:
        while not done.wait(LEASE_S / 6):
            with contextlib.suppress(OSError):  # retried by the next touch
                os.utime(handle)

    beat = threading.Thread(target=touch, daemon=True, name=f"lock of {folder}")
    beat.start()
    try:
        yield check
    finally:
        done.set()
        beat.join()
        with contextlib.suppress(OSError):
            if os.getpid() == pid and _content(folder / NAME) == content:  # not in a forked process
                (folder / NAME).unlink()
        os.close(handle)


def held_by(folder: Path) -> str:
    """The process that holds the folder's lock; empty if none does."""
    with contextlib.suppress(OSError):
        content = _content(folder / NAME)
        if content is not None and not _stale(folder / NAME, content):
            return _holder(content)
    return ""


def _acquire(folder: Path, content: bytes, patience: float) -> int:
    file, until = folder / NAME, time.monotonic() + patience
    while True:
        before = _content(file)
        if before is None or _stale(file, before):
            handle = _create(file, content) if before is None else _replace(file, content)
            if handle is not None:
                return handle
        elif time.monotonic() >= until:
            holder, remote = _holder(before), _parsed(before).get("here") != _here()
            expiry = f" (its lock expires {LEASE_S:.0f} s after its last sign of life)" if remote else ""
            use = f"wait until it has ended{expiry}, or use another folder"
            raise HeldError(f"{folder}: {holder} is writing this run already; {use}", holder)
        else:
            time.sleep(0.1)


def _create(file: Path, content: bytes) -> int | None:
    """Create a locked file; None if it exists."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    try:
        with contextlib.suppress(OSError):  # a file system without flock
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.write(handle, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.unlink(missing_ok=True)
        os.close(handle)
        raise
    return handle


def _replace(file: Path, content: bytes) -> int | None:
    """Like :func:`_create`, but replaces a stale lock."""
    following = file.with_name(NEXT)
    if (handle := _create(following, content)) is None:
        leftover = _content(following)
        if leftover is not None and _stale(following, leftover):
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
    try:
        return read_bytes(file, 1000)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # ESTALE: NFS, if another machine has just removed it
            raise
    return None


def _stale(file: Path, content: bytes) -> bool:
    before, now = _parsed(content), _slurm()
    with contextlib.suppress(FileNotFoundError), open(file, "rb", opener=open_regular) as opened:
        if before.get("here") == _here():
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
            except OSError:  # a file system without flock
                pass
        restarts = before.get("restarts")
        if now and before.get("job") == now["job"] and isinstance(restarts, int) and restarts < now["restarts"]:
            return True
        touched = os.fstat(opened.fileno()).st_mtime  # a network file system asks its server
        return abs(_server_time(file.parent) - touched) > LEASE_S  # abs: a clock may be set back
    return False


def _server_time(folder: Path) -> float:
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=f"{NAME}.") as probe:
        return os.fstat(probe.fileno()).st_mtime
    return time.time()


def _here() -> str:
    """Id of the scope of ``flock``: this machine's boot and container."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()


def _slurm() -> dict[str, Any]:
    job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    if not job or not restarts.isdecimal():
        return {}
    return {"job": f"{os.environ.get('SLURM_CLUSTER_NAME')} {job}", "restarts": int(restarts)}


def _parsed(content: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(content)
        if isinstance(parsed, dict):
            return parsed
    return {}


def _holder(content: bytes) -> str:
    parsed = _parsed(content)
    if not isinstance(parsed.get("pid"), int):
        return "another process"
    machine = str(parsed.get("machine"))
    return f"process {parsed['pid']}" + ("" if machine == socket.gethostname() else f" on {clean(machine, 100)}")
