"""Data sets in torchvision's layout: how their files are found and downloaded; CIFAR and SVHN, which torchvision reads.

torchvision compares the MD5 sum of each file of CIFAR and SVHN with the published one before it opens the file. This
matters for CIFAR, whose files are pickles: a pickle can run any code. torchvision is imported only to read or download,
since the import takes seconds and 160 MiB.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake

from fl_labelskew_plugins import params
from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import one_line, readable, size_text
from fl_labelskew_plugins.data.npz import Npz

Key = tuple[str, str]
"""Part of the data set that a file belongs to, and a name for its content."""
ARCHIVE = ("all", "archive")
CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


class TorchvisionSet(Dataset):
    """Finds the files, downloads them if allowed, and reads one part at a time.

    Subclasses name the files (:meth:`files`), read one part (:meth:`part`), and describe the published files
    (:meth:`facts`, :meth:`expected`). A small copy (``labelskew data fake``) is an ``.npz`` file in place of them.
    """

    kind: ClassVar[str]  # torchvision's class
    below: ClassVar[str] = ""  # torchvision's folder inside data_cache_dir
    endings: ClassVar[tuple[str, ...]] = ("",)  # suffixes that a file's name may have; the last one wins
    shape: ClassVar[tuple[int, int, int]]  # (channels, height, width) of a sample
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

    def parts(self, files: Mapping[Key, Path], *names: str) -> list[Arrays]:
        """Several parts; override it if they share some work."""
        return [self.part(files, name) for name in names]

    def expected(self) -> Mapping[Key, str]:
        """:meth:`facts` of the published files."""
        raise NotImplementedError

    def facts(self, key: Key, path: Path) -> str:
        """A description of a file that needs no reading of all of it."""
        return size_text(path.stat().st_size)

    def fetch(self, root: str) -> None:
        """Let torchvision download the files below ``root``; any of its errors may come through."""
        from torchvision import datasets

        getattr(datasets, self.kind)(root, train=True, download=True)

    def candidates(self, data_dir: Path | None) -> list[Path]:
        """The folders to look in, best first."""
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
        """All files, or one part's; if some are missing, no files and a message that names them."""
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
        """A row for each file of the folder that has most of them; raise LabelSkewError if no folder is named."""
        if (copy := fakes.arrays_file(data_dir)) is not None:
            return [(copy.name, size_text(copy.stat().st_size), "any")]
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
        if (copy := fakes.arrays_file(data_dir)) is not None:
            return self._copy(copy)
        return self._data(*self.parts(self._fetched(data_dir, download), "train", "test"))

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read the files of the test part; ``seed`` is not used."""
        if fakes.arrays_file(data_dir) is not None:
            return super().load_test(data_dir, download=download, seed=seed)
        (test,) = self.parts(self._fetched(data_dir, download, "test"), "test")
        return self._data(Arrays(test.x[:0], test.y[:0]), test)

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write one ``.npz`` file; 300 samples by default, or 4 per class."""
        made = fakes.parts(samples, classes=len(self.class_names), shape=self.shape, seed=seed)
        fakes.write_arrays(fakes.fresh_folder(out), made, self.class_names)

    def _copy(self, file: Path) -> Data:
        """The samples of a small copy."""
        data = Npz(Npz.Params(file=file.name)).load(file.parent, download=False, seed=0)
        form = (data.class_names, data.train.x.shape[1:], data.train.x.dtype)
        if form != (list(self.class_names), self.shape, np.uint8):
            raise mistake(file, f"was not written for data set {self.kind}", "the copy's own data set and data_args")
        mean, std = self.moments
        return replace(data, mean=mean, std=std)

    def _check(self, data_dir: Path | None, download: bool, part: str | None = None) -> dict[Key, Path]:
        if fakes.arrays_file(data_dir) is not None:
            return {}
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
        """Download the files to torchvision's layout under ``data_dir``.

        Raises:
            LabelSkewError: the download failed.
        """
        try:
            self.fetch(str(data_dir))
        except Exception as error:  # torchvision lets errors of the network, the disk and the archive through
            raise LabelSkewError(
                f"data set {self.kind}: the download to {data_dir} failed ({one_line(error)}); "
                f"get the files from {self.source.removesuffix(', or download: true')}"
            ) from error

    def unpublished(self, path: Path) -> LabelSkewError:
        """The error for a file whose MD5 sum is not that of the published one."""
        what = "is not the published file (its MD5 sum differs), and was not read"
        return LabelSkewError(f"{path}: {what}; delete it, and get it again from {self.source}")


class CIFAR10(TorchvisionSet):
    """CIFAR-10: 50,000 + 10,000 colour images; samples are ``(3, 32, 32)`` uint8.

    The folder as torchvision extracts it, or the ``.tar.gz`` archive, which is unpacked to a temporary folder.
    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """

    kind = "CIFAR10"
    below = "cifar-10-batches-py"
    shape = (3, 32, 32)
    archive: ClassVar[tuple[str, str]] = ("cifar-10-python.tar.gz", "170.5 MB")
    source = (
        "torchvision.datasets.CIFAR10 or https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, 171 MB, "
        "or download: true"
    )
    class_names: tuple[str, ...] = CLASSES_10
    moments = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # of the training part, in wide use
    sizes: ClassVar[dict[str, str]] = {
        **dict.fromkeys((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), "31.0 MB"),
        "batches.meta": "any",
    }

    def files(self) -> Mapping[Key, str]:
        """The batches and the names of the classes; torchvision wants all of them, whichever part it reads."""
        return {("all", name): name for name in self.sizes}

    def expected(self) -> Mapping[Key, str]:
        """The files' sizes."""
        return {("all", name): size for name, size in self.sizes.items()}

    def find(self, data_dir: Path | None, part: str | None = None) -> tuple[dict[Key, Path], str]:
        """The files of both parts, or the archive if it is all there is."""
        files, message = super().find(data_dir)
        if not files and data_dir is not None and os.path.isfile(data_dir / self.archive[0]):
            return {ARCHIVE: data_dir / self.archive[0]}, ""
        return files, message

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """A row for each file, or one for the archive."""
        archive = self.find(data_dir)[0].get(ARCHIVE)
        if archive is not None:
            return [(archive.name, size_text(archive.stat().st_size), self.archive[1])]
        return super().survey(data_dir)

    def parts(self, files: Mapping[Key, Path], *names: str) -> list[Arrays]:
        """Several parts; an archive is unpacked once for all of them."""
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity, extract_archive

        archive = files.get(ARCHIVE)
        if archive is None:
            return super().parts(files, *names)
        with readable(str(archive), "unpacked"), tempfile.TemporaryDirectory() as folder:
            if not check_integrity(archive, getattr(datasets, self.kind).tgz_md5):
                raise self.unpublished(archive)
            extract_archive(archive, folder)
            return super().parts(self.located(Path(folder, self.below)), *names)

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part, if the MD5 sums of all files are right."""
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity

        kind = getattr(datasets, self.kind)
        kind_here = type(self.kind, (kind,), {"base_folder": ""})  # the folder may have any name
        folder = next(iter(files.values())).parent
        with readable(str(folder)):
            try:
                read: Any = kind_here(str(folder), train=part == "train")
            except RuntimeError as error:  # an MD5 sum differs; that file has not been opened
                sums = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
                wrong = [folder / name for name, md5 in sums if not check_integrity(folder / name, md5)]
                raise self.unpublished(wrong[0] if wrong else folder) from error
        return Arrays(read.data.transpose(0, 3, 1, 2), np.array(read.targets, np.int64))


class CIFAR100(CIFAR10):
    """CIFAR-100 with its 100 fine labels; samples are ``(3, 32, 32)`` uint8."""

    kind = "CIFAR100"
    below = "cifar-100-python"
    archive = ("cifar-100-python.tar.gz", "169.0 MB")
    source = (
        "torchvision.datasets.CIFAR100 or https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz, 169 MB, "
        "or download: true"
    )
    class_names = tuple(NAMES_100.split())
    moments = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    sizes: ClassVar[dict[str, str]] = {"train": "155.2 MB", "test": "31.0 MB", "meta": "any"}


class SVHN(TorchvisionSet):
    """SVHN, cropped digits: 73,257 + 26,032 colour images in MATLAB files; samples are ``(3, 32, 32)`` uint8.

    Netzer et al., "Reading digits in natural images with unsupervised feature learning", 2011. The files have label 10
    for digit 0.
    """

    kind = "SVHN"
    shape = (3, 32, 32)
    source = "torchvision.datasets.SVHN or http://ufldl.stanford.edu/housenumbers/, 182 and 64 MB, or download: true"
    class_names = tuple("0123456789")
    moments = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))  # of the training part, in wide use

    def files(self) -> Mapping[Key, str]:
        """A file for each part."""
        return {(part, "x"): f"{part}_32x32.mat" for part in ("train", "test")}

    def expected(self) -> Mapping[Key, str]:
        """The files' sizes."""
        return {("train", "x"): "182.0 MB", ("test", "x"): "64.3 MB"}

    def fetch(self, root: str) -> None:
        """Let torchvision download both files."""
        from torchvision import datasets

        for part in ("train", "test"):
            datasets.SVHN(root, split=part, download=True)

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part."""
        from torchvision import datasets

        path = files[part, "x"]
        with readable(str(path)):
            try:
                read = datasets.SVHN(str(path.parent), split=part)
            except RuntimeError as error:
                raise self.unpublished(path) from error
        return Arrays(np.ascontiguousarray(read.data), read.labels)
