"""MNIST, Fashion-MNIST and EMNIST: grey images of 28x28 in IDX files.

torchvision reads neither gzip files nor the folder of the Debian package, so we read them. Format: LeCun,
Cortes, Burges, "The MNIST database".
"""

import gzip
import math
import string
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import Arrays, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data.fakes import PARTS
from fl_labelskew_plugins.data.files import unpacks, valid_file
from fl_labelskew_plugins.data.torchvision_sets import TorchvisionSet
from fl_labelskew_plugins.machine.files import open_regular
from fl_labelskew_plugins.params import Params

FASHION = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read unsigned bytes, plain or ``.gz``. Raise LabelSkewError for an invalid file."""
    with (
        valid_file(path, "IDX file", "the published file"),
        open(path, "rb", opener=open_regular) as file,
        gzip.open(file) if path.suffix == ".gz" else nullcontext(file) as stream,
    ):
        kind, dims = stream.read(3), stream.read(1)
        if kind != b"\0\0\x08" or not b"\1" <= dims <= b"\4":
            raise ValueError("it is not an array of bytes with 1 to 4 dimensions")
        shape = np.frombuffer(stream.read(4 * dims[0]), ">u4", dims[0]).tolist()
        size = math.prod(shape)
        unpacks(path, size, "its samples", 100, "the published file")
        return np.frombuffer(bytearray(stream.read(size + 1)), np.uint8).reshape(shape)


def idx_files(start: dict[str, str], sizes: tuple[int, int]) -> dict[str, dict[str, str]]:
    """Names and shapes of the files of both parts; ``start``: prefix of the names, by part."""
    return {
        part: {f"{start[part]}-images-idx3-ubyte": f"{size}x28x28", f"{start[part]}-labels-idx1-ubyte": str(size)}
        for part, size in zip(PARTS, sizes, strict=True)
    }


class MNIST(TorchvisionSet):
    """MNIST; samples are ``(1, 28, 28)`` uint8."""

    kind = "MNIST"
    below = "MNIST/raw"
    endings = (".gz", "")
    files = idx_files({"train": "train", "test": "t10k"}, (60_000, 10_000))
    shape = (1, 28, 28)
    published = "https://ossci-datasets.s3.amazonaws.com/mnist/, about 11 MB"
    class_names = tuple("0123456789")
    moments = ((0.1307,), (0.3081,))
    first_label: int = 0  # label of class 0 in the files

    def facts(self, path: Path) -> str:
        try:
            return "x".join(map(str, read_idx(path).shape))
        except LabelSkewError:
            return "broken"

    def part(self, files: Mapping[str, Path], part: str) -> Arrays:
        of_images, of_labels = (files[name] for name in self.files[part])
        images, labels = read_idx(of_images), read_idx(of_labels)
        if images.shape[1:] != (28, 28) or not len(images):
            raise mistake(of_images, f"has images of shape {images.shape}", "(N, 28, 28)")
        if labels.shape != (len(images),):
            raise LabelSkewError(f"{of_labels}: labels of shape {labels.shape} for {len(images)} images; get it again")
        first, last = self.first_label, self.first_label + len(self.class_names) - 1
        if not first <= labels.min() <= labels.max() <= last:
            bad = labels.max() if labels.max() > last else labels.min()
            raise mistake(of_labels, f"has label {bad}", f"labels from {first} to {last}")
        return Arrays(images[:, None], labels.astype(np.int64) - first)


class FashionMNIST(MNIST):
    """Fashion-MNIST (FedMR's FMNIST, MAP's FaMnist); samples are ``(1, 28, 28)`` uint8. Xiao et al., 2017."""

    default_dir = "/usr/share/datasets/fashion-mnist"
    kind = "FashionMNIST"
    below = "FashionMNIST/raw"
    published = "https://github.com/zalandoresearch/fashion-mnist, about 30 MB, or apt install dataset-fashion-mnist"
    class_names = tuple(FASHION.split(", "))
    moments = ((0.2860,), (0.3530,))


Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
UNMERGED = "".join(sorted(set(string.digits + string.ascii_letters) - set("cijklmopsuvwxyz")))
SPLITS: dict[Split, tuple[str, tuple[int, int]]] = {  # classes, training and test images: Cohen et al., table II
    "byclass": (string.digits + string.ascii_uppercase + string.ascii_lowercase, (697_932, 116_323)),
    "bymerge": (UNMERGED, (697_932, 116_323)),
    "balanced": (UNMERGED, (112_800, 18_800)),
    "letters": (string.ascii_lowercase, (124_800, 20_800)),
    "digits": (string.digits, (240_000, 40_000)),
    "mnist": (string.digits, (60_000, 10_000)),
}


class EMNIST(MNIST):
    """EMNIST; samples are ``(1, 28, 28)`` uint8. Cohen et al., "EMNIST: extending MNIST to handwritten letters", 2017.

    Images are transposed, as in torchvision.
    """

    kind = "EMNIST"
    below = "EMNIST/raw"
    published = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip, about 560 MB"
    moments = ((0.1736,), (0.3317,))  # commonly used values, of the split byclass

    class Params(Params):
        split: Split = Field("balanced", description="One of six splits, with 62, 47, 47, 26, 10 and 10 classes.")

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        split = self.params.split
        classes, sizes = SPLITS[split]
        self.class_names, self.first_label = tuple(classes), int(split == "letters")  # its files count from 1
        self.files = idx_files({part: f"emnist-{split}-{part}" for part in PARTS}, sizes)
        self.downloads = ({"train": True, "split": split},)  # downloads all six
