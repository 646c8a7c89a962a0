"""iid: shuffled samples in equal parts; no label skew, the reference of every table."""

import numpy as np
from numpy.typing import NDArray

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.by_labels import ByLabels
from fl_labelskew_plugins.partition.checks import check_size


def iid(labels: NDArray[np.int64], *, clients: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Sorted sample indices of each client; disjoint, together all samples, sizes differ by at most 1.

    Args:
        labels: ``(N,)``; only their number counts.
        clients: ``K``.
        rng: the only source of randomness.

    Raises:
        LabelSkewError: fewer samples than clients.
    """
    check_size("iid", len(labels), clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)).astype(np.int64), clients)]


class IID(ByLabels):
    """Equal parts of shuffled samples."""

    class Params(Params):
        """No parameters."""

    deal = staticmethod(iid)
