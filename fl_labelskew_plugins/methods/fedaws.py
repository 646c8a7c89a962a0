"""FedAwS: Federated Learning with Only Positive Labels.

The class embeddings are the rows of the classifier's weight. Equation 8, for nearest classes, is omitted. In the paper,
``lambda`` is 10, so ``rate`` is 0.1 at a learning rate of 0.01.
"""

import torch
from fl_labelskew_registry.contracts import Method, ServerView
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import full, unit

CLASSES = "classifier.weight"


def spreadout(embeddings: Tensor, *, margin: float = 1.0) -> Tensor:
    """Penalty for class embeddings ``(C, d)`` that are close to each other (eq. 7, see :class:`FedAwS`).

    ``margin``: ``nu``, cosine distance, 0 to 2. Embeddings of length 0 have no direction and are ignored.

    >>> spreadout(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]))
    tensor(2.)
    """
    w = full(embeddings)
    direction = unit(w)
    distance: Tensor = 1 - direction.mm(direction.T)
    nonzero = (w != 0).any(dim=1)
    no_pair = (nonzero[:, None] & nonzero).fill_diagonal_(False).logical_not()
    return (margin - distance).clamp(min=0).square().masked_fill(no_pair, 0).sum()


def spread(embeddings: Tensor, *, rate: float, margin: float = 1.0) -> Tensor:
    """Class embeddings ``(C, d)`` after a gradient step on :func:`spreadout` (algorithm 1, the server's part).

    >>> spread(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), rate=0.1, margin=1.5)
    tensor([[ 1.0000, -0.2000],
            [-0.2000,  1.0000]])
    """
    with torch.enable_grad():
        moving = full(embeddings).detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(spreadout(moving, margin=margin), moving)
    return torch.add(moving.detach(), slope, alpha=-rate).to(embeddings.dtype)


class FedAwS(Method):
    r"""Spreadout of the class embeddings on the server.

    After each round the server takes a gradient step on equation 7; ``d`` is the cosine distance:

    .. math:: \sum_c \sum_{c' \ne c} \max(0, \nu - d(w_c, w_{c'}))^2

    With ``rate: 0``, the result is bit-identical to FedAvg.
    """

    class Params(params.Params):
        rate: float = Field(0.1, ge=0, description="rate of the server's step, lambda times eta in the paper; 0: none")
        margin: float = Field(1.0, gt=0, le=2, description="nu, cosine distance above which classes have no penalty")

    paper = "Federated Learning with Only Positive Labels, ICML 2020, https://arxiv.org/abs/2004.10342"

    def after_aggregation(self, weights: dict[str, Tensor], server: ServerView) -> dict[str, Tensor]:
        p = self.params
        return {**weights, CLASSES: spread(weights[CLASSES], rate=p.rate, margin=p.margin)} if p.rate else weights

    def deviations(self) -> list[str]:
        return ["clients train with cross-entropy; the paper's have one class and no negatives"]
