"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32x32, in the pickled batches of the Python version.

As torchvision extracts them (``cifar-10-batches-py/``, ``cifar-100-python/``), or still inside their ``.tar.gz``. The
pickles are read without running anything that they name. Krizhevsky, "Learning multiple layers of features from tiny
images", 2009.
"""

import os
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fl_labelskew_registry import Arrays, LabelSkewError, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.data import fakes, pickles
from fl_labelskew_plugins.data.files import Files, Key, one_line, size_text

LARGEST = 400_000_000  # bytes of a batch; the largest real one has 155 million
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


class CIFAR10(Files):
    """CIFAR-10; samples are ``(3, 32, 32)`` uint8."""

    kind = "CIFAR10"
    below = "cifar-10-batches-py"
    archive: ClassVar[tuple[str, str]] = ("cifar-10-python.tar.gz", "170.5 MB")
    source = (
        "torchvision.datasets.CIFAR10 or https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, 171 MB, "
        "or download: true"
    )
    class_names: tuple[str, ...] = CLASSES_10
    moments = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))  # of the training part, in wide use
    sizes: ClassVar[dict[Key, str]] = {  # of each part's batches
        **{("train", f"data_batch_{i}"): "31.0 MB" for i in range(1, 6)},
        ("test", "test_batch"): "31.0 MB",
    }
    labels: ClassVar[str] = "labels"
    meta: ClassVar[tuple[str, str]] = ("batches.meta", "label_names")

    def files(self) -> Mapping[Key, str]:
        """The batches."""
        return {key: key[1] for key in self.sizes}

    def expected(self) -> Mapping[Key, str]:
        """The batches' sizes."""
        return self.sizes

    def packed(self, data_dir: Path | None) -> Path | None:
        """The archive, where it is all there is."""
        if data_dir is None or super().find(data_dir)[0] or not os.path.isfile(data_dir / self.archive[0]):
            return None
        return data_dir / self.archive[0]

    def find(self, data_dir: Path | None, part: str | None = None) -> tuple[dict[Key, Path], str]:
        """The batches' files; inside the archive where there are no others."""
        files, message = super().find(data_dir, part)
        if not files and (archive := self.packed(data_dir)) is not None:
            return {key: archive / self.below / key[1] for key in self.sizes if part in (None, key[0])}, ""
        return files, message

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """A row for each batch, or one for the archive."""
        if (archive := self.packed(data_dir)) is not None:
            return [(archive.name, size_text(archive.stat().st_size), self.archive[1])]
        return super().survey(data_dir)

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part, checked."""
        paths = [files[key] for key in self.sizes if key[0] == part]
        read = [self.batch(raw, path) for path, raw in zip(paths, contents(paths), strict=True)]
        return Arrays(np.concatenate([x for x, _ in read]), np.concatenate([y for _, y in read]))

    def batch(self, raw: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images ``(N, 3, 32, 32)`` and labels ``(N,)`` of one pickle.

        Raises:
            LabelSkewError: it is broken, or not such a batch.
        """
        content = pickles.read_dict(raw, path)
        x, y = content.get("data"), content.get(self.labels)
        if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != 3072 or not len(x):
            got = f"of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
            raise mistake(path, f"data is {got}", "an array (N, 3072)")
        if not isinstance(y, list) or len(y) != len(x):
            got = f"a list of {len(y)}" if isinstance(y, list) else type(y).__name__
            raise mistake(path, f"{self.labels} is {got}", f"a list of {len(x)} labels")
        last = len(self.class_names) - 1
        if wrong := [label for label in y if type(label) is not int or not 0 <= label <= last]:
            raise mistake(path, f"{self.labels} has {wrong[0]!r}", f"labels from 0 to {last}")
        return x.reshape(-1, 3, 32, 32), np.array(y, np.int64)

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write the extracted folder; 300 samples by default, 400 of CIFAR-100."""
        folder = fakes.fresh_folder(out) / self.below
        folder.mkdir()
        made = fakes.parts(samples, classes=len(self.class_names), shape=(3, 32, 32), seed=seed)
        for part, arrays in made.items():
            names = [name for of, name in self.sizes if of == part]
            for name, rows in zip(names, np.array_split(np.arange(len(arrays.y)), len(names)), strict=True):
                labels = arrays.y[rows].tolist()
                content = {"batch_label": f"{name} of a small copy", **self.more_labels(labels), self.labels: labels}
                content |= {"data": arrays.x[rows].reshape(-1, 3072), "filenames": [f"{i}.png" for i in rows]}
                _dump(content, folder / name)
        _dump({self.meta[1]: list(self.class_names)}, folder / self.meta[0])

    def more_labels(self, labels: list[int]) -> dict[str, Any]:
        """Labels in a batch beside those that are read."""
        return {}


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
    sizes: ClassVar[dict[Key, str]] = {("train", "train"): "155.2 MB", ("test", "test"): "31.0 MB"}
    labels = "fine_labels"
    meta = ("meta", "fine_label_names")

    def more_labels(self, labels: list[int]) -> dict[str, Any]:
        """The 20 superclasses, here simply five classes each."""
        return {"coarse_labels": [label // 5 for label in labels]}


def contents(paths: list[Path]) -> list[bytes]:
    """What the files hold; one whose folder is in a ``.tar.gz`` is read out of that, in one pass.

    Raises:
        LabelSkewError: a file or the archive cannot be read, or the archive lacks one.
    """
    archive = paths[0].parent.parent
    if not os.path.isfile(archive):
        return [_read(path) for path in paths]
    wanted = {path.relative_to(archive).as_posix() for path in paths}
    read: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|gz") as stream:
            for member in stream:
                name = member.name.removeprefix("./")
                if name in wanted and member.isfile() and member.size <= LARGEST:
                    file = stream.extractfile(member)
                    read[name] = b"" if file is None else file.read()
                if len(read) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise LabelSkewError(f"{archive}: is not a sound archive ({one_line(error)}); get it again") from error
    if missing := sorted(wanted - set(read)):
        raise LabelSkewError(f"{archive}: has no {', '.join(missing)}; get it again")
    return [read[path.relative_to(archive).as_posix()] for path in paths]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read ({error.strerror or error})") from error


def _dump(content: dict[str, Any], path: Path) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))  # the protocol of the real files
