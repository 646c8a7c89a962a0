"""P<clients>C<classes>: every client holds a fixed number of classes.

FedMR, TMLR 2024, section C.1.2. The authors' loop runs twice and assigns every sample to two clients; here each sample
has one client. ``assignment: niid_bench`` is the partition "#C = k" of Li, Diao, Chen and He, "Federated Learning on
Non-IID Data Silos: An Experimental Study", ICDE 2022. With the same generator it draws the same clients as the function
``partition_data_label_quantity`` of Flower's baseline ``niid_bench``.
"""

from typing import Literal

import numpy as np
from fl_labelskew_registry import mistake
from pydantic import Field

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import ByLabels, Indices, PartitionSeed, by_class, gather


def assign_classes(classes: int, clients: int, per_client: int, rng: np.random.Generator) -> list[list[int]]:
    """Classes of each client: in order until each is assigned, then random, without repetition in a client."""
    starts = range(0, clients * per_client, per_client)
    held = [list(range(start, min(start + per_client, classes))) for start in starts]
    for client in held:
        rest = np.setdiff1d(np.arange(classes), client)
        client.extend(int(c) for c in rng.choice(rest, per_client - len(client), replace=False))
    return held


def assign_niid_bench(classes: int, clients: int, per_client: int, rng: np.random.Generator) -> list[list[int]]:
    """Classes of each client: ``i mod classes`` for client ``i``, then random, without repetition in a client."""
    held = [[i % classes] for i in range(clients)]
    for client in held:
        while len(client) < per_client:
            c = int(rng.choice(classes))
            if c not in client:
                client.append(c)
    return held


def pcdd(
    labels: Indices,
    *,
    clients: int,
    classes_per_client: int,
    assignment: Literal["fedmr", "niid_bench"] = "fedmr",
    rng: np.random.Generator,
) -> list[Indices]:
    """Assign ``classes_per_client`` classes to each client, by :func:`assign_classes` or :func:`assign_niid_bench`.

    A class's samples are shuffled and split evenly, up to 1 sample. Raise LabelSkewError for unassigned classes, too
    many classes per client, or a client without samples.
    """
    classes, members = by_class("pcdd", labels, clients)
    if classes_per_client > len(classes):
        problem = f"classes_per_client={classes_per_client}, but the training data has {len(classes)} classes"
        raise mistake("partition pcdd", problem, f"{len(classes)} or less")
    if clients * classes_per_client < len(classes):
        problem = (
            f"{clients} clients of {classes_per_client} classes hold {clients * classes_per_client} of {len(classes)}"
        )
        use = f"classes_per_client={-(-len(classes) // clients)} or more"
        raise mistake("partition pcdd", f"{problem} classes, so the others would be in no client", use)
    assign = assign_niid_bench if assignment == "niid_bench" else assign_classes
    held = assign(len(classes), clients, classes_per_client, rng)
    if missing := set(range(len(classes))) - {c for client in held for c in client}:
        reason = "with assignment=niid_bench and fewer clients than classes"
        problem = f"no client holds class {classes[min(missing)]} ({len(missing)} in all) {reason}"
        raise mistake("partition pcdd", problem, f"assignment=fedmr or {len(classes)} clients")
    pieces: list[list[Indices]] = [[] for _ in range(clients)]
    for c, samples in enumerate(members):
        holders = [k for k in range(clients) if c in held[k]]
        for k, piece in zip(holders, np.array_split(rng.permutation(samples), len(holders)), strict=True):
            pieces[k].append(piece)
    return gather("pcdd", pieces, "its classes have fewer samples than holders; use fewer clients")


class PCDD(ByLabels):
    """Every client holds a fixed number of classes: FedMR's P<clients>C<classes>."""

    class Params(Params):
        classes_per_client: int = Field(ge=1, description="Classes that each client holds (FedMR: 2 to 5 of 10).")
        assignment: Literal["fedmr", "niid_bench"] = Field(
            "fedmr",
            description="First classes of the clients: fedmr: in order, until each class is taken; niid_bench: class i "
            "mod C for client i. Further classes are random.",
        )
        partition_seed: PartitionSeed = None

    divide = staticmethod(pcdd)
