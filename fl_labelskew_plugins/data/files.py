"""Errors, size limits and selection of data files."""

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, MistakesError, mistake
from rich.filesize import decimal

from fl_labelskew_plugins.machine.place import free_memory
from fl_labelskew_plugins.machine.text import clean, failure

MAX_SHOWN = 20  # data errors
UNPACKED = 2**29  # bytes that a packed file may always unpack to


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn errors of folders and tables into LabelSkewError."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelSkewError(f"{where}: cannot be read ({error})") from error


@contextmanager
def valid_file(path: Path, kind: str, use: str) -> Iterator[None]:
    """Turn errors in a file of this ``kind`` into LabelSkewError."""
    try:
        yield
    except LabelSkewError:
        raise
    except OSError as error:
        raise LabelSkewError(f"{clean(path, 4096)}: cannot be read ({error.strerror or failure(error)})") from error
    except Exception as error:  # libraries raise dozens of types
        raise mistake(clean(path, 4096), f"is not a valid {kind} ({clean(failure(error))})", use) from error


@contextmanager
def gathered(wrong: list[str]) -> Iterator[None]:
    """Append mistakes to ``wrong`` instead of raising them."""
    try:
        yield
    except LabelSkewError as error:
        wrong += error.mistakes if isinstance(error, MistakesError) else [str(error)]


def capped(lines: Sequence[str]) -> list[str]:
    """The first lines, and the number of others."""
    more = [f"and {len(lines) - MAX_SHOWN} more errors"] if len(lines) > MAX_SHOWN else []
    return [*lines[:MAX_SHOWN], *more]


def refuse(wrong: Sequence[str]) -> None:
    """Raise MistakesError if there are mistakes."""
    if wrong:
        raise MistakesError(capped(wrong))


def fits(need: int, where: str, content: str, use: str) -> None:
    """Raise LabelSkewError if ``content`` needs more bytes than the free memory."""
    free = free_memory()
    if need > free:
        raise mistake(where, f"{content} need {need / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free", use)


def unpacks(path: Path, need: int, content: str, most: int, use: str) -> None:
    """Raise LabelSkewError for contents that exceed the memory, or ``most`` times the file's size."""
    packed = path.stat().st_size
    if need > max(UNPACKED, most * packed):
        far = f"{decimal(packed)} become {decimal(need)} of memory, more than {most} times as many"
        raise mistake(path, far, use)
    fits(need, str(path), content, use)


def only_file(data_dir: Path | None, file: str | None, endings: Sequence[str], name: str) -> Path:
    """The file ``data_dir``, or in this folder ``file`` or the only file with one of ``endings``."""
    kinds = " or ".join(endings)
    if data_dir is None:
        raise LabelSkewError(f"data set {name}: data_args.data_cache_dir is not set; set it to a {kinds} file")
    path = data_dir
    if os.path.isdir(data_dir):  # unlike Path.is_dir, False without permission
        with readable(f"data set {name}"):
            available = [path.name for path in data_dir.iterdir() if path.name[0] != "."]
        names = sorted(name for name in available if name.lower().endswith(tuple(endings)))
        if file is None and len(names) != 1:
            problem = f"{data_dir} has {len(names)} {kinds} files"
            raise LabelSkewError(f"data set {name}: {problem}; name one of them in data_args.file")
        path = data_dir / (file or names[0])
    if not os.path.isfile(path):
        problem = "is a folder" if os.path.isdir(path) else "does not exist"
        raise mistake(f"data set {name}", f"{path} {problem}", f"a {kinds} file")
    return path
