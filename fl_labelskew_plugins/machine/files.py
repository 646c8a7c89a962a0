"""Files that are written as a whole or not at all, and files of JSON lines that a kill may have cut."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EFBIG)
"""What a disk that is full or has gone away says."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file that takes the place of ``path`` once it is whole; of one that fails nothing is left."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """A text file, as a whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def copied(path: Path, to: Path) -> None:
    """The same file under a second name, as a whole or not at all; without room of its own where links are known."""
    if to.exists() and to.samefile(path):
        return  # to rename one of two links of a file to the other does nothing, and would leave the part
    with replacing(to) as part:
        part.unlink(missing_ok=True)
        try:
            os.link(path, part)
        except OSError:  # a file system without links
            shutil.copyfile(path, part)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file's lines; stops at a line that was cut in half, or is damaged otherwise."""
    lines: list[dict[str, Any]] = []
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            value = None
            with suppress(ValueError, RecursionError):  # such as a number of 5000 digits
                value = json.loads(line)
            if not isinstance(value, dict):
                break
            lines.append(value)
    return lines
