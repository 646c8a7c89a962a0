"""D(beta): each class is divided among the clients in proportions from a Dirichlet distribution.

FedLC, "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022, section 5.1; also FedShift.
The balanced variant draws each client's class mix, as Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019.
"""

import numpy as np
from fl_labelskew_registry import LabelSkewError, mistake
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


def balanced_counts(sizes: Indices, clients: int, beta: float, rng: np.random.Generator) -> Indices:
    """Samples by class and client ``(C, K)``, with client totals that differ by at most 1.

    The target mix of client ``k`` is ``q_k ~ Dir(beta C p)``, with ``p`` the mix of the data. In each pass, clients
    request missing samples; an overdrawn class is shared in proportion to the requests. Finally, single samples go to
    clients by their largest mix.
    """
    available = sizes.copy()
    alpha = beta * len(sizes) * sizes / sizes.sum()
    mix = np.maximum(rng.dirichlet(alpha, size=clients).T, 1e-12)  # (C, K); every class stays available
    needed = np.full(clients, sizes.sum() // clients)
    needed[rng.permutation(clients)[: sizes.sum() % clients]] += 1
    counts = np.zeros((len(sizes), clients), np.int64)
    while True:
        shares = mix * (available > 0)[:, None]
        demand = shares / np.maximum(shares.sum(axis=0), 1e-300) * needed
        factor = np.minimum(1.0, available / np.maximum(demand.sum(axis=1), 1e-300))
        granted = np.floor(demand * factor[:, None] + 1e-9).astype(np.int64)
        # the 1e-9 above may round up one sample too many; the loop over single samples then replaces this pass
        if not granted.any() or (granted.sum(axis=1) > available).any() or (granted.sum(axis=0) > needed).any():
            break
        counts += granted
        available -= granted.sum(axis=1)
        needed -= granted.sum(axis=0)
    while needed.any():
        k = int(np.argmax(needed))
        c = int(np.argmax(mix[:, k] * (available > 0)))
        counts[c, k] += 1
        available[c] -= 1
        needed[k] -= 1
    return counts


def capped_pieces(
    members: list[Indices], clients: int, beta: float, rng: np.random.Generator
) -> tuple[Indices, list[list[Indices]]]:
    """Samples of each client ``(K,)``, and each class's piece per client; with ``N / K`` samples a client is full."""
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
    labels: Indices,
    *,
    clients: int,
    beta: float,
    min_samples: int = 1,
    balanced: bool = False,
    capped: bool = False,
    rng: np.random.Generator,
) -> list[Indices]:
    """Divide each class in proportions of concentration ``beta``, until each client has ``min_samples``.

    Raise LabelSkewError after ``MAX_DRAWS`` attempts, and for both ``balanced`` and ``capped``.
    """
    _, members = by_class("dirichlet", labels, clients)
    sizes = np.array([len(samples) for samples in members], dtype=np.int64)
    if clients * min_samples > len(labels):
        problem = f"min_samples={min_samples} for {clients} clients, but there are {len(labels)} training samples"
        raise mistake("partition dirichlet", problem, f"min_samples={len(labels) // clients} or less")
    if balanced and capped:
        raise LabelSkewError("partition dirichlet: balanced and capped exclude each other; use one of them")
    draw = balanced_counts if balanced else plain_counts
    for _ in range(MAX_DRAWS):
        if capped:
            totals, pieces = capped_pieces(members, clients, beta, rng)
        else:
            counts = draw(sizes, clients, beta, rng)
            totals = counts.sum(axis=0)
        if totals.min() >= min_samples:
            break
    else:
        raise LabelSkewError(
            f"partition dirichlet: no draw of {MAX_DRAWS} gave each of {clients} clients {min_samples} samples at "
            f"beta={beta:g}; use a larger beta, a smaller min_samples, fewer clients or balanced=true"
        )
    if not capped:
        cuts = np.cumsum(counts, axis=1)[:, :-1]
        pieces = [np.split(rng.permutation(samples), cut) for samples, cut in zip(members, cuts, strict=True)]
    return gather("dirichlet", [*zip(*pieces, strict=True)], "use min_samples=1 or more")


class Dirichlet(ByLabels):
    """Each class divided in proportions of a Dirichlet distribution: FedLC's D(beta)."""

    class Params(Params):
        """Parameters of dirichlet."""

        beta: float = Field(gt=0, le=1e6, description="Concentration: small is skewed (FedLC: 0.05 to 0.5).")
        min_samples: int = Field(1, ge=1, description="Draw again until every client has this many samples.")
        balanced: bool = Field(False, description="Whether client totals are equal, up to one sample.")
        capped: bool = Field(
            False, description="true: a client that has N / K samples gets no samples of further classes (NIID-Bench)."
        )
        partition_seed: PartitionSeed = None

    deal = staticmethod(dirichlet)
