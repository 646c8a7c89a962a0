"""MNIST, Fashion-MNIST and EMNIST: grey images of 28x28 in IDX files.

Both layouts are read: the four files in the folder itself, as Debian's package has them, or in torchvision's
``<folder>/<name>/raw/``; each file plain or gzip. Format: LeCun, Cortes, Burges, "The MNIST database".

torchvision reads only plain files, in its own layout, which would mean an unpacked copy of Debian's folder; and its
import alone takes seconds and 160 MiB, several times what these files need.
"""

import gzip
import io
import math
import os
import string
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import Arrays, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data.torchvision_sets import Key, TorchvisionSet
from fl_labelskew_plugins.params import Params

FILES = {
    ("train", "x"): "train-images-idx3-ubyte",
    ("train", "y"): "train-labels-idx1-ubyte",
    ("test", "x"): "t10k-images-idx3-ubyte",
    ("test", "y"): "t10k-labels-idx1-ubyte",
}
FASHION = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
UNREADABLE = (OSError, EOFError, MemoryError, ValueError, zlib.error)


def read_idx(path: Path, dims: int) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes, plain or ``.gz``, as an array of ``dims`` dimensions.

    Raises:
        LabelSkewError: the file cannot be read, is cut short, or is not such a file.
    """
    try:
        shape = idx_shape(path)
        if len(shape) != dims:
            raise LabelSkewError(f"{path}: is not a complete IDX file of bytes in {dims} dimensions; get it again")
        values = np.empty(shape, np.uint8)
        rest = values.reshape(-1).data
        with _opened(path) as stream:
            stream.read(4 + 4 * dims)
            while n := stream.readinto(rest):
                rest = rest[n:]
            if rest or stream.read(1):
                raise EOFError(f"the header says {shape}, but the data are shorter or longer")
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        raise LabelSkewError(f"{path}: cannot be read ({reason}); make it readable, or get it again") from error
    return values


def idx_shape(path: Path) -> tuple[int, ...]:
    """The shape in the header of an IDX file of unsigned bytes; ``()`` unless the file is as long as that says.

    Raises:
        One of UNREADABLE: the file cannot be read.
    """
    with _opened(path) as stream:
        magic = stream.read(4)
        dims = magic[3] if magic[:3] == b"\0\0\x08" and len(magic) == 4 else 0
        shape = tuple(np.frombuffer(stream.read(4 * dims), ">u4").tolist())
    size = path.stat().st_size
    if path.suffix == ".gz":  # its last four bytes are the size of its content
        with path.open("rb") as raw:
            raw.seek(-4, os.SEEK_END)
            size = int.from_bytes(raw.read(), "little")
    return shape if size == 4 + 4 * dims + math.prod(shape) else ()


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


class MNIST(TorchvisionSet):
    """MNIST; samples are ``(1, 28, 28)`` uint8."""

    kind = "MNIST"
    below = "MNIST/raw"
    endings = (".gz", "")
    shape = (1, 28, 28)
    source = (
        "torchvision.datasets.MNIST or https://ossci-datasets.s3.amazonaws.com/mnist/, about 11 MB, or download: true"
    )
    class_names = tuple("0123456789")
    moments = ((0.1307,), (0.3081,))
    sizes: tuple[int, int] = 60_000, 10_000  # images of the real data set's two parts
    first_label: int = 0  # the files' number of class 0

    def files(self) -> Mapping[Key, str]:
        """The four files."""
        return FILES

    def expected(self) -> Mapping[Key, str]:
        """The shapes in the headers."""
        numbers = dict(zip(("train", "test"), self.sizes, strict=True))
        return {(part, xy): f"{numbers[part]}x28x28" if xy == "x" else str(numbers[part]) for part, xy in FILES}

    def facts(self, key: Key, path: Path) -> str:
        """The shape in the header, if the file is as long as that says."""
        try:
            return "x".join(map(str, idx_shape(path))) or "broken"
        except UNREADABLE:
            return "broken"

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part, checked."""
        images, labels = read_idx(files[part, "x"], 3), read_idx(files[part, "y"], 1)
        if images.shape[1:] != (28, 28) or not len(images):
            raise mistake(files[part, "x"], f"has images of shape {images.shape}", "(N, 28, 28)")
        if len(labels) != len(images):
            raise LabelSkewError(f"{files[part, 'y']}: {len(labels)} labels for {len(images)} images; get it again")
        first, last = self.first_label, self.first_label + len(self.class_names) - 1
        if not first <= labels.min() <= labels.max() <= last:
            bad = labels.max() if labels.max() > last else labels.min()
            raise mistake(files[part, "y"], f"has label {bad}", f"labels from {first} to {last}")
        return Arrays(images[:, None], labels.astype(np.int64) - first)


class FashionMNIST(MNIST):
    """Fashion-MNIST (FedMR's FMNIST, MAP's FaMnist); samples are ``(1, 28, 28)`` uint8. Xiao et al., 2017."""

    default_dir = "/usr/share/datasets/fashion-mnist"
    kind = "FashionMNIST"
    below = "FashionMNIST/raw"
    source = (
        "apt-get install dataset-fashion-mnist, torchvision.datasets.FashionMNIST or "
        "https://github.com/zalandoresearch/fashion-mnist, about 30 MB, or download: true"
    )
    class_names = tuple(FASHION.split(", "))
    moments = ((0.2860,), (0.3530,))


Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
UNMERGED = "".join(sorted(set(string.digits + string.ascii_letters) - set("cijklmopsuvwxyz")))
SPLITS: dict[Split, tuple[str, int, int]] = {  # classes, training and test images: Cohen et al., table II
    "byclass": (string.digits + string.ascii_uppercase + string.ascii_lowercase, 697_932, 116_323),
    "bymerge": (UNMERGED, 697_932, 116_323),
    "balanced": (UNMERGED, 112_800, 18_800),
    "letters": (string.ascii_lowercase, 124_800, 20_800),
    "digits": (string.digits, 240_000, 40_000),
    "mnist": (string.digits, 60_000, 10_000),
}


class EMNIST(MNIST):
    """EMNIST; samples are ``(1, 28, 28)`` uint8. Cohen et al., "EMNIST: extending MNIST to handwritten letters", 2017.

    Images lie on their side, rows and columns exchanged, as in the files and in torchvision. The split letters has
    classes 0 to 25; its files count from 1.
    """

    kind = "EMNIST"
    below = "EMNIST/raw"
    source = (
        "torchvision.datasets.EMNIST or https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip, about 560 MB, "
        "or download: true"
    )
    moments = ((0.1736,), (0.3317,))  # of byclass, in wide use

    class Params(Params):
        """Parameters of emnist."""

        split: Split = Field("balanced", description="Which of the six: 62, 47, 47, 26, 10 and 10 classes.")

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        classes, *sizes = SPLITS[self.params.split]
        self.class_names, self.sizes = tuple(classes), (sizes[0], sizes[1])
        self.first_label = int(self.params.split == "letters")

    def files(self) -> Mapping[Key, str]:
        """The split's four files."""
        return {key: f"emnist-{self.params.split}-{key[0]}-{name.partition('-')[2]}" for key, name in FILES.items()}

    def fetch(self, root: str) -> None:
        """Let torchvision download all six splits."""
        from torchvision import datasets

        datasets.EMNIST(root, split=self.params.split, train=True, download=True)
