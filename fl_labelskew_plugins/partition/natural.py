"""natural: one client per group of the data set (writer, role, centre, generated client)."""

from fl_labelskew_registry import Partitioner, mistake
from numpy.random import Generator

from fl_labelskew_plugins import params
from fl_labelskew_plugins.partition.base import Indices, by_class


class Natural(Partitioner):
    """One client for each group."""

    Params = params.Params

    def split(self, labels: Indices, groups: Indices | None, *, clients: int, rng: Generator) -> list[Indices]:
        """Client ``k`` is the group with the ``k``-th smallest number. Raise LabelSkewError for another ``clients``."""
        if groups is None:
            alternative = "one with groups (such as synthetic), or another partition (such as dirichlet or pcdd)"
            raise mistake("partition natural", "this data set has no groups", alternative)
        names, members = by_class("natural", groups, clients)
        if len(names) != clients:
            problem = f"{clients} clients, but the training data has {len(names)} groups"
            raise mistake("partition natural", problem, f"client_num_in_total={len(names)}")
        return members
