"""FedAwS: Federated Learning with Only Positive Labels.

F. X. Yu, A. S. Rawat, A. K. Menon, S. Kumar. ICML 2020. https://arxiv.org/abs/2004.10342

Algorithm 1: after each round the server pushes the class embeddings, the rows of the classifier's weight, apart, by a
gradient step on the spreadout regulariser (equation 7), or on its variant for each class's nearest ones (equation 8).
The paper was not at hand when this was written: its equation numbers and numbers are from memory and from notes of
others on it. What it is compared by in FedRS's table 1 differs from it:

- There a client has several classes and trains with cross-entropy, ``local: softmax``. The paper's clients have one
  class each, so that none but the positive part of a loss is left to them, ``local: positive``.
- Public code of FedRS's first author takes half the cosine distance and the mean over all pairs, so that its margin
  ``m`` is ``2 m`` here, and its rate ``r`` is ``r / (4 C^2)``: it has margins 0.8 and 0.5, rates 0.1 and 0.01, and 30
  and 50 steps with momentum 0.9.
- In algorithm 1 each class embedding is its one client's, not a mean: ``train_args.proxy_aggregation: class`` weighs
  it by who has samples of the class.

Equation 8 has no margin; its gradient ends where embeddings are opposite. The paper's rate is ``lambda`` times the
learning rate, with ``lambda = 10``: 0.1 at a learning rate of 0.01. Other defaults are ours. The bias, which the paper
has not, is left alone. ``rate = 0`` with ``local: softmax`` is FedAvg, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method
from pydantic import Field
from torch.nn import functional

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import full, unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

CLASSES = "classifier.weight"


def spreadout(embeddings: Tensor, *, margin: float = 1.0, nearest: int | None = None) -> Tensor:
    r"""How close the class embeddings are to each other (eq. 7; with ``nearest``, eq. 8).

    .. math:: \sum_c \sum_{c' \ne c} \max(0, \nu - d(w_c, w_{c'}))^2 \qquad
        \sum_c \sum_{c' \in N_k(c)} -d(w_c, w_{c'})^2

    ``d`` is the cosine distance, 0 to 2. An embedding of length 0 has no direction, and no part in it.

    Args:
        embeddings: ``(C, d)``.
        margin: ``nu``.
        nearest: ``k``; a class has no more than ``C - 1`` others.

    >>> spreadout(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]))
    tensor(2.)
    >>> spreadout(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), nearest=1)
    tensor(-1.)
    """
    w = full(embeddings)
    direction = unit(w)
    distance: Tensor = 1 - direction.mm(direction.T)
    some = (w != 0).any(dim=1)
    no_pair = (some[:, None] & some).fill_diagonal_(False).logical_not()
    if nearest is None:
        return (margin - distance).clamp(min=0).square().masked_fill(no_pair, 0).sum()
    near = distance.masked_fill(no_pair, torch.inf).topk(min(nearest, len(w) - 1), largest=False)
    return -near.values.masked_fill(near.values == torch.inf, 0).square().sum()


def spread(
    embeddings: Tensor,
    *,
    rate: float,
    steps: int = 1,
    momentum: float = 0.0,
    margin: float = 1.0,
    nearest: int | None = None,
) -> Tensor:
    """Class embeddings after gradient steps on :func:`spreadout` (algorithm 1, the server's part).

    Args:
        embeddings: ``(C, d)``.
        rate: of a step.
        steps: how many.
        momentum: of these steps, as in torch's SGD.
        margin: as in :func:`spreadout`.
        nearest: as in :func:`spreadout`.

    >>> spread(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), rate=0.1, margin=1.5)
    tensor([[ 1.0000, -0.2000],
            [-0.2000,  1.0000]])
    """
    with torch.enable_grad():
        moving = full(embeddings).detach().clone().requires_grad_()
        optimizer = torch.optim.SGD([moving], lr=rate, momentum=momentum)
        for _ in range(steps):
            optimizer.zero_grad()
            spreadout(moving, margin=margin, nearest=nearest).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return moving.detach().to(embeddings.dtype)


def positive_loss(features: Tensor, labels: Tensor, embeddings: Tensor, *, target: float = 0.9) -> Tensor:
    r"""Pull each sample towards its own class's embedding, by nothing else (algorithm 1, a client's part).

    .. math:: \frac1B \sum_n \max(0, 0.9 - \cos(z_n, w_{y_n}))^2

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64.
        embeddings: ``(C, d)``.
        target: cosine from which on nothing pulls.

    >>> positive_loss(torch.tensor([[0.0, 2.0]]), torch.tensor([0]), torch.tensor([[1.0, 0.0]]))
    tensor(0.8100)
    """
    cosine = functional.cosine_similarity(full(features), full(embeddings)[labels])
    return (target - cosine).clamp(min=0).square().mean()


class FedAwS(Method):
    r"""Spreadout of the class embeddings on the server.

    After each round the server takes a gradient step on equation 7, or on equation 8, which has only the ``k`` classes
    nearest to each class; ``d`` is the cosine distance:

    .. math::
        \sum_c \sum_{c' \ne c} \max(0, \nu - d(w_c, w_{c'}))^2 \qquad \sum_c \sum_{c' \in N_k(c)} -d(w_c, w_{c'})^2

    ``rate: 0`` with ``local: softmax`` is FedAvg, bit for bit.
    """

    class Params(params.Params):
        """Options of FedAwS; ``rate: 0`` with ``local: softmax`` is FedAvg."""

        rate: float = Field(0.1, ge=0, description="rate of the server's steps, lambda times eta in the paper; 0: none")
        steps: int = Field(1, ge=1, description="steps after a round (paper: 1; FedRS's author: 30 or 50)")
        momentum: float = Field(0.0, ge=0, lt=1, description="momentum of these steps (FedRS's author: 0.9)")
        margin: float = Field(1.0, gt=0, le=2, description="nu, cosine distance from which on classes are far enough")
        nearest: int | None = Field(
            None, ge=1, description="k: eq. 8 on each class's k nearest (paper: 10); default: eq. 7"
        )
        local: Literal["softmax", "positive"] = Field(
            "softmax", description="clients train with cross-entropy, or with the paper's loss for clients of one class"
        )

    paper = "Federated Learning with Only Positive Labels, ICML 2020, https://arxiv.org/abs/2004.10342"

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        self.combines = self.params.local == "softmax"

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """Cross-entropy, or the positive loss."""
        if self.params.local == "softmax":
            return super().loss(batch, client)
        model: Any = client.model
        return {"positive": positive_loss(batch.features, batch.labels, model.classifier.weight)}

    def after_aggregation(self, weights: dict[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The server's steps."""
        p = self.params
        if p.rate == 0:
            return weights
        new = spread(
            weights[CLASSES], rate=p.rate, steps=p.steps, momentum=p.momentum, margin=p.margin, nearest=p.nearest
        )
        return {**weights, CLASSES: new}

    def deviations(self) -> list[str]:
        """Where a client's part is not the paper's."""
        if self.params.local == "softmax":
            return ["local: softmax trains clients with cross-entropy; the paper's have one class and no negatives"]
        return ["local: positive trains cosines, while the network predicts by its logits as they are"]

    def warnings(self, federation: Federation) -> list[str]:
        """A loss that nothing keeps from collapsing."""
        if self.params.local == "positive" and self.params.rate == 0:
            return ["local: positive with rate 0 lets all classes collapse into one; a rate above 0 keeps them apart"]
        return []
