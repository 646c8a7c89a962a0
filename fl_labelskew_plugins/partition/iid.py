"""iid: equal parts of shuffled samples, without label skew."""

import numpy as np

from fl_labelskew_plugins import params
from fl_labelskew_plugins.partition.base import ByLabels, Indices, check_size


def iid(labels: Indices, *, clients: int, rng: np.random.Generator) -> list[Indices]:
    """Divide shuffled samples; sizes differ by at most 1. Raises as :func:`.check_size`."""
    check_size("iid", len(labels), clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)).astype(np.int64), clients)]


class IID(ByLabels):
    """Equal parts of shuffled samples."""

    Params = params.Params
    divide = staticmethod(iid)
