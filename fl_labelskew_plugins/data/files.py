"""Data sets of a few files with fixed names, in one of a few folders; torchvision fetches them where asked to."""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, MistakesError, mistake

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine.place import free_memory

Key = tuple[str, str]
"""Part of the data set that a file belongs to, and what it holds of it."""
MOST = 20
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
def gathered(wrong: list[str]) -> Iterator[None]:
    """Add the mistakes that are raised inside to ``wrong``; :func:`refuse` raises them together."""
    try:
        yield
    except LabelSkewError as error:
        wrong += error.mistakes if isinstance(error, MistakesError) else [str(error)]


def capped(lines: Sequence[str]) -> list[str]:
    """The first lines, and the number of the others."""
    more = [f"and {len(lines) - MOST} more errors"] if len(lines) > MOST else []
    return [*lines[:MOST], *more]


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


class Files(Dataset):
    """Finds the files, has them fetched, and reads one part at a time.

    Subclasses say what the files are called (:meth:`files`), how one part is read (:meth:`part`), and what the real
    files look like (:meth:`facts`, :meth:`expected`).
    """

    kind: ClassVar[str]  # torchvision's class
    below: ClassVar[str] = ""  # torchvision's folder inside data_cache_dir
    endings: ClassVar[tuple[str, ...]] = ("",)  # what a file's name may end with beside its own; the last one wins
    class_names: tuple[str, ...]
    moments: ClassVar[tuple[tuple[float, ...], tuple[float, ...]]]
    Params = params.Params

    def files(self) -> Mapping[Key, str]:
        """Names of all files, the training part's first."""
        raise NotImplementedError

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part, ``train`` or ``test``, checked.

        Raises:
            LabelSkewError: a file is broken.
        """
        raise NotImplementedError

    def expected(self) -> Mapping[Key, str]:
        """What :meth:`facts` says of the real data set's files."""
        raise NotImplementedError

    def facts(self, key: Key, path: Path) -> str:
        """What can be said of a file without reading it all."""
        return size_text(path.stat().st_size)

    def fetch(self, root: str) -> None:
        """Let torchvision download the files below ``root``; any of its errors may come through."""
        from torchvision import datasets

        getattr(datasets, self.kind)(root, train=True, download=True)

    def candidates(self, data_dir: Path | None) -> list[Path]:
        """The folders that are looked in, best first."""
        root = data_dir if data_dir is not None else Path(self.default_dir) if self.default_dir else None
        return [] if root is None else [root, root / self.below] if self.below else [root]

    def located(self, folder: Path, part: str | None = None) -> dict[Key, Path]:
        """The files of a part, or of both, that are in ``folder``."""
        return {
            key: path
            for key, name in self.files().items()
            for path in (folder / f"{name}{ending}" for ending in self.endings)
            if part in (None, key[0]) and os.path.isfile(path)  # unlike Path's, False where the folder is closed to us
        }

    def find(self, data_dir: Path | None, part: str | None = None) -> tuple[dict[Key, Path], str]:
        """All files, or one part's; where some are missing, no files and a message that says which."""
        needed = {key: name for key, name in self.files().items() if part in (None, key[0])}
        folders = self.candidates(data_dir)
        if not folders:
            return {}, f"data set {self.kind}: data_args.data_cache_dir is not set; get the files from {self.source}"
        best = max((self.located(folder, part) for folder in folders), key=len)
        if len(best) == len(needed):
            return best, ""
        ending = f"[{self.endings[0]}]" if self.endings[0] else ""
        return {}, (
            f"data set {self.kind}: no {', '.join(f'{needed[key]}{ending}' for key in needed if key not in best)} "
            f"in {' or '.join(str(folder) for folder in folders)}; get them from {self.source}"
        )

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if files are missing, unless they may be downloaded to ``data_dir``."""
        self._check(data_dir, download)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        """As :meth:`check`, for the files of the test part."""
        self._check(data_dir, download, "test")

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """A row for each file of the folder that has most of them; raise LabelSkewError where none is named."""
        folders = self.candidates(data_dir)
        if not folders:
            raise LabelSkewError(self.find(data_dir)[1])
        best = max((self.located(folder) for folder in folders), key=len)
        expected = self.expected()
        return [
            (name, self.facts(key, best[key]) if key in best else "missing", expected[key])
            for key, name in self.files().items()
        ]

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read all files; ``seed`` is not used."""
        files = self._fetched(data_dir, download)
        return self._data(self.part(files, "train"), self.part(files, "test"))

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read the files of the test part; ``seed`` is not used."""
        test = self.part(self._fetched(data_dir, download, "test"), "test")
        return self._data(Arrays(test.x[:0], test.y[:0]), test)

    def _check(self, data_dir: Path | None, download: bool, part: str | None = None) -> dict[Key, Path]:
        files, message = self.find(data_dir, part)
        if not files and not (download and data_dir is not None):
            raise LabelSkewError(message)
        return files

    def _fetched(self, data_dir: Path | None, download: bool, part: str | None = None) -> dict[Key, Path]:
        files = self._check(data_dir, download, part)
        if not files and data_dir is not None:
            self.download(data_dir)
            files = self._check(data_dir, False, part)
        return files

    def _data(self, train: Arrays, test: Arrays) -> Data:
        mean, std = self.moments
        return Data(train, test, list(self.class_names), mean=mean, std=std)

    def download(self, data_dir: Path) -> None:
        """Fetch the files to torchvision's layout under ``data_dir``.

        Raises:
            LabelSkewError: they cannot be fetched.
        """
        try:
            self.fetch(str(data_dir))
        except Exception as error:  # torchvision lets errors of the network, the disk and the archive through
            raise LabelSkewError(
                f"data set {self.kind}: the download to {data_dir} failed ({one_line(error)}); "
                f"get the files from {self.source.removesuffix(', or download: true')}"
            ) from error
