"""FedMR: Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping.

Prototypes: algorithm 1; ``mu1`` and ``mu2`` per data set: tables 9 and 10; ``share_prototypes``: table 5; ``lite``:
table 11. Gradients of features that hardly vary grow by up to ``1 / sqrt(eps)``.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method, Total
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params, seeds
from fl_labelskew_plugins.ops import (
    check_choice,
    class_sums,
    full,
    full_precision,
    global_prototypes,
    on_device,
    one_hot,
    own_sums,
    sum_shapes,
    value_with_gradient,
)

Scale = Literal["code", "paper"]
Negatives = Literal["all", "observed"]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return a.reshape(-1).dot(b.reshape(-1))


def intra_class_loss(
    features: Tensor, labels: Tensor, *, scale: Scale = "code", eps: float = 1e-8, num_classes: int | None = None
) -> Tensor:
    r"""Decorrelate feature dimensions within each class (eq. 3).

    .. math:: \text{paper: } \frac{1}{|C|} \sum_c \Bigl\lVert \frac{\hat Z_c^\top \hat Z_c}{N_c - 1} \Bigr\rVert_F^2
        \qquad \text{code: } \frac{1}{\sum_c N_c} \sum_c \frac{1}{d (d - 1)} \sum_{j \ne l}
        (\hat Z_c^\top \hat Z_c)_{jl}^2

    ``Zhat_c``: features of class ``c`` minus their mean, divided by the square root of (variance + ``eps``). Classes
    with one sample in the batch are ignored. All classes share one ``(B, B)`` Gram matrix, whose norm equals that of
    the ``(d, d)`` one. The same pass computes the gradient, without second derivative.

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64.
        scale: ``code`` or ``paper``.
        eps: added to the unbiased variance, for constant dimensions.
        num_classes: ``C``, if known, to save time.

    >>> intra_class_loss(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    check_choice("scale", scale, ("code", "paper"))
    d = features.shape[1]
    if len(labels) == 0 or (d == 1 and scale == "code"):
        return features[:0].sum()  # no sample, or no pair of dimensions: a zero with a gradient
    with torch.no_grad(), full_precision(features.device):
        z = full(features)
        if num_classes is None:  # number each class by its first sample
            labels, num_classes = (labels[:, None] == labels).byte().argmax(dim=1), len(labels)
        member = one_hot(labels, num_classes, z.dtype)  # (B, C)
        per_class = member.T
        n = member.sum(dim=0)[:, None]  # (C, 1)
        m = (n - 1).clamp(min=1)
        centred = torch.addmm(z, member, per_class.mm(z) / n.clamp(min=1), alpha=-1)
        squares = per_class.mm(centred.square())
        raised = squares / m + eps
        inverse_std = member.mm(raised.rsqrt())
        zhat = centred * inverse_std
        gram = zhat.mm(zhat.T)
        if scale == "code":
            weight = 1 / ((n * (n > 1)).sum().clamp(min=1) * (d * (d - 1)))
            masked = gram * member.mm(per_class)
            diagonal = squares / raised  # sum of zhat^2, the diagonal of the (d, d) matrix
            value = (_dot(masked, gram) - _dot(diagonal, diagonal)) * weight
        else:
            weight = 1 / (n > 1).sum().clamp(min=1)
            masked = gram * (member / m.square().T).mm(per_class)
            diagonal = torch.zeros_like(squares)
            value = _dot(masked, gram) * weight
        if not features.requires_grad:
            return value
        # the gradient goes through zhat, then through the standard deviation. The mean contributes 0, because the
        # columns of the masked product sum to 0 in each class. The diagonal depends on the standard deviation, too.
        slope = masked.mm(zhat)
        factor = member.mm(per_class.mm(slope * zhat) / m + diagonal * (eps / raised))
        gradient = torch.addcmul(slope, zhat, factor, value=-1) * (inverse_std * (4 * weight))
    return value_with_gradient(features, value, gradient)


def inter_class_loss(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    known: Tensor,
    *,
    negatives: Negatives = "all",
    observed: Tensor | None = None,
) -> Tensor:
    """Keep each sample closer to its own class's prototype than to the others (eq. 4, see :class:`FedMR`).

    The mean is over all pairs of classes ``(i, j)``: ``i`` is known and occurs in the batch, and ``j`` is another known
    class among the negatives. Without pairs the loss is 0. The same pass computes the gradient, with respect to
    ``features`` only.

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64.
        prototypes: ``(C, d)``.
        known: ``(C,)`` bool, classes with a prototype.
        negatives: ``all`` known classes, or the ``observed`` ones among them.
        observed: ``(C,)`` bool, classes of the client; default: those in the batch.

    >>> z, g = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> inter_class_loss(z, torch.tensor([0]), g, torch.tensor([True, True]))
    tensor(2.)
    """
    check_choice("negatives", negatives, ("all", "observed"))
    with torch.no_grad(), full_precision(features.device):
        z = full(features)
        g = prototypes.to(z.dtype).masked_fill(~known[:, None], 0)  # unknown rows may have any value, even NaN
        member = one_hot(labels, len(g), z.dtype)
        n = member.sum(dim=0)
        negative = known if negatives == "all" else known & (n > 0 if observed is None else observed)
        anchor, negative = ((n > 0) & known).to(z.dtype), negative.to(z.dtype)
        pairs = anchor.dot(negative.sum() - negative)
        weight = member.mv(anchor / n.clamp(min=1)) / pairs.clamp(min=1)
        distance = torch.cdist(z, g, compute_mode="donot_use_mm_for_euclid_dist")
        margin = distance.gather(1, labels[:, None]) - distance  # 0 for the sample's own class
        active = (margin > 0) * (weight[:, None] * negative)
        value = _dot(active, margin)
        if not features.requires_grad:
            return value
        pull = torch.addcmul(active, member, active.sum(dim=1, keepdim=True), value=-1)
        pull = (pull / distance).masked_fill(distance == 0, 0)  # at a prototype, the distance has no direction
        gradient = torch.addcmul(pull.mm(g), z, pull.sum(dim=1, keepdim=True), value=-1)
    return value_with_gradient(features, value, gradient)


class FedMR(Method):
    r"""Manifold reshaping in local training, with global class prototypes.

    Equation 3, the intra-class loss over the classes of a batch, with features standardised per class and dimension:

    .. math::
        \mathcal{L}_{intra} = \frac{1}{|C_k|} \sum_{c \in C_k} \lVert M_c \rVert_F^2, \quad
        M_c = \frac{1}{N_c - 1} \sum_{i=1}^{N_c} \hat z_{c,i} \, \hat z_{c,i}^\top

    Equation 4, the inter-class loss, with the global prototypes ``g``:

    .. math::
        \mathcal{L}_{inter} = \frac{1}{|C_k| (|C_k| - 1)} \sum_{i \ne j} \frac{1}{N_i} \sum_{n=1}^{N_i}
        \max(\lVert z_n - g_i \rVert - \lVert z_n - g_j \rVert, 0)

    Equation 5, the sum:

    .. math:: \mathcal{L} = \mathcal{L}_{ce} + \mu_1 \mathcal{L}_{intra} + \mu_2 \mathcal{L}_{inter}

    With ``mu1: 0`` and ``mu2: 0``, the loss is bit-identical to plain cross-entropy. The inter-class loss starts in the
    second round, with the first prototypes. If it is off (``mu2: 0`` or ``lite: 0``), clients send no prototypes.
    """

    class Params(params.Params):
        mu1: float = Field(0.01, ge=0, description="weight of the intra-class loss; 0: none")
        mu2: float = Field(1e-4, ge=0, description="weight of the inter-class loss; 0: none")
        scale: Scale = Field(
            "code", description="form of the intra-class loss; code: as the authors compute it; paper: eq. 3"
        )
        eps: float = Field(1e-8, gt=0, description="added to a feature's variance within a class, intra-class loss")
        negatives: Negatives = Field("all", description="inter-class loss against all known classes, or observed ones")
        lite: int | None = Field(
            None, ge=0, description="inter-class loss on n random samples of a batch; default: all"
        )
        share_prototypes: float = Field(1.0, ge=0, le=1, description="fraction of the clients that submit prototypes")
        prototypes: Literal["after", "running"] = Field(
            "after", description="after: one pass with the final weights (algorithm 1); running: during the last epoch"
        )

    paper = (
        "Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping, TMLR 2024, "
        "https://arxiv.org/abs/2405.18983"
    )
    sends: ClassVar[Mapping[str, str]] = {"sums": "prototypes", "counts": "counts"}

    @property
    def inter(self) -> bool:
        """Whether the inter-class loss, the only user of prototypes, is on."""
        return bool(self.params.mu2 > 0 and self.params.lite != 0)

    def shares(self, client: ClientView) -> bool:
        """Whether this client submits prototypes: a random set of clients does, the same in all rounds (table 5)."""
        fraction, run = self.params.share_prototypes, client.federation
        if fraction >= 1 or not self.inter:
            return self.inter
        number = math.floor(fraction * run.num_clients + 0.5)
        return client.id in seeds.python_random(run.seed, "fedmr/share").sample(range(run.num_clients), number)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        p, terms, classes = self.params, {}, len(client.counts)
        if p.prototypes == "running" and batch.last_epoch and self.shares(client):
            sums = class_sums(batch.features.detach(), batch.labels, classes)
            old = client.scratch.get("fedmr.sums")
            client.scratch["fedmr.sums"] = sums if old is None else (old[0] + sums[0], old[1] + sums[1])
        if p.mu1 > 0:
            intra = intra_class_loss(batch.features, batch.labels, scale=p.scale, eps=p.eps, num_classes=classes)
            terms["intra"] = p.mu1 * intra
        if self.inter and "prototypes" in client.shared:
            terms["inter"] = p.mu2 * self._inter(batch.features, batch.labels, client)
        return terms

    def _inter(self, features: Tensor, labels: Tensor, client: ClientView) -> Tensor:
        lite, device = self.params.lite, features.device
        if lite is not None and lite < len(labels):
            picked = torch.randperm(len(labels), generator=client.generator, device=client.generator.device)[:lite]
            features, labels = features[picked.to(device)], labels[picked.to(device)]
        return inter_class_loss(
            features,
            labels,
            on_device(client, "prototypes", client.shared["prototypes"], device),
            on_device(client, "known", client.shared["known"], device),
            negatives=self.params.negatives,
            observed=on_device(client, "counts", client.counts, device) > 0,
        )

    def contribution_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return sum_shapes(federation) if self.inter else {}

    def contribute(self, client: ClientView) -> dict[str, Tensor]:
        if not self.shares(client):
            return {}
        if self.params.prototypes == "after":
            return own_sums(client)
        if client.scratch.get("fedmr.sums") is None:
            return {}
        sums, counts = client.scratch["fedmr.sums"]
        return {"sums": sums, "counts": counts}

    def combine(self, total: Total, shared: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return global_prototypes(total, shared)

    def deviations(self) -> list[str]:
        lines = []
        if self.params.scale == "code" and self.params.mu1 > 0:
            lines.append("scale: code is the intra-class loss of the authors' code, not eq. 3 as printed")
        if self.params.scale == "paper" and self.params.mu1 > 0:
            lines.append(
                "with scale: paper, the variance is divided by n - 1; the paper prints 1/n, for which lemma 1 fails"
            )
        if self.params.eps != 1e-8 and self.params.mu1 > 0:
            lines.append(f"eps: {self.params.eps:g} is added to the variance; the authors' code adds 1e-8")
        if self.params.negatives == "all" and self.inter:
            lines.append(
                "with negatives: all, missing classes are negatives, too; eq. 4 as printed uses only observed classes"
            )
        if self.params.prototypes == "running" and self.inter:
            lines.append(
                "with prototypes: running, they are averages over the last epoch; algorithm 1 uses the final weights"
            )
        return lines

    def warnings(self, federation: Federation) -> list[str]:
        if self.params.scale == "paper" and self.params.mu1 > 1e-4:
            measured = "in our runs, the accuracy fell to that of chance"
            return [f"mu1 {self.params.mu1:g} is too large with scale: paper: {measured}; use 1e-4 or less"]
        return []
