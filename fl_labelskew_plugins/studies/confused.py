"""Confusion matrices of the final models of a report's rows, summed over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_labelskew_plugins.machine.text import clean

if TYPE_CHECKING:
    from fl_labelskew_plugins.studies.finished import Run

PAIRS = 10
"""Confused pairs that are listed instead of a matrix of many classes."""


class Pair(NamedTuple):
    """A class, what its samples were predicted as, how many, and their share of the class in per cent."""

    label: str
    predicted: str
    samples: int
    share: float


class Confusion(NamedTuple):
    """The sum of some runs' matrices.

    Args:
        names: of the ``C`` classes.
        counts: ``(C, C)``; entry ``[c, p]``: test samples of class c that were predicted as p.
        runs: how many.
    """

    names: Sequence[str]
    counts: NDArray[np.int64]
    runs: int

    @property
    def shares(self) -> NDArray[np.float64]:
        """``(C, C)``, in per cent of the class; NaN for no samples."""
        shares = 100 * self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        return np.where(self.counts == 0, np.nan, shares)

    def pairs(self) -> list[Pair]:
        """The pairs that are confused most, by share of the class, at most :data:`PAIRS`.

        >>> confusion = Confusion(["cat", "dog", "bird"], np.array([[6, 4, 0], [1, 9, 0], [0, 0, 0]]), runs=1)
        >>> for pair in confusion.pairs(): print(*pair)
        cat dog 4 40.0
        dog cat 1 10.0
        """
        wrong = np.where(np.eye(len(self.counts), dtype=bool) | np.isnan(self.shares), 0, self.shares)
        order = np.argsort(-wrong, axis=None, kind="stable")[: min(PAIRS, int((wrong > 0).sum()))]
        places = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [Pair(self.names[c], self.names[p], int(self.counts[c, p]), float(wrong[c, p])) for c, p in places]


def summed(runs: Sequence[Run]) -> Confusion | None:
    """The sum over the seeds of a row; None if none of its runs has a matrix."""
    matrices = [run.confusion for run in runs if len(run.confusion)]
    if not matrices:
        return None
    classes = len(matrices[0])
    counts = [np.array(matrix, np.int64) for matrix in matrices if len(matrix) == classes]
    names = next((run.class_names for run in runs if len(run.class_names) == classes), [*map(str, range(classes))])
    return Confusion([clean(name, 40) for name in names], np.sum(counts, axis=0), len(counts))
