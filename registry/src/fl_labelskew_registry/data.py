"""What a partitioner, a data set and a network implement, and what a data set is.

Nothing here imports torch, numpy or fedml when it runs; the types below are for readers and type checkers.
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
    """Deals training samples to clients."""

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
            LabelSkewError: the partition cannot be made.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Images:
    """Pictures in files, decoded when they are needed: for a data set that does not fit into memory.

    ``len``, ``shape`` and indexing with a slice or an array of indices are those of an array ``(N, C, H, W)``.

    Args:
        files: of the ``N`` samples.
        size: ``(C, H, W)`` of a sample as the network gets it.
        read: makes ``(C, H, W)`` uint8 of a file; where its second argument is true, augmented with what torch's
            generator draws. It is called in other processes, so it has to be picklable. Raises LabelSkewError where
            the file is no sound picture.
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
        """The same."""
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
        class_names: one for each of the ``C`` classes.
        mean: per channel (first axis of a sample), in units of ``x`` scaled to 0..1 where ``x`` is uint8; empty for
            samples that are no measurements, such as numbers of characters: the network gets them as they are.
        std: per channel, like ``mean``.
        notes: text files that a run keeps beside its results, by name, such as a split that was drawn.
        group_names: one for each number in ``groups``, such as hospitals; empty: groups have no names.
        fingerprint: what tells these samples from others of a data set of this name, whatever the seed; empty: it is
            taken from the two parts as they are. A data set that draws its parts with the seed has to give one.
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
    """Reads a data set from disk, or makes it.

    ``default_dir`` is the folder where it lies unless a recipe says otherwise; ``source`` says where its files come
    from and how large they are. ``picture_keys``: the parameters that :meth:`picture` depends on, which go into the
    files of models, so that they can be used on new pictures; none: samples are not made of picture files.
    """

    default_dir: ClassVar[str | None] = None
    source: ClassVar[str] = ""
    picture_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def measured(self) -> bool:
        """Whether mean and std are those of the training part at hand, as the data set knows no others."""
        return False

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError, naming the missing files, where they come from and their size; reads no data."""

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read everything into memory; may contact the network only if ``download``.

        Raises:
            LabelSkewError: files are missing or broken.
        """
        raise NotImplementedError

    def splits_off(self, data_dir: Path | None) -> bool:
        """Whether :meth:`load` splits the test part off, since the files in ``data_dir`` have no test part."""
        return False

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """As :meth:`load`, but nothing is split off: where :meth:`splits_off` is true, one part has all samples.

        Override it together with :meth:`splits_off`: a few samples, too few to split, may be all that a model is
        tested on.
        """
        return self.load(data_dir, download=download, seed=seed)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        """As :meth:`check`, for :meth:`load_test`, where that needs fewer files."""
        self.check(data_dir, download=download)

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """The global test part alone, for a server without training data: ``train`` has no samples, ``(0, ...)``.

        Override it where the training files need not be there.

        Raises:
            LabelSkewError: files are missing or broken.
        """
        data = self.load(data_dir, download=download, seed=seed)
        # copies: a slice would keep the whole training part in memory
        train = Arrays(data.train.x[:0].copy(), data.train.y[:0].copy())
        return replace(data, train=train)

    def picture(self, file: Path) -> NDArray[Any]:
        """A picture file as a sample ``(C, H, W)`` uint8, made as those of :meth:`load` are, not augmented.

        Override it where ``picture_keys`` has any; called in several threads.

        Raises:
            LabelSkewError: the file is no sound picture.
        """
        raise NotImplementedError

    def survey(self, data_dir: Path | None) -> list[tuple[str, str, str]]:
        """Rows ``(what, found, expected)``, such as ``("training images", "49999", "50000")``; nothing is decoded.

        ``found`` is ``"missing"`` where there is nothing, ``expected`` is ``"any"`` where anything found is right. The
        data set is complete where every row holds what is expected.
        """
        try:
            self.check(data_dir, download=False)
        except LabelSkewError as error:
            return [("files", "missing", str(error))]
        return [("files", "found", "found")]

    def broken(self, data_dir: Path | None) -> list[str]:
        """A line for each broken file among all that :meth:`load` reads; by default what stops :meth:`load`."""
        try:
            self.load(data_dir, download=False, seed=0)
        except LabelSkewError as error:
            return str(error).splitlines()
        return []

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write a small data set that :meth:`load` reads, and whose content a network can learn.

        Args:
            out: the folder that a recipe's ``data_cache_dir`` would name; it is made if it does not exist.
            samples: in all parts together; default: the data set's own choice.
            seed: not negative; the same files for the same seed.

        Raises:
            LabelSkewError: there is no such writer, or there are too few ``samples``.
        """
        raise LabelSkewError(f"data set {type(self).__name__}: no small copy can be written of it")


class Network(Plugin):
    """Builds a network whose module has ``features(x) -> (B, d)`` and a ``classifier`` (``nn.Linear(d, C)``).

    The module's ``forward(x)`` returns logits, ``classifier(features(x))``. ``trained_params`` stand in for parameters
    that choose the weights to begin with, such as a file of them, where a trained network is built again.
    """

    trained_params: ClassVar[Mapping[str, Any]] = {}

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A freshly initialised module; randomness comes from torch's generator, which the caller has seeded.

        Raises:
            LabelSkewError: the network does not take inputs of this shape.
        """
        raise NotImplementedError
