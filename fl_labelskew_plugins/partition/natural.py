"""natural: one client per group of the data set (writer, role, centre, generated client)."""

import numpy as np
from fl_labelskew_registry import Partitioner, mistake

from fl_labelskew_plugins import params
from fl_labelskew_plugins.partition.base import Indices, check_size


def natural(groups: Indices | None, *, clients: int) -> list[Indices]:
    """Sorted sample indices of each client; client ``k`` is the group with the ``k``-th smallest number.

    Args:
        groups: ``(N,)`` group of each sample, or None.
        clients: ``K``, the number of groups.

    Raises:
        LabelSkewError: no groups, or ``clients`` is not their number.
    """
    if groups is None:
        alternative = "one with groups (such as synthetic), or another partition (such as dirichlet or pcdd)"
        raise mistake("partition natural", "this data set has no groups", alternative)
    check_size("natural", len(groups), clients)
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) != clients:
        problem = f"{clients} clients, but the training data has {len(names)} groups"
        raise mistake("partition natural", problem, f"client_num_in_total={len(names)}")
    order = np.argsort(groups, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(sizes)[:-1])


class Natural(Partitioner):
    """One client for each group."""

    Params = params.Params

    def split(
        self, labels: Indices, groups: Indices | None, *, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        """See :func:`natural`."""
        return natural(groups, clients=clients)
