"""Mean and standard deviation of a training part."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 4096  # samples that are counted at a time, which bounds memory


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
