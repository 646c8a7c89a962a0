"""Mean and standard deviation of training samples, and how a recipe replaces those of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import Data, Images, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.machine.text import counted

CHUNK = 4096  # samples that are counted at a time, which bounds memory
Numbers = tuple[float, ...]
Moments = tuple[Numbers, Numbers]
"""Mean and standard deviation of each entry of a sample's first axis, in units of ``x / 255`` of uint8 samples."""
IMAGENET: Moments = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Of ImageNet's training part, in wide use."""
Word = Sequence[float] | Literal["imagenet", "data"] | None
"""What a recipe says of mean or std; None: nothing."""


@dataclass(frozen=True)
class MomentSums:
    """What a mean and a standard deviation are made of; those of several parts of a data set can be put together.

    Args:
        count: values of each entry of a sample's first axis.
        first: ``(A,)`` sums of the values: int64 and exact of uint8 samples, else float64.
        second: ``(A,)`` of int64 the sums of the values' squares, of float64 those of their distances from their mean.
    """

    count: int
    first: NDArray[Any]
    second: NDArray[Any]

    @property
    def exact(self) -> bool:
        """Whether these are of uint8 samples."""
        return self.first.dtype.kind != "f"

    def floats(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums of the values (of uint8 ones in units of ``x / 255``) and of their squared distances from the mean."""
        if not self.exact:
            return self.first, self.second
        first, second = self.first.astype(object), self.second.astype(object)  # integers without a largest one
        return (first / 255).astype(float), ((self.count * second - first**2) / (self.count * 255**2)).astype(float)


def sums(x: NDArray[Any] | Images) -> MomentSums:
    """The sums of samples ``(N, A, ...)``, uint8 or float.

    Raises:
        LabelSkewError: they are pictures that stay in files.
    """
    if isinstance(x, Images):
        raise mistake("data_args.mean", "data: pictures that stay in files are not measured", "numbers, or imagenet")
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
    for part in parts:  # a second pass: the difference of two large sums would lose digits
        second += np.square(part - centre).sum(axis=axes, dtype=np.float64)
    return MomentSums(count, first, second)


def pooled(parts: Sequence[MomentSums]) -> Moments:
    """Of all parts as if their samples lay in one place; of uint8 ones to the last bit. A constant has std 1."""
    count = sum(part.count for part in parts)
    if all(part.exact for part in parts):
        columns = ((part.first.astype(object), part.second.astype(object)) for part in parts)
        parts = [MomentSums(count, *(np.sum(column, axis=0) for column in zip(*columns, strict=True)))]
    known = [(part.count, *part.floats()) for part in parts]
    mean = np.sum([first for _, first, _ in known], axis=0) / count
    second = np.sum([second + n * np.square(first / n - mean) for n, first, second in known], axis=0)
    std = np.sqrt(second / count)
    return tuple(mean.tolist()), tuple(np.where(std > 1e-12, std, 1.0).tolist())


def moments(x: NDArray[Any]) -> Moments:
    """Those of samples ``(N, A, ...)``, uint8 or float. A constant has std 1."""
    return pooled([sums(x)])


def normalised(data: Data, mean: Word, std: Word) -> Data:
    """The data with what a recipe says of mean and std, each: numbers, ``imagenet``, or ``data``: of its training part.

    Data without a training sample count by their test samples.

    Raises:
        LabelSkewError: there is no number for each channel, nor one for all; or these samples are no measurements.
    """
    if mean is None and std is None:
        return data
    if not data.mean:
        raise mistake("data_args.mean", "these samples are no measurements and stay as they are", "null")
    x = (data.train if len(data.train.y) else data.test).x
    measured = moments(x) if "data" in (mean, std) else IMAGENET
    channels = x.shape[1]

    def chosen(key: str, word: Word, known: Numbers, measured: Numbers, imagenet: Numbers) -> Numbers:
        if word is None:
            return known
        numbers = measured if word == "data" else imagenet if word == "imagenet" else tuple(map(float, word))
        if len(numbers) not in (1, channels):
            what = f"{word}: {counted(len(numbers), 'number')} for samples of {counted(channels, 'channel')}"
            raise mistake(f"data_args.{key}", what, "a number for each channel, or one for all")
        return numbers

    return replace(
        data,
        mean=chosen("mean", mean, data.mean, measured[0], IMAGENET[0]),
        std=chosen("std", std, data.std, measured[1], IMAGENET[1]),
    )
