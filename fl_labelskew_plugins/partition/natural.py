"""natural: one client for each group that the data set itself has (writer, role, centre, generated client)."""

import numpy as np
from fl_labelskew_registry import Partitioner, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.checks import check_size


def natural(groups: NDArray[np.int64] | None, *, clients: int) -> list[NDArray[np.int64]]:
    """Sorted sample indices of each client; client ``k`` is the group with the ``k``-th smallest number.

    Args:
        groups: ``(N,)`` group of each sample, or None.
        clients: ``K``, the number of groups.

    Raises:
        LabelSkewError: no groups, or another number of them.
    """
    if groups is None:
        other = "one with groups (such as synthetic), or another partition (such as dirichlet or pcdd)"
        raise mistake("partition natural", "this data set has no groups", other)
    check_size("natural", len(groups), clients)
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) != clients:
        wrong = f"{clients} clients, but the training data has {len(names)} groups"
        raise mistake("partition natural", wrong, f"client_num_in_total={len(names)}")
    order = np.argsort(groups, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(sizes)[:-1])


class Natural(Partitioner):
    """One client for each group."""

    class Params(Params):
        """No parameters."""

    def split(
        self,
        labels: NDArray[np.int64],
        groups: NDArray[np.int64] | None,
        *,
        clients: int,
        rng: np.random.Generator,
    ) -> list[NDArray[np.int64]]:
        """See :func:`natural`."""
        return natural(groups, clients=clients)
