"""FedDecorr: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning.

The published ``beta`` was used with ``scale: code``. FedMR's intra-class loss is this regulariser within each class.
"""

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.methods.fedmr import Scale, intra_class_loss


def decorrelation(features: Tensor, *, scale: Scale = "paper") -> Tensor:
    r"""Correlation between the dimensions of features ``(B, d)`` (section 4.2), a scalar.

    .. math:: \text{paper: } \frac{1}{d^2} \lVert K \rVert_F^2, \quad K = \frac{\hat Z^\top \hat Z}{B - 1}
        \qquad \text{code: } \frac{1}{B} \, \frac{1}{d (d - 1)} \sum_{j \ne l} (\hat Z^\top \hat Z)_{jl}^2

    ``Zhat``: features minus their mean, divided by the square root of (unbiased variance + 1e-8). With ``scale:
    paper``, uncorrelated dimensions give ``1 / d``, and equal ones 1. A batch of one sample gives 0, without gradient.

    >>> square = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> decorrelation(square), decorrelation(square[:, :1].expand(4, 2))
    (tensor(0.5000), tensor(1.0000))
    """
    one_class = torch.zeros(len(features), dtype=torch.int64, device=features.device)
    loss = intra_class_loss(features, one_class, scale=scale, num_classes=1)
    return loss / features.shape[1] ** 2 if scale == "paper" else loss


class FedDecorr(Method):
    r"""Decorrelation of the features in local training.

    The correlation matrix ``K`` belongs to the features of a batch, standardised per dimension. Its squared norm is
    added to the cross-entropy (section 4.2):

    .. math::
        \mathcal{L} = \mathcal{L}_{ce} + \frac{\beta}{d^2} \, \lVert K \rVert_F^2, \quad
        K = \frac{1}{B - 1} \sum_{i=1}^{B} \hat h_i \hat h_i^\top

    The norm is smallest if all eigenvalues of ``K`` are equal, because their sum is ``d`` (proposition 1):

    .. math:: \lVert K \rVert_F^2 = d + \sum_j (\lambda_j - 1)^2

    With ``beta: 0``, the loss is bit-identical to plain cross-entropy. Batches of one sample have no regulariser.
    """

    class Params(params.Params):
        beta: float = Field(0.1, ge=0, description="weight of the regulariser (paper and authors' code: 0.1)")
        scale: Scale = Field(
            "paper", description="paper: as printed; code: the authors', 62 times as strong in a batch of 64"
        )

    paper = (
        "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR 2023, "
        "https://arxiv.org/abs/2210.00226"
    )

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        p = self.params
        return {"decorrelation": p.beta * decorrelation(batch.features, scale=p.scale)} if p.beta > 0 else {}

    def deviations(self) -> list[str]:
        if self.params.beta == 0:
            return []
        lines = ["1e-8 is added to the variance of each feature (authors' code), because it may be 0"]
        if self.params.scale == "code":
            lines.append("scale: code omits the diagonal, and is (B - 1)^2 / B times as strong as printed")
        return lines
