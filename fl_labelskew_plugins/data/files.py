"""What data sets share when they read files: errors, sizes, and the choice of a file in a folder."""

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, MistakesError, mistake

from fl_labelskew_plugins.machine.place import free_memory
from fl_labelskew_plugins.machine.text import clean

MOST_SHOWN = 20
"""Mistakes in data that are printed one by one; of the others, only their number."""

UNPACKED = 2**29
"""Bytes that a packed file may always become."""


def one_line(error: BaseException) -> str:
    """An exception's text without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def size_text(size: int) -> str:
    """A file's size for people, such as ``31.0 MB``."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB" if size >= 1000 else f"{size} bytes"


@contextmanager
def readable(where: str, verbs: str = "read") -> Iterator[None]:
    """Turn what goes wrong in folders and tables into a LabelSkewError."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelSkewError(f"{where}: cannot be {verbs} ({error})") from error


@contextmanager
def sound(path: Path, what: str, use: str) -> Iterator[None]:
    """Turn what goes wrong in reading a file into a LabelSkewError: it is not a sound ``what``, and ``use`` is one."""
    try:
        yield
    except LabelSkewError:
        raise
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read ({error.strerror or one_line(error)})") from error
    except (
        Exception
    ) as error:  # zipfile, its decoders, pandas, pyarrow, NumPy and Python's parser raise dozens of types
        raise mistake(path, f"is not a sound {what} ({clean(one_line(error))})", use) from error


@contextmanager
def gathered(wrong: list[str]) -> Iterator[None]:
    """Add the mistakes that are raised inside to ``wrong``; :func:`refuse` raises them together."""
    try:
        yield
    except LabelSkewError as error:
        wrong += error.mistakes if isinstance(error, MistakesError) else [str(error)]


def capped(lines: Sequence[str]) -> list[str]:
    """The first lines, and the number of the others."""
    more = [f"and {len(lines) - MOST_SHOWN} more errors"] if len(lines) > MOST_SHOWN else []
    return [*lines[:MOST_SHOWN], *more]


def refuse(wrong: Sequence[str]) -> None:
    """Raise MistakesError if there are mistakes."""
    if wrong:
        raise MistakesError(capped(wrong))


def fits(need: int, where: str, what: str, use: str) -> None:
    """Raise LabelSkewError unless so many bytes, of ``what``, fit this machine's free memory; ``use`` takes less."""
    have = free_memory()
    if need > have:
        raise mistake(where, f"{what} need {need / 1e9:.1f} GB, and {have / 1e9:.1f} GB are free", use)


def unpacks(path: Path, need: int, what: str, most: int, use: str) -> None:
    """Raise LabelSkewError unless so many bytes, of ``what``, are in proportion to a packed file, and fit as above.

    More than :data:`UNPACKED` bytes may be ``most`` times as many as the file's, and no more.
    """
    packed = path.stat().st_size
    if need > max(UNPACKED, most * packed):
        far = f"{size_text(packed)} become {size_text(need)} of memory, more than {most} times as many"
        raise mistake(path, far, use)
    fits(need, str(path), what, use)


def only_file(data_dir: Path | None, file: str | None, endings: Sequence[str], name: str) -> Path:
    """The file that ``data_dir`` is, or the one of that folder that is called ``file`` or ends as one of ``endings``.

    Raises:
        LabelSkewError: there is none, or it is not clear which; ``name`` is the data set's.
    """
    kinds = " or ".join(endings)
    if data_dir is None:
        raise LabelSkewError(f"data set {name}: data_args.data_cache_dir is not set; set it to a {kinds} file")
    path = data_dir
    if os.path.isdir(data_dir):  # unlike Path's, False where a folder above may not be entered
        with readable(f"data set {name}"):
            there = [path.name for path in data_dir.iterdir() if path.name[0] != "."]
        names = sorted(name for name in there if name.lower().endswith(tuple(endings)))
        if file is None and len(names) != 1:
            raise LabelSkewError(
                f"data set {name}: {data_dir} has {len(names)} {kinds} files; name one of them in data_args.file"
            )
        path = data_dir / (file or names[0])
    if not os.path.isfile(path):
        what = "is a folder" if os.path.isdir(path) else "does not exist"
        raise mistake(f"data set {name}", f"{path} {what}", f"a {kinds} file")
    return path
