"""D(beta): each class is divided in proportions from a Dirichlet distribution (FedLC, section 5.1; FedShift)."""

import numpy as np
from fl_labelskew_registry import mistake
from pydantic import Field

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import ByLabels, Indices, PartitionSeed, by_class, gather

MAX_DRAWS = 1000


def plain_counts(sizes: Indices, clients: int, beta: float, rng: np.random.Generator) -> Indices:
    """Samples by class and client ``(C, K)``: ``p_c ~ Dir(beta)`` over clients, cut at ``round(n_c cumsum(p_c))``."""
    shares = rng.dirichlet(np.full(clients, beta), size=len(sizes))
    cuts = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
    cuts[:, -1] = sizes  # shares sum to 1 only up to rounding
    return np.diff(cuts, axis=1, prepend=0)


def capped_pieces(
    members: list[Indices], clients: int, beta: float, rng: np.random.Generator
) -> tuple[Indices, list[list[Indices]]]:
    """Numbers of samples ``(K,)``, and indices by class and client, as ``capped`` in :class:`Dirichlet`."""
    cap = sum(len(samples) for samples in members) / clients
    totals = np.zeros(clients, np.int64)
    pieces: list[list[Indices]] = []
    for samples in members:
        order = rng.permutation(samples)
        shares = (rng.dirichlet(np.full(clients, beta)) + 1e-300) * (totals < cap)  # never all 0
        cuts = (np.cumsum(shares / shares.sum()) * len(samples)).astype(np.int64)[:-1]
        pieces.append(np.split(order, cuts))
        totals += np.diff(cuts, prepend=0, append=len(samples))
    return totals, pieces


def dirichlet(
    labels: Indices, *, clients: int, beta: float, min_samples: int = 1, capped: bool = False, rng: np.random.Generator
) -> list[Indices]:
    """Divide each class in proportions from Dirichlet(``beta``), drawn until each client has ``min_samples``.

    Raise LabelSkewError after ``MAX_DRAWS`` draws.
    """
    _, members = by_class("dirichlet", labels, clients)
    sizes = np.array([len(samples) for samples in members], dtype=np.int64)
    if clients * min_samples > len(labels):
        problem = f"min_samples={min_samples} for {clients} clients, but there are {len(labels)} training samples"
        raise mistake("partition dirichlet", problem, f"min_samples={len(labels) // clients} or less")
    for _ in range(MAX_DRAWS):
        if capped:
            totals, pieces = capped_pieces(members, clients, beta, rng)
        else:
            counts = plain_counts(sizes, clients, beta, rng)
            totals = counts.sum(axis=0)
        if totals.min() >= min_samples:
            break
    else:
        problem = f"no draw of {MAX_DRAWS} gave each of {clients} clients {min_samples} samples at beta={beta:g}"
        raise mistake("partition dirichlet", problem, "a larger beta, a smaller min_samples or fewer clients")
    if not capped:
        cuts = np.cumsum(counts, axis=1)[:, :-1]
        pieces = [np.split(rng.permutation(samples), cut) for samples, cut in zip(members, cuts, strict=True)]
    return gather("dirichlet", [*zip(*pieces, strict=True)], "use min_samples=1 or more")


class Dirichlet(ByLabels):
    """Each class divided in proportions of a Dirichlet distribution: FedLC's D(beta)."""

    class Params(Params):
        beta: float = Field(gt=0, le=1e6, description="Concentration: small is skewed (FedLC: 0.05 to 0.5).")
        min_samples: int = Field(1, ge=1, description="Draw again until every client has this many samples.")
        capped: bool = Field(
            False, description="true: a client that has N / K samples gets no samples of further classes (NIID-Bench)."
        )
        partition_seed: PartitionSeed = None

    divide = staticmethod(dirichlet)
