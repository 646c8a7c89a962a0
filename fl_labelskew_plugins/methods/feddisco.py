"""FedDisco: Federated Learning with Discrepancy-Aware Collaboration.

The formulas are those of the authors' code (MediaBrain-SJTU/FedDisco), since the paper was not available to us.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from fl_labelskew_registry.contracts import Aggregation, ClientView, Federation, Method, Total
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import added, check_choice

Metric = Literal["kl", "l1", "l2", "cosine"]
METRICS = ("kl", "l1", "l2", "cosine")
WEIGHT, SUM, SAMPLES = "weight", "discrepancy", "samples"


def discrepancy(counts: Tensor, *, metric: Metric = "kl") -> Tensor:
    r"""Distance of a client's class distribution from the uniform one.

    .. math:: \text{kl: } \sum_c p_c \ln (C p_c), \quad \text{l1, l2: } \lVert p - 1/C \rVert_{1, 2}, \quad
        \text{cosine: } 1 - \cos(p, 1/C), \quad p_c = n_c / \sum_j n_j

    ``counts``: ``(C,)``, the client's training samples per class.

    >>> discrepancy(torch.tensor([3, 1]), metric="l1")
    tensor(0.5000, dtype=torch.float64)
    >>> discrepancy(torch.tensor([5, 0]))
    tensor(0.6931, dtype=torch.float64)
    """
    check_choice("metric", metric, METRICS)
    p = counts.double() / counts.sum().clamp(min=1)
    uniform = torch.full_like(p, 1 / len(p))
    distance: Tensor
    if metric == "kl":
        distance = torch.special.xlogy(p, p * len(p)).sum()
    elif metric == "cosine":
        distance = 1 - cosine_similarity(p, uniform, dim=0)
    else:
        distance = torch.linalg.vector_norm(p - uniform, ord=int(metric[1]))
    return distance


class FedDisco(Method):
    r"""Weights of the uploads by size and class distribution.

    A client with a class distribution far from uniform gets less weight:

    .. math:: w_k \propto \max(\nu_k - a \, \delta_k + b, 0)

    ``nu_k`` is the client's share of the round's samples, and ``delta_k`` its :func:`discrepancy`; with ``metric: kl``,
    ``delta_k`` is divided by the sum over the round's clients. Local training is that of FedAvg. With ``a: 0`` and
    ``b: 0``, the weights are those of FedAvg.
    """

    class Params(params.Params):
        a: float = Field(0.5, ge=0, description="factor of the discrepancy (authors' code: 0.5)")
        b: float = Field(0.1, ge=0, description="added to each weight (authors' code: 0.1)")
        metric: Metric = Field("kl", description="distance of the class distribution from the uniform one")

    paper = (
        "FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229"
    )
    aggregation: Aggregation = "declared"
    weight_name = WEIGHT
    individual = True
    sends: ClassVar[Mapping[str, str]] = {SUM: "counts", WEIGHT: "counts"}

    def opening_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return {SUM: ()} if self.params.metric == "kl" else {}

    def opening(self, client: ClientView) -> dict[str, Tensor]:
        return {SUM: discrepancy(client.counts).cpu()} if self.params.metric == "kl" else {}

    def open(self, total: Total) -> Mapping[str, Tensor]:
        """The sum over all clients, each from 0 to the largest possible value ``ln C``."""
        assert total.federation is not None
        most = math.log(total.federation.num_classes)
        sent = (min(max(float(one.tensors[SUM]), 0.0), most) for one in total.contributions if SUM in one.tensors)
        if not total.tensors:
            return {}
        # without the samples of silos that were excluded since a client joined
        return {
            SUM: torch.tensor(added(sent), dtype=torch.float64),
            SAMPLES: torch.tensor(total.federation.num_samples),
        }

    def contribution_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return {WEIGHT: ()}

    def contribute(self, client: ClientView) -> dict[str, Tensor]:
        """The client's weight, divided by a number that is the same for all clients."""
        run = client.federation
        rounds_part = run.num_clients / run.clients_per_round
        far = discrepancy(client.counts, metric=self.params.metric).cpu()
        samples = run.num_samples
        if self.params.metric == "kl":
            total, samples = client.shared[SUM].cpu(), max(int(client.shared[SAMPLES]), 1)
            far = far * rounds_part / total if total > 0 else torch.zeros_like(far)
        weight = rounds_part * client.num_samples / samples - self.params.a * far + self.params.b
        return {WEIGHT: (weight / (rounds_part + self.params.b)).clamp(0, 1)}  # above 1: not yet part of the total

    def deviations(self) -> list[str]:
        return [
            "if only some clients take part in a round, shares of samples and sums of discrepancies are estimated from "
            "those of all clients; the authors' code computes them from the round's clients"
        ]
