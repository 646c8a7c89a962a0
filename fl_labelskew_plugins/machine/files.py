"""Read and write regular files; write atomically. The reading functions raise OSError as :func:`open_regular`."""

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.text import clean

IRREGULAR = (errno.ELOOP, errno.EISDIR, errno.EEXIST)  # a link, FIFO or folder instead of a file
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EFBIG)
"""Errors of a disk that is full or disconnected."""


def open_regular(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """An ``opener``: raises OSError for FIFOs and devices, which may block, and for links when writing."""
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | (os.O_NOFOLLOW if writes else 0), mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # ENXIO: a FIFO without a reader, or a socket
            raise OSError(errno.ELOOP, "it is a link, FIFO or socket, not a regular file", str(path)) from None
        raise
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # open() refuses a folder
        return handle
    os.close(handle)
    raise OSError(errno.ELOOP, "it is a FIFO or device, not a regular file", str(path))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, if its file system has locks; raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_regular(path: str | Path) -> int:
    """Check that a file is regular before a library opens it by name; return its size."""
    with open(path, "rb", opener=open_regular) as stream:
        return os.fstat(stream.fileno()).st_size


def read_bytes(path: str | Path, max_bytes: int = -1) -> bytes:
    """At most ``max_bytes`` bytes of a regular file."""
    with open(path, "rb", opener=open_regular) as stream:
        return stream.read(max_bytes)


def read_pieces(path: str | Path) -> Iterator[bytes]:
    """A regular file in parts of 1 MiB."""
    with open(path, "rb", opener=open_regular) as stream:
        while piece := stream.read(2**20):
            yield piece


def read_text(path: str | Path, errors: str = "strict") -> str:
    """The text of a regular file; raises UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8", errors)


@contextmanager
def writing(place: Path | str, more: str = "") -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a LabelSkewError that ends with ``more``."""
    try:
        yield
    except OSError as error:
        raise LabelSkewError(f"{place}: cannot be written: {error.strerror or error}{more}") from None


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new file, never a link or FIFO, that replaces ``path`` if the block succeeds."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file atomically; ``durable``: also if the power fails."""
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        with suppress(OSError):  # a file system that cannot do this
            os.fsync(folder)
        os.close(folder)


def copied(path: Path, to: Path) -> None:
    """Copy a file atomically, as a hard link if possible."""
    if to.exists() and to.samefile(path):
        return  # else the rename would do nothing, and the temporary file would stay
    with replacing(to) as part:
        part.unlink()
        try:
            os.link(path, part)
        except OSError:  # a file system without links
            shutil.copyfile(path, part)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The JSON objects in a file's lines, up to a damaged one; raises LabelSkewError if it cannot be read."""
    lines: list[dict[str, Any]] = []
    try:
        text = read_text(file, "replace") if file.exists() else ""
    except OSError as error:
        raise LabelSkewError(f"{clean(file, 4096)}: cannot be read: {error.strerror}") from None
    for line in text.splitlines():
        value = None
        with suppress(ValueError, RecursionError):  # such as a number of 5000 digits
            value = json.loads(line)
        if not isinstance(value, dict):
            break
        lines.append(value)
    return lines
