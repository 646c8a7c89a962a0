"""Contracts of partitioners, data sets and networks, and the data that they exchange.

Notation: ``C`` classes, ``B`` samples of a batch, ``d`` features, ``K`` clients, ``N`` samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fl_labelskew_registry.errors import LabelSkewError
from fl_labelskew_registry.plugin import Plugin

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn


class Partitioner(Plugin):
    """Divides the training samples among clients."""

    class_names: Sequence[str] = ()
    """Of the data set, set before ``split`` is called."""
    client_names: Sequence[str] = ()
    """Of the ``K`` clients, unique, if the partition names them."""

    def split(
        self, labels: NDArray[Any], groups: NDArray[Any] | None, *, clients: int, rng: np.random.Generator
    ) -> list[NDArray[Any]]:
        """Sorted sample indices of each client, disjoint.

        Args:
            labels: ``(N,)`` int64.
            groups: ``(N,)`` int64 group of each sample (writer, role, centre), or None.
            clients: ``K``.
            rng: the only source of randomness.

        Raises:
            LabelSkewError: the data do not permit this partition.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Images:
    """Image files that are decoded on demand; ``len``, ``shape`` and indices work as for an array ``(N, C, H, W)``.

    Args:
        files: paths of the ``N`` samples.
        size: ``(C, H, W)`` of a sample.
        read: decodes a file to ``(C, H, W)`` uint8; if its second argument is true, augmented with draws of torch's
            generator. Picklable, because other processes call it. Raises LabelSkewError for an invalid image.
    """

    files: Sequence[str]
    size: tuple[int, int, int]
    read: Callable[[str, bool], Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(N, C, H, W)``."""
        return (len(self.files), *self.size)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: slice | NDArray[Any]) -> Images:
        rows = range(len(self))[index] if isinstance(index, slice) else index
        return replace(self, files=[self.files[int(row)] for row in rows])

    def copy(self) -> Images:
        """Return this object, which holds no samples."""
        return self


@dataclass
class Arrays:
    """One part of a data set: ``x`` ``(N, ...)`` uint8 or float32, or :class:`Images`; ``y`` and ``groups`` int64."""

    x: Any
    y: NDArray[Any]
    groups: NDArray[Any] | None = None


@dataclass
class Data:
    """A data set in memory.

    Args:
        train: training part.
        test: global test part.
        class_names: names of the ``C`` classes.
        mean: per channel (first axis of a sample), for ``x`` scaled to 0..1 if ``x`` is uint8; empty: do not normalise.
        std: per channel, like ``mean``.
        notes: text files to store with a run's results, by name, for example a drawn split.
        group_names: names of the numbers in ``groups``, for example hospitals; empty: no names.
        fingerprint: identifies these samples independently of the seed; empty: computed from both parts. Required if
            the seed decides the parts.
    """

    train: Arrays
    test: Arrays
    class_names: list[str]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    notes: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    group_names: Sequence[str] = ()


class Dataset(Plugin):
    """Reads or generates a data set.

    ``default_dir`` is its default folder; ``source`` states the origin and size of its files. ``picture_keys`` are the
    parameters that :meth:`picture` depends on, which model files store; empty if samples do not come from image files.
    """

    default_dir: ClassVar[str | None] = None
    source: ClassVar[str] = ""
    picture_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def measured(self) -> bool:
        """Whether mean and std are computed from the training part."""
        return False

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError with the missing files, their origin and their size, without reading data."""

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read everything into memory; may use the network only if ``download``.

        Raises LabelSkewError if files are missing or broken.
        """
        raise NotImplementedError

    def splits_off(self, data_dir: Path | None) -> bool:
        """Whether :meth:`load` splits off a test part, because the files in ``data_dir`` have none."""
        return False

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Like :meth:`load`, but without a split; override it together with :meth:`splits_off`."""
        return self.load(data_dir, download=download, seed=seed)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        """Like :meth:`check`, for the files that :meth:`load_test` needs."""
        self.check(data_dir, download=download)

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Only the global test part; ``train`` has no samples, ``(0, ...)``.

        Override it if the test part can be read without the training files. Raises as :meth:`load`.
        """
        data = self.load(data_dir, download=download, seed=seed)
        # copies: a slice would keep the whole training part in memory
        train = Arrays(data.train.x[:0].copy(), data.train.y[:0].copy())
        return replace(data, train=train)

    def picture(self, file: Path) -> NDArray[Any]:
        """An image file as a sample ``(C, H, W)`` uint8, processed as in :meth:`load` but not augmented.

        Override it if ``picture_keys`` is not empty; several threads call it. Raises LabelSkewError for invalid images.
        """
        raise NotImplementedError

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """Rows ``(item, found, expected)``, such as ``("training images", "49999", "50000")``, without decoding files.

        ``found`` is ``"missing"`` if nothing exists; ``expected`` is ``"any"`` if every value is valid. The data set is
        complete if all rows match.
        """
        try:
            self.check(data_dir, download=False)
        except LabelSkewError as error:
            return [("files", "missing", str(error))]
        return [("files", "found", "found")]

    def broken(self, data_dir: Path | None) -> list[str]:
        """A line for each broken file that :meth:`load` reads."""
        try:
            self.load(data_dir, download=False, seed=0)
        except LabelSkewError as error:
            return str(error).splitlines()
        return []

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write a small data set that :meth:`load` reads and a network can learn.

        Args:
            out: folder, created if missing, for a recipe's ``data_cache_dir``.
            samples: number in all parts together; default: the data set's choice.
            seed: not negative; equal seeds give equal files.

        Raises:
            LabelSkewError: the data set has no such writer, or ``samples`` is too small.
        """
        raise LabelSkewError(f"data set {type(self).__name__}: no small copy can be written of it")


class Network(Plugin):
    """Builds a network whose module has ``features(x) -> (B, d)`` and a ``classifier`` (``nn.Linear(d, C)``).

    The module's ``forward(x)`` returns logits, ``classifier(features(x))``. ``trained_params`` replace parameters that
    choose initial weights, such as a weights file, when a trained network is rebuilt.
    """

    trained_params: ClassVar[Mapping[str, Any]] = {}

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a freshly initialised module; its random draws use torch's generator, which the caller has seeded.

        Raises LabelSkewError if the network does not accept inputs of this shape.
        """
        raise NotImplementedError
