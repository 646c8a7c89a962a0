"""C<classes>-<clients>-<shards>: each class is cut into equal shards, and each client gets some at random.

FedRS, KDD 2021, section 5.2; Cifar10-100-5 is 100 clients, 50 shards per class and 5 shards per client.
"""

import numpy as np
from fl_labelskew_registry import LabelSkewError
from pydantic import Field

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import ByLabels, Indices, by_class, gather


def shards(labels: Indices, *, clients: int, shards_per_client: int, rng: np.random.Generator) -> list[Indices]:
    """Give each client ``shards_per_client`` shards; a class has ``K * shards_per_client / C``.

    A class's samples are shuffled and cut evenly, up to one sample. A client may get two shards of one class. Raise
    LabelSkewError if the number of shards is not a multiple of ``C``, or a client is empty.
    """
    classes, members = by_class("shards", labels, clients)
    total = clients * shards_per_client
    if total % len(classes):
        problem = f"{clients} clients with {shards_per_client} shards need {total} shards of {len(classes)} classes"
        use = f"make client_num_in_total * shards_per_client a multiple of {len(classes)}"
        raise LabelSkewError(f"partition shards: {problem}; {use}")
    per_class = total // len(classes)
    pieces = [piece for samples in members for piece in np.array_split(rng.permutation(samples), per_class)]
    dealt = rng.permutation(len(pieces)).reshape(clients, shards_per_client)
    return gather("shards", [[pieces[i] for i in row] for row in dealt], "its shards are empty; use fewer shards")


class Shards(ByLabels):
    """Each class cut into equal shards, assigned at random: FedRS's partition."""

    class Params(Params):
        shards_per_client: int = Field(ge=1, description="Shards of each client (FedRS: 5, 2; 20 for Cifar100).")

    divide = staticmethod(shards)
