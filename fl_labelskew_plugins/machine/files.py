"""Files that are written as a whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def copied(path: Path, to: Path) -> None:
    """The same file under a second name, as a whole or not at all; without room of its own where links are known."""
    with replacing(to) as part:
        part.unlink(missing_ok=True)
        try:
            os.link(path, part)
        except OSError:  # a file system without links
            shutil.copyfile(path, part)
