"""Mean and standard deviation of samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import Data, Images, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.machine.text import counted

CHUNK = 4096  # samples per step, to limit memory
Moments = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std per channel, in units of x / 255 for uint8
IMAGENET: Moments = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # commonly used
Word = Sequence[float] | Literal["imagenet", "data"] | None


@dataclass(frozen=True)
class MomentSums:
    """Sums ``first`` ``(A,)`` of ``count`` values per entry of a sample's first axis, and ``second`` ``(A,)``.

    Of uint8 samples, exact int64 sums and sums of squares; else float64 sums and sums of squared distances to the mean.
    """

    count: int
    first: NDArray[Any]
    second: NDArray[Any]

    @property
    def exact(self) -> bool:
        return self.first.dtype.kind != "f"

    def floats(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums of values (uint8 in units of ``x / 255``) and of squared distances from the mean."""
        if not self.exact:
            return self.first, self.second
        first, second = self.first.astype(object), self.second.astype(object)  # Python integers do not overflow
        return (first / 255).astype(float), ((self.count * second - first**2) / (self.count * 255**2)).astype(float)

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and std per entry."""
        first, second = self.floats()
        return first / self.count, np.sqrt(second / self.count)


def sums(x: NDArray[Any] | Images) -> MomentSums:
    """Sums over samples ``(N, A, ...)``, uint8 or float. Raise LabelSkewError for images in files."""
    if isinstance(x, Images):
        raise mistake("data_args.mean", "data: not supported for images in files", "numbers, or imagenet")
    count, axes = x[:, :1].size, (0, *range(2, x.ndim))
    parts = [x[start : start + CHUNK] for start in range(0, len(x), CHUNK)]
    if x.dtype == np.uint8:
        firsts = [part.sum(axis=axes, dtype=np.int64) for part in parts]
        seconds = [np.square(part, dtype=np.uint32).sum(axis=axes, dtype=np.int64) for part in parts]
        return MomentSums(count, np.sum(firsts, axis=0), np.sum(seconds, axis=0))
    first, second = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for part in parts:
        first += part.sum(axis=axes, dtype=np.float64)
    centre = (first / count).reshape(-1, *[1] * (x.ndim - 2))
    for part in parts:  # second pass: the difference of two large sums would lose digits
        second += np.square(part - centre).sum(axis=axes, dtype=np.float64)
    return MomentSums(count, first, second)


def merged(parts: Sequence[MomentSums]) -> MomentSums:
    """Sums over all parts together; exact for uint8."""
    count = sum(part.count for part in parts)
    if all(part.exact for part in parts):
        columns = ((part.first.astype(object), part.second.astype(object)) for part in parts)
        return MomentSums(count, *(np.sum(column, axis=0) for column in zip(*columns, strict=True)))
    known = [(part.count, *part.floats()) for part in parts]
    total = np.sum([first for _, first, _ in known], axis=0)
    second = np.sum([second + n * np.square(first / n - total / count) for n, first, second in known], axis=0)
    return MomentSums(count, total, second)


def pooled(parts: Sequence[MomentSums]) -> Moments:
    """Moments over all parts together; exact for uint8. A constant has std 1."""
    mean, std = merged(parts).moments()
    return tuple(mean.tolist()), tuple(np.where(std > 1e-12, std, 1.0).tolist())


def moments(x: NDArray[Any]) -> Moments:
    """Moments of samples ``(N, A, ...)``, uint8 or float. A constant has std 1."""
    return pooled([sums(x)])


def normalised(data: Data, mean: Word, std: Word) -> Data:
    """Apply a recipe's mean and std; ``data``: moments of the training part, or of the test part without one."""
    if mean is None and std is None:
        return data
    if not data.mean:
        raise mistake("data_args.mean", "samples of this kind (such as text) cannot be normalised", "null")
    x = (data.train if len(data.train.y) else data.test).x
    of_data = moments(x) if "data" in (mean, std) else IMAGENET
    channels, made = x.shape[1], [data.mean, data.std]
    for i, (key, word) in enumerate((("mean", mean), ("std", std))):
        if word is not None:
            known = {"data": of_data[i], "imagenet": IMAGENET[i]}
            made[i] = known[word] if isinstance(word, str) else tuple(map(float, word))
            if len(made[i]) not in (1, channels):
                problem = f"{word}: {counted(len(made[i]), 'number')} for samples of {counted(channels, 'channel')}"
                raise mistake(f"data_args.{key}", problem, "a number for each channel, or one for all")
    return replace(data, mean=made[0], std=made[1])
