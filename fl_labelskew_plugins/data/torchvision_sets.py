"""Data sets in torchvision's layout, and CIFAR and SVHN.

torchvision verifies MD5 sums before it opens CIFAR's pickles, which can run any code. It is imported only to read or
download: the import takes seconds and 160 MiB.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from rich.filesize import decimal

from fl_labelskew_plugins import params
from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import readable
from fl_labelskew_plugins.data.npz import Npz
from fl_labelskew_plugins.data.stats import Moments
from fl_labelskew_plugins.machine.text import failure

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
    """Find, download and read files."""

    kind: ClassVar[str]  # torchvision's class
    below: ClassVar[str] = ""  # torchvision's folder inside data_cache_dir
    endings: ClassVar[tuple[str, ...]] = ("",)  # allowed suffixes; the last one has precedence
    files: Mapping[str, Mapping[str, str]]  # per part: file name to facts() of the published file
    downloads: tuple[Mapping[str, Any], ...] = ({"train": True},)  # arguments of torchvision's class
    shape: ClassVar[tuple[int, int, int]]  # (channels, height, width) of a sample
    class_names: tuple[str, ...]
    moments: ClassVar[Moments]
    published: ClassVar[str]  # address and size of the files
    Params = params.Params

    def __init_subclass__(cls) -> None:
        cls.source = f"torchvision.datasets.{cls.kind} or {cls.published}, or download: true"

    def part(self, files: Mapping[str, Path], part: str) -> Arrays:
        """Read and check one part, ``train`` or ``test``."""
        raise NotImplementedError

    def facts(self, path: Path) -> str:
        return decimal(path.stat().st_size)

    @property
    def _facts(self) -> dict[str, str]:
        return {name: fact for files in self.files.values() for name, fact in files.items()}

    def _found(self, data_dir: Path | None) -> tuple[dict[str, Path], str]:
        """The files, and an error about missing ones."""
        root = data_dir or self.default_dir
        if root is None:
            return {}, f"data set {self.kind}: data_args.data_cache_dir is not set; get the files from {self.source}"
        folders = list(dict.fromkeys([Path(root), Path(root, self.below)]))
        found = [
            {
                name: path
                for name in self._facts
                for ending in self.endings
                if os.path.isfile(path := folder / f"{name}{ending}")  # unlike Path's, False without permission
            }
            for folder in folders
        ]
        best = max(found, key=len)
        ending = f"[{self.endings[0]}]" if self.endings[0] else ""
        missing = ", ".join(f"{name}{ending}" for name in self._facts if name not in best)
        places = " or ".join(map(str, folders))
        return best, missing and f"data set {self.kind}: no {missing} in {places}; get them from {self.source}"

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        missing = fakes.arrays_file(data_dir) is None and self._found(data_dir)[1]
        if missing and not (download and data_dir is not None):
            raise LabelSkewError(missing)

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        if (copy := fakes.arrays_file(data_dir)) is not None:
            return [(copy.name, decimal(copy.stat().st_size), "any")]
        found, missing = self._found(data_dir)
        if missing and data_dir is None and self.default_dir is None:
            raise LabelSkewError(missing)
        facts = {name: self.facts(path) for name, path in found.items()}
        return [(name, facts.get(name, "missing"), fact) for name, fact in self._facts.items()]

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        if (copy := fakes.arrays_file(data_dir)) is not None:
            return self._copy(copy)
        self.check(data_dir, download=download)
        files, missing = self._found(data_dir)
        if missing:
            self._download(data_dir)
            files, missing = self._found(data_dir)
        if missing:
            raise LabelSkewError(missing)
        return Data(self.part(files, "train"), self.part(files, "test"), list(self.class_names), *self.moments)

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        made = fakes.parts(samples, classes=len(self.class_names), shape=self.shape, seed=seed)
        arrays = {f"{axis}_{part}": getattr(content, axis) for part, content in made.items() for axis in "xy"}
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / fakes.ARRAYS, class_names=np.array(self.class_names), **arrays)

    def _copy(self, file: Path) -> Data:
        data = Npz(Npz.Params(file=file.name)).load(file.parent, download=False, seed=0)
        form = (data.class_names, data.train.x.shape[1:], data.train.x.dtype)
        if form != (list(self.class_names), self.shape, np.uint8):
            use = "the data set and data_args that the copy was written for"
            raise mistake(file, f"was not written for data set {self.kind}", use)
        mean, std = self.moments
        return replace(data, mean=mean, std=std)

    def _download(self, data_dir: Path | None) -> None:
        from torchvision import datasets

        try:
            for options in self.downloads:
                getattr(datasets, self.kind)(str(data_dir), download=True, **options)
        except Exception as error:  # of the network, the disk or the archive
            problem = f"the download to {data_dir} failed ({failure(error)})"
            source = self.source.removesuffix(", or download: true")
            raise LabelSkewError(f"data set {self.kind}: {problem}; get the files from {source}") from error

    def unpublished(self, path: Path) -> LabelSkewError:
        problem = "is not the published file (its MD5 sum differs), and was not read"
        return LabelSkewError(f"{path}: {problem}; delete it, and get it again from {self.source}")


BATCHES_10 = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FILES_10 = {**dict.fromkeys(BATCHES_10, "31.0 MB"), "batches.meta": "any"}
FILES_100 = {"train": "155.2 MB", "test": "31.0 MB", "meta": "any"}


class CIFAR10(TorchvisionSet):
    """CIFAR-10: 50,000 + 10,000 colour images; samples are ``(3, 32, 32)`` uint8.

    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """

    kind = "CIFAR10"
    below = "cifar-10-batches-py"
    files: Mapping[str, Mapping[str, str]] = dict.fromkeys(fakes.PARTS, FILES_10)  # torchvision reads them together
    shape = (3, 32, 32)
    published = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, 171 MB"
    class_names: tuple[str, ...] = CLASSES_10
    moments = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # commonly used, of the training part

    def part(self, files: Mapping[str, Path], part: str) -> Arrays:
        from torchvision import datasets
        from torchvision.datasets.utils import check_integrity

        kind = getattr(datasets, self.kind)
        kind_here = type(self.kind, (kind,), {"base_folder": ""})  # for folders of any name
        folder = next(iter(files.values())).parent
        with readable(str(folder)):
            try:
                read: Any = kind_here(str(folder), train=part == "train")
            except RuntimeError as error:  # wrong MD5 sum
                sums = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
                wrong = [folder / name for name, md5 in sums if not check_integrity(folder / name, md5)]
                raise self.unpublished(wrong[0] if wrong else folder) from error
        return Arrays(read.data.transpose(0, 3, 1, 2), np.array(read.targets, np.int64))


class CIFAR100(CIFAR10):
    """CIFAR-100 with its 100 fine labels; samples are ``(3, 32, 32)`` uint8."""

    kind = "CIFAR100"
    below = "cifar-100-python"
    files: Mapping[str, Mapping[str, str]] = dict.fromkeys(fakes.PARTS, FILES_100)
    published = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz, 169 MB"
    class_names = tuple(NAMES_100.split())
    moments = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class SVHN(TorchvisionSet):
    """SVHN, cropped digits: 73,257 + 26,032 colour images in MATLAB files; samples are ``(3, 32, 32)`` uint8.

    Netzer et al., "Reading digits in natural images with unsupervised feature learning", 2011.
    """

    kind = "SVHN"
    files: Mapping[str, Mapping[str, str]] = {
        "train": {"train_32x32.mat": "182.0 MB"},
        "test": {"test_32x32.mat": "64.3 MB"},
    }
    downloads = ({"split": "train"}, {"split": "test"})
    shape = (3, 32, 32)
    published = "http://ufldl.stanford.edu/housenumbers/, 182 and 64 MB"
    class_names = tuple("0123456789")
    moments = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))  # commonly used, of the training part

    def part(self, files: Mapping[str, Path], part: str) -> Arrays:
        from torchvision import datasets

        path = files[f"{part}_32x32.mat"]
        with readable(str(path)):
            try:
                read = datasets.SVHN(str(path.parent), split=part)
            except RuntimeError as error:
                raise self.unpublished(path) from error
        return Arrays(np.ascontiguousarray(read.data), read.labels)
