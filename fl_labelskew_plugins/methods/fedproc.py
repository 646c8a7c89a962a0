"""FedProc: Prototypical Contrastive Federated Learning on Non-IID Data.

``schedule: constant`` is for FedMR (tables 9 and 10), best between 1e-5 and 1e-3.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method, Total
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import full_precision, global_prototypes, on_device, own_sums, sum_shapes, unit


def contrast_share(round: int, rounds: int, *, mu: float = 1.0) -> float:
    """Share of the contrastive loss in a round, ``alpha = mu (1 - t / T)``.

    >>> contrast_share(25, 100)
    0.75
    """
    return mu * (1 - round / rounds)


def prototype_contrast(
    features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor, *, temperature: float = 0.5
) -> Tensor:
    """Contrast each sample with the prototypes of all known classes, ``(B,)``; see :class:`FedProc`.

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64.
        prototypes: ``(C, d)``.
        known: ``(C,)`` bool, classes with a prototype; samples of other classes count 0.
        temperature: tau.

    >>> g = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> prototype_contrast(g, torch.tensor([0, 0]), g, torch.tensor([True, True]), temperature=1.0)
    tensor([0.3133, 1.3133])
    """
    with full_precision(features.device):
        z = unit(features)
        g = unit(prototypes).to(z.dtype).masked_fill(~known[:, None], 0)  # unknown rows may have any value, even NaN
        # without any prototype nothing is masked: a row of minus infinities would make the gradient NaN
        scores = (z.mm(g.T) / temperature).masked_fill(~known & known.any(), -torch.inf)
        return cross_entropy(scores, labels.masked_fill(~known[labels], -1), reduction="none", ignore_index=-1)


class FedProc(Method):
    r"""Prototypical contrast in local training, with global class prototypes.

    The loss begins with contrast and ends with classification; ``g`` are the prototypes:

    .. math::
        \mathcal{L} = \alpha \, \mathcal{L}_{con} + (1 - \alpha) \, \mathcal{L}_{ce}, \quad
        \alpha = \mu \, (1 - t / T), \quad
        \mathcal{L}_{con} = -\log \frac{\exp(\cos(h, g_y) / \tau)}{\sum_c \exp(\cos(h, g_c) / \tau)}

    With ``mu: 0``, the loss is bit-identical to plain cross-entropy, and clients send nothing. The first round has only
    cross-entropy.
    """

    class Params(params.Params):
        mu: float = Field(1.0, ge=0, le=1, description="share, or constant weight, of the contrastive loss; 0: none")
        schedule: Literal["linear", "constant"] = Field(
            "linear",
            description="linear: alpha = mu (1 - t/T), cross-entropy has 1 - alpha; constant: cross-entropy plus mu "
            "times the contrast (FedMR, tables 9 and 10: mu 1e-5 to 1e-3)",
        )
        temperature: float = Field(0.5, gt=0, description="of the cosines; the default is MOON's")

    uses_rounds = True
    paper = (
        "FedProc: Prototypical Contrastive Federated Learning on Non-IID Data, FGCS 2023, "
        "https://arxiv.org/abs/2109.12273"
    )
    sends: ClassVar[Mapping[str, str]] = {"sums": "prototypes", "counts": "counts"}

    def additive(self) -> bool:
        return bool(self.params.schedule == "constant" or self.params.mu == 0)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        p, device = self.params, batch.features.device
        if p.mu == 0 or "prototypes" not in client.shared:
            return {}
        known = on_device(client, "known", client.shared["known"], device)
        prototypes = on_device(client, "prototypes", client.shared["prototypes"], device)
        contrast = prototype_contrast(batch.features, batch.labels, prototypes, known, temperature=p.temperature).mean()
        linear = p.schedule == "linear"
        share = contrast_share(client.round, client.federation.rounds, mu=p.mu) if linear else p.mu
        return {"contrast": share * contrast}

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        if self.additive() or "prototypes" not in client.shared:
            return super().loss(batch, client)
        alpha = contrast_share(client.round, client.federation.rounds, mu=self.params.mu)
        known = on_device(client, "known", client.shared["known"], batch.labels.device)
        losses = cross_entropy(self.calibrate(batch.logits, client), batch.labels, reduction="none")
        weighted = ((1 - alpha * known[batch.labels]) * losses).mean()
        return {"cross_entropy": weighted, **self.terms(batch, client)}

    def contribution_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return sum_shapes(federation) if self.params.mu > 0 else {}

    def contribute(self, client: ClientView) -> dict[str, Tensor]:
        return own_sums(client) if self.params.mu > 0 else {}

    def combine(self, total: Total, shared: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return global_prototypes(total, shared)

    def deviations(self) -> list[str]:
        if self.params.mu == 0:
            return []
        lines = ["prototypes and contrast use the network's features; the paper uses a projection head's outputs"]
        if self.params.schedule == "constant":
            lines.append("schedule: constant keeps the weight of the contrast; in the paper it falls to 0")
        return lines
