"""Q(a): samples sorted by label are cut into K*a sets, and each client gets a of them at random.

FedLC, ICML 2022, section 5.1; first used by McMahan et al. (FedAvg), AISTATS 2017, with a = 2.
"""

import numpy as np
from fl_labelskew_registry import mistake
from pydantic import Field

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import ByLabels, Indices, by_class, gather


def quantity(labels: Indices, *, clients: int, sets_per_client: int, rng: np.random.Generator) -> list[Indices]:
    """Give each client ``a = sets_per_client`` sets. Raise LabelSkewError for more sets than samples.

    Samples of a class are shuffled before the cut. Sets differ by at most one sample; one may span two classes.
    """
    _, members = by_class("quantity", labels, clients)
    sets = clients * sets_per_client
    if sets > len(labels):
        problem = f"{clients} clients with {sets_per_client} sets need {sets}, but there are {len(labels)} samples"
        raise mistake("partition quantity", problem, f"sets_per_client={len(labels) // clients} or less")
    pieces = np.array_split(np.concatenate([rng.permutation(samples) for samples in members]), sets)
    dealt = rng.permutation(sets).reshape(clients, sets_per_client)
    return gather("quantity", [[pieces[i] for i in row] for row in dealt], "use fewer clients")


class Quantity(ByLabels):
    """Sorted samples cut into equal sets, assigned at random: FedLC's Q(a)."""

    class Params(Params):
        sets_per_client: int = Field(ge=1, description="a of Q(a), sets of each client (FedLC: 2 to 20).")

    divide = staticmethod(quantity)
