"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28x28 in 10 classes, in IDX files.

Both layouts are read: the four files in the folder itself, as Debian's package has them, or in torchvision's
``<folder>/<name>/raw/``; each file plain or gzip. Format: LeCun, Cortes, Burges, "The MNIST database".
"""

import gzip
import io
import math
import os
import zlib
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError
from numpy.typing import NDArray

from fl_labelskew_plugins.params import Params

FILES = {
    ("train", "x"): "train-images-idx3-ubyte",
    ("train", "y"): "train-labels-idx1-ubyte",
    ("test", "x"): "t10k-images-idx3-ubyte",
    ("test", "y"): "t10k-labels-idx1-ubyte",
}
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


def one_line(error: BaseException) -> str:
    """An exception's text without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class MNIST(Dataset):
    """MNIST; samples are ``(1, 28, 28)`` uint8."""

    folder: ClassVar[str] = "MNIST"
    source: ClassVar[str] = (
        "torchvision.datasets.MNIST or https://ossci-datasets.s3.amazonaws.com/mnist/, about 11 MB, or download: true"
    )
    class_names: ClassVar[list[str]] = [str(c) for c in range(10)]
    moments: ClassVar[tuple[float, float]] = (0.1307, 0.3081)

    class Params(Params):
        """No parameters."""

    def candidates(self, data_dir: Path | None) -> list[Path]:
        """The folders that are looked in, best first."""
        root = data_dir if data_dir is not None else Path(self.default_dir) if self.default_dir else None
        return [] if root is None else [root, root / self.folder / "raw"]

    def find(self, data_dir: Path | None, part: str | None = None) -> tuple[dict[tuple[str, str], Path], str]:
        """The four files, or one part's two; where some are missing, no files and a message that says which."""
        files = {key: name for key, name in FILES.items() if part in (None, key[0])}
        folders = self.candidates(data_dir)
        if not folders:
            return {}, f"data set {self.folder}: data_args.data_cache_dir is not set; get the files from {self.source}"
        missing: dict[Path, list[str]] = {}
        for folder in folders:
            found = {
                key: path
                for key, name in files.items()
                for path in (folder / f"{name}.gz", folder / name)  # the plain file comes last and wins
                if os.path.isfile(path)  # unlike Path.is_file, False where the folder may not be entered
            }
            if len(found) == len(files):
                return found, ""
            missing[folder] = [name for key, name in files.items() if key not in found]
        nearest = min(missing.values(), key=len)
        return {}, (
            f"data set {self.folder}: no {', '.join(f'{name}[.gz]' for name in nearest)} "
            f"in {' or '.join(str(folder) for folder in folders)}; get them from {self.source}"
        )

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if files are missing, unless they may be downloaded to ``data_dir``."""
        self._check(data_dir, download, None)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        """As :meth:`check`, for the two files of the test part."""
        self._check(data_dir, download, "test")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read the four files; ``seed`` is not used."""
        files = self._fetched(data_dir, download, None)
        return self._data(self.part(files, "train"), self.part(files, "test"))

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read the two files of the test part; ``seed`` is not used."""
        test = self.part(self._fetched(data_dir, download, "test"), "test")
        return self._data(Arrays(test.x[:0], test.y[:0]), test)

    def _check(self, data_dir: Path | None, download: bool, part: str | None) -> None:
        found, message = self.find(data_dir, part)
        if not found and not (download and data_dir is not None):
            raise LabelSkewError(message)

    def _fetched(self, data_dir: Path | None, download: bool, part: str | None) -> dict[tuple[str, str], Path]:
        self._check(data_dir, download, part)
        files, _ = self.find(data_dir, part)
        if not files and data_dir is not None:
            self.download(data_dir)
            files, message = self.find(data_dir, part)
            if not files:
                raise LabelSkewError(message)
        return files

    def _data(self, train: Arrays, test: Arrays) -> Data:
        mean, std = self.moments
        return Data(train, test, list(self.class_names), mean=(mean,), std=(std,))

    def download(self, data_dir: Path) -> None:
        """Fetch the files to torchvision's layout under ``data_dir``.

        Raises:
            LabelSkewError: they cannot be fetched.
        """
        from torchvision import datasets

        try:
            getattr(datasets, self.folder)(str(data_dir), train=True, download=True)
        except Exception as error:  # torchvision lets errors of the network, the disk and the archive through
            raise LabelSkewError(
                f"data set {self.folder}: the download to {data_dir} failed ({one_line(error)}); "
                f"get the files from {self.source.removesuffix(', or download: true')}"
            ) from error

    def part(self, files: dict[tuple[str, str], Path], part: str) -> Arrays:
        """One part, checked."""
        images, labels = read_idx(files[part, "x"], 3), read_idx(files[part, "y"], 1)
        if images.shape[1:] != (28, 28) or not len(images):
            raise LabelSkewError(f"{files[part, 'x']}: images of shape {images.shape}; (N, 28, 28) would be right")
        if len(labels) != len(images):
            raise LabelSkewError(f"{files[part, 'y']}: {len(labels)} labels for {len(images)} images; fetch it again")
        if labels.max() >= len(self.class_names):
            raise LabelSkewError(f"{files[part, 'y']}: has label {labels.max()}; 0 to 9 would be right")
        return Arrays(images[:, None], labels.astype(np.int64))


class FashionMNIST(MNIST):
    """Fashion-MNIST (FedMR's FMNIST, MAP's FaMnist); samples are ``(1, 28, 28)`` uint8. Xiao et al., 2017."""

    default_dir: ClassVar[str | None] = "/usr/share/datasets/fashion-mnist"
    folder: ClassVar[str] = "FashionMNIST"
    source: ClassVar[str] = (
        "apt-get install dataset-fashion-mnist, torchvision.datasets.FashionMNIST or "
        "https://github.com/zalandoresearch/fashion-mnist, about 30 MB, or download: true"
    )
    class_names: ClassVar[list[str]] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]
    moments: ClassVar[tuple[float, float]] = (0.2860, 0.3530)
