"""One process at a time writes in a folder, of this machine or of another one that shares it; others are told which.

A lock is a file that says who holds it, made with ``O_EXCL``, which network file systems have as well; ``flock`` some
of them have not, or for one machine alone. Its holder touches it every few seconds. It is stale

- at once, when its process has ended, which a process of the same machine and container sees (by the process's number
  and the time when it began, since numbers are used again);
- at once, for a task that Slurm has put back into its queue, where the task had made it before: its node has died;
- elsewhere, when it has not been touched for :data:`LEASE_S`: the machine is gone, or cut off. The file server's clock
  alone decides, by the times of two files of one folder.

A stale lock is not removed, since between a look and the removal somebody else may have taken it over: it gets a
successor, a file named after what the stale one says, so that only one process can make it. The lock's holder is who
made the last file of the chain. A holder that comes back from a long sleep finds that out from :meth:`Lock.check`
before it writes.

No library does just this (seen in November 2026): ``filelock``'s leases are never taken over on a network file system,
which cannot swap two names; ``flufl.lock`` compares the clocks of machines, and has to be told that its holder lives.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.machine.text import clean

NAME = ".lock"
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
        """Raise RunError where another process has taken it over, because this one gave no sign of life."""
        chain = _chain(self._folder)
        if not chain:
            raise RunError(f"{self._folder}: its {NAME} is gone; was it removed? nothing was written since")
        if chain[-1][1] != self._content:
            holder = _holder(chain[-1][1])
            raise RunError(
                f"{self._folder}: {holder} has taken this run over, since this process had stood still; "
                "nothing was written since"
            )


def belongs(name: str) -> bool:
    """Whether a file of this name is a lock, a successor of one, or what NFS keeps of one that was removed."""
    return name == NAME or name.startswith((f"{NAME}.", ".nfs"))


@contextmanager
def alone(folder: Path, *, lease: float = LEASE_S, patience: float = PATIENCE_S) -> Iterator[Lock]:
    """Hold the lock of a run's folder.

    Args:
        folder: an existing one.
        lease: seconds without a touch after which other machines take it over.
        patience: seconds for which another process that holds it is waited for.

    Raises:
        HeldError: another process holds it, which the line names.
        LabelSkewError: nothing can be written there.
    """
    content = json.dumps({**_me(), "lease": lease, "token": secrets.token_hex(8)}).encode()
    try:
        handle = _taken(folder, content, patience)
    except OSError as error:
        raise LabelSkewError(f"{folder}: cannot be written: {error.strerror}; use another folder") from None
    done = threading.Event()

    def touch() -> None:
        while not done.wait(lease / 6):
            with suppress(OSError):  # the next time, or it is lost
                os.utime(handle)

    beat = threading.Thread(target=touch, daemon=True, name=f"lock of {folder}")
    beat.start()
    owner = os.getpid()
    try:
        yield Lock(folder, content)
    finally:
        done.set()
        beat.join()
        os.close(handle)
        with suppress(OSError):
            chain = _chain(folder)
            if chain and chain[-1][1] == content and os.getpid() == owner:  # no process that it has forked
                for file, _ in chain:  # the first one first, whose name somebody else then may take
                    file.unlink(missing_ok=True)


def held_by(folder: Path) -> str:
    """The process that holds the folder's lock, as words; empty where none does."""
    with suppress(OSError):
        chain = _chain(folder)
        if chain and not _stale(*chain[-1]):
            return _holder(chain[-1][1])
    return ""


def _taken(folder: Path, content: bytes, patience: float) -> int:
    """Descriptor of the lock's file, now this process's."""
    until = time.monotonic() + patience
    while True:
        chain = _chain(folder)
        if not chain or _stale(*chain[-1]):
            file = folder / (f"{NAME}.{hashlib.sha256(chain[-1][1]).hexdigest()[:16]}" if chain else NAME)
            with suppress(FileExistsError):  # somebody else was faster
                handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                with ExitStack() as undo:
                    undo.callback(file.unlink, missing_ok=True)
                    undo.callback(os.close, handle)
                    if os.write(handle, content) < len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    # else the stale lock's holder was not dead, has just ended, and somebody else came
                    if _chain(folder)[-1:] == [(file, content)]:
                        undo.pop_all()
                        return handle
        elif time.monotonic() >= until:
            holder = _holder(chain[-1][1])
            far = _said(chain[-1][1]).get("here") != _me()["here"]
            dead = f" (after {LEASE_S:.0f} s without a sign of life it is taken for dead)" if far else ""
            use = f"wait until it has ended{dead}, or use another folder"
            raise HeldError(f"{folder}: {holder} is writing this run already; {use}", holder)
        else:
            time.sleep(0.1)


def _chain(folder: Path) -> list[tuple[Path, bytes]]:
    """The lock's file and its successors, and what they say; the last one holds."""
    chain: list[tuple[Path, bytes]] = []
    file = folder / NAME
    try:
        while True:
            chain.append((file, file.read_bytes()[:1000]))
            file = folder / f"{NAME}.{hashlib.sha256(chain[-1][1]).hexdigest()[:16]}"
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # NFS has the latter for what was just removed elsewhere
            raise
    return chain


def _stale(file: Path, content: bytes) -> bool:
    """Whether who wrote a lock's file has ended, as far as one can tell from here."""
    said = _said(content)
    if said.get("here") == _me()["here"] and isinstance(pid := said.get("pid"), int):
        return _gone(pid, said.get("began"))
    job, restarts = _slurm()
    if job and said.get("job") == job and isinstance(before := said.get("restarts"), int) and before < restarts:
        return True
    lease = said.get("lease")
    lease = lease if isinstance(lease, int | float) and 0 < lease < LEASE_S else LEASE_S
    with suppress(FileNotFoundError):
        return abs(_server_time(file.parent) - _touched(file)) > lease  # also where a clock was put back
    return False


def _touched(file: Path) -> float:
    with file.open("rb") as opened:  # a network file system then asks its server
        return os.fstat(opened.fileno()).st_mtime


def _server_time(folder: Path) -> float:
    """The time now by the clock that files' times in a folder are of; by our own where nothing can be written."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=f"{NAME}.") as probe:
        return os.fstat(probe.fileno()).st_mtime
    return time.time()


def _me() -> dict[str, Any]:
    """The process that this is; ``here``: what its number is unique in, a machine since its start or a container."""
    here = socket.gethostname()
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        here = f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    pid, (job, restarts) = os.getpid(), _slurm()
    process = {"pid": pid, "machine": socket.gethostname(), "here": here, "began": _began(pid)}
    return process | {"job": job, "restarts": restarts}


def _slurm() -> tuple[str, int]:
    """The job of Slurm that this process is of, empty if none, and how often that has been put back into the queue."""
    job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    return job and f"{os.environ.get('SLURM_CLUSTER_NAME')} {job}", int(restarts) if restarts.isdecimal() else 0


def _began(pid: int) -> str:
    """What tells a process from others that have had its number: when it began; empty where one cannot see that."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]  # nobody has asked for its exit code yet
    return ""


def _gone(pid: int, began: object) -> bool:
    """Whether a process of this machine and container has ended."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # somebody else's
        pass
    now = _began(pid)
    return bool(now) and now != began


def _said(content: bytes) -> dict[str, Any]:
    with suppress(ValueError):
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
