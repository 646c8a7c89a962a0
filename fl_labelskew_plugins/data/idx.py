"""MNIST, Fashion-MNIST and EMNIST: grey images of 28x28 in IDX files.

Both layouts are read: the four files in the folder itself, as Debian's package has them, or in torchvision's
``<folder>/<name>/raw/``; each file plain or gzip. Format: LeCun, Cortes, Burges, "The MNIST database".
"""

import gzip
import io
import math
import os
import string
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from fl_labelskew_registry import Arrays, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import Files, Key
from fl_labelskew_plugins.params import Params

FILES = {
    ("train", "x"): "train-images-idx3-ubyte",
    ("train", "y"): "train-labels-idx1-ubyte",
    ("test", "x"): "t10k-images-idx3-ubyte",
    ("test", "y"): "t10k-labels-idx1-ubyte",
}
FASHION = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
DEFLATE_LIMIT = 1040  # gzip cannot shrink more than about this much, so a header that says so is wrong


def read_idx(path: Path, dims: int) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes, plain or ``.gz``, as an array of ``dims`` dimensions.

    Raises:
        LabelSkewError: the file cannot be read, is cut short, or is not such a file.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return _read(path, cast("io.BufferedIOBase", stream), dims)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LabelSkewError(f"{path}: broken gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read(path: Path, stream: io.BufferedIOBase, dims: int) -> NDArray[np.uint8]:
    head = stream.read(4 + 4 * dims)
    if head[:4] != bytes((0, 0, 8, dims)):
        raise LabelSkewError(
            f"{path}: starts with {head[:4].hex() or 'nothing'}; an IDX file of unsigned bytes in {dims} "
            f"dimension{'s' * (dims > 1)} starts with 000008{dims:02x}"
        )
    shape = tuple(np.frombuffer(head[4:], dtype=">u4", count=(len(head) - 4) // 4).tolist())
    size = math.prod(shape)
    possible = path.stat().st_size * (DEFLATE_LIMIT if path.suffix == ".gz" else 1)
    got = 0
    if len(shape) == dims and size <= possible:  # otherwise the header is broken; allocate nothing
        values = np.empty(shape, np.uint8)
        flat = values.reshape(-1)
        while got < size and (n := stream.readinto(flat[got:].data)):
            got += n
        if got == size and not stream.read(1):
            return values
    raise LabelSkewError(f"{path}: the header says {shape}, but the data is shorter or longer; fetch it again")


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write ``values``, uint8 of any shape, as a plain IDX file."""
    head = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(head + np.ascontiguousarray(values).tobytes())


def idx_shape(path: Path) -> tuple[int, ...] | None:
    """What an IDX file's header says, or None where there is none, or the file's end does not fit it."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            magic = stream.read(4)
            dims = magic[3] if len(magic) == 4 and magic[:3] == b"\0\0\x08" else 0
            shape = tuple(np.frombuffer(stream.read(4 * dims), ">u4").tolist())
        size = path.stat().st_size
        if path.suffix == ".gz":  # its last four bytes are the size of what it holds
            with path.open("rb") as raw:
                raw.seek(-4, os.SEEK_END)
                size = int.from_bytes(raw.read(), "little")
    except (EOFError, zlib.error, OSError, ValueError):
        return None
    return shape if shape and size == (4 + 4 * dims + math.prod(shape)) % 2**32 else None


class MNIST(Files):
    """MNIST; samples are ``(1, 28, 28)`` uint8."""

    kind = "MNIST"
    below = "MNIST/raw"
    endings = (".gz", "")
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
        """Shapes that the headers say."""
        numbers = dict(zip(("train", "test"), self.sizes, strict=True))
        return {(part, xy): _shape_text((numbers[part], 28, 28)[: 3 if xy == "x" else 1]) for part, xy in FILES}

    def facts(self, key: Key, path: Path) -> str:
        """The shape that the header says, if the file is as long as that."""
        return _shape_text(idx_shape(path))

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part, checked."""
        images, labels = read_idx(files[part, "x"], 3), read_idx(files[part, "y"], 1)
        if images.shape[1:] != (28, 28) or not len(images):
            raise mistake(files[part, "x"], f"has images of shape {images.shape}", "(N, 28, 28)")
        if len(labels) != len(images):
            raise LabelSkewError(f"{files[part, 'y']}: {len(labels)} labels for {len(images)} images; fetch it again")
        first, last = self.first_label, self.first_label + len(self.class_names) - 1
        if not first <= labels.min() <= labels.max() <= last:
            bad = labels.max() if labels.max() > last else labels.min()
            raise mistake(files[part, "y"], f"has label {bad}", f"labels from {first} to {last}")
        return Arrays(images[:, None], labels.astype(np.int64) - first)

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write the four files, plain, in torchvision's layout; 300 samples by default."""
        folder = fakes.fresh_folder(out) / self.below
        folder.mkdir(parents=True)
        names = self.files()
        for part, arrays in fakes.parts(samples, classes=len(self.class_names), shape=(1, 28, 28), seed=seed).items():
            write_idx(folder / names[part, "x"], arrays.x[:, 0])
            write_idx(folder / names[part, "y"], (arrays.y + self.first_label).astype(np.uint8))


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "broken" if shape is None else "x".join(map(str, shape))


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
