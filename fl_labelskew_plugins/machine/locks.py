"""One process at a time writes in a folder; whoever else wants to is told which process does."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import clean

NAME = ".lock"
PATIENCE_S = 2.0
"""How long a lock is tried for: what a killed process has forked holds it until that has noticed."""


@contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder's lock; it ends with the process, however that ends, and also on a network file system.

    Args:
        folder: an existing one.
        what: whose folder it is: ``run`` or ``sweep``.

    Raises:
        LabelSkewError: another process holds it, which the line names, or nothing can be written there.
    """
    file = folder / NAME
    try:
        handle = _locked(file)
    except BlockingIOError:
        raise LabelSkewError(
            f"{folder}: {_holder(file)} is writing this {what} already; wait until it has ended, or use another folder"
        ) from None
    except OSError as error:
        raise LabelSkewError(f"{folder}: cannot be written: {error.strerror}; use another folder") from None
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # while it is locked: who gets a removed file's lock tries again
        os.close(handle)


def held_by(folder: Path) -> str:
    """The process that holds the folder's lock, as words; empty where none does."""
    file = folder / NAME
    with suppress(FileNotFoundError, PermissionError):
        handle = os.open(file, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(file)
        except OSError:  # a network file system that locks nothing
            return ""
        finally:
            os.close(handle)
    return ""


def _locked(file: Path) -> int:
    until = time.monotonic() + PATIENCE_S
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
            continue
        except OSError as error:  # some network file systems lock nothing
            lack = f"cannot be locked ({error.strerror}); a second process that writes there would not be noticed"
            log.warn(f"{file.parent}: {lack}")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps({"pid": os.getpid(), "machine": socket.gethostname()}).encode())
                return handle
        os.close(handle)


def _holder(file: Path) -> str:
    """The process in a lock's file, as words."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        holder = json.loads(file.read_bytes()[:1000])
        machine = str(holder["machine"])
        where = "" if machine == socket.gethostname() else f" on {clean(machine, 100)}"
        return f"process {int(holder['pid'])}{where}"
    return "another process"
