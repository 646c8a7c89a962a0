"""Mean and standard deviation of a training part, or those that a recipe names in their place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import Data, Images, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.machine.text import counted

CHUNK = 4096  # samples that are counted at a time, which bounds memory
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's pictures, as in torchvision."""
Statistics = Sequence[float] | Literal["imagenet", "data"] | None


def moments(x: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each entry of a sample's first axis.

    Args:
        x: ``(N, A, ...)`` uint8 (results are in units of ``x / 255``) or float. A constant has standard deviation 1.
    """
    count, first, second = x[:, :1].size, np.zeros(x.shape[1]), np.zeros(x.shape[1])
    axes = (0, *range(2, x.ndim))
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    for start in range(0, len(x), CHUNK):
        first += (x[start : start + CHUNK] / scale).sum(axis=axes, dtype=np.float64)
    mean = first / count
    centre = mean.reshape(-1, *[1] * (x.ndim - 2))
    for start in range(0, len(x), CHUNK):  # a second pass: the difference of two large sums would lose digits
        second += np.square(x[start : start + CHUNK] / scale - centre).sum(axis=axes, dtype=np.float64)
    std = np.sqrt(second / count)
    return tuple(mean.tolist()), tuple(np.where(std > 1e-12, std, 1.0).tolist())


def normalised(data: Data, mean: Statistics, std: Statistics) -> Data:
    """The same samples with the mean and standard deviation that ``data_args`` name.

    Args:
        data: a data set; one without training samples counts by its test samples.
        mean: per channel, the first axis of a sample, in units of 0..1 for uint8; ``imagenet`` and ``data`` (of these
            samples) stand for the standard deviation as well; None: what the data set says itself.
        std: per channel, where ``mean`` is a list.

    Raises:
        LabelSkewError: they are of another number of channels, or do not go with these samples.
    """
    if mean is None:
        return data
    x = (data.train if len(data.train.y) else data.test).x
    if not data.mean:
        raise mistake("data_args.mean", "these samples are no measurements and stay as they are", "null")
    if mean == "data" and isinstance(x, Images):
        raise mistake("data_args.mean", "data: these pictures stay in files", "imagenet, or a list of numbers")
    if isinstance(mean, str):
        first, second = moments(x) if mean == "data" else IMAGENET
    else:
        assert std is not None  # or the recipe would have been refused
        assert not isinstance(std, str)
        first, second = tuple(mean), tuple(std)
    if len(first) != x.shape[1]:
        numbers, channels = counted(len(first), "number"), counted(x.shape[1], "channel")
        raise mistake("data_args.mean", f"{mean}: {numbers} for samples of {channels}", "one for each, or data")
    return replace(data, mean=first, std=second)
