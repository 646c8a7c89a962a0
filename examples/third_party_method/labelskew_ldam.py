"""LDAM: a margin for the true class, the larger the rarer it is.

Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss.
K. Cao, C. Wei, A. Gaidon, N. Arechiga, T. Ma. NeurIPS 2019. https://arxiv.org/abs/1906.07413

The paper's loss with the class counts of each client's own data: the logit of the true class is lowered by a margin
that is larger the rarer the class is. The authors' code also normalises features and classifier, multiplies the
logits by 30 and rescales the margins so that the rarest class has 0.5; none of it is done here. Margin 0 is plain
cross-entropy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_labelskew_registry import Batch, ClientView, Method
from pydantic import BaseModel, ConfigDict, Field
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from torch import Tensor


def margin_logits(logits: Tensor, labels: Tensor, counts: Tensor, *, margin: float) -> Tensor:
    r"""Lower the true class's logit by its margin.

    .. math:: z_y - \Delta_y, \qquad \Delta_c = m \, n_c^{-1/4}

    Args:
        logits: ``(B, C)``.
        labels: ``(B,)`` int64.
        counts: ``(C,)``, the client's training samples of each class.
        margin: ``m``, the margin of a class with one sample; the paper's constant ``C``.

    Returns:
        ``(B, C)``.
    """
    margins = margin * counts.clamp(min=1).to(logits.dtype) ** -0.25
    return logits.scatter_add(1, labels[:, None], -margins[labels][:, None])


class LDAM(Method):
    """Margins for the true class, by the client's own class counts."""

    class Params(BaseModel):
        """Options of LDAM; ``margin: 0`` is plain cross-entropy."""

        model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

        margin: float = Field(1.0, ge=0, allow_inf_nan=False, description="margin of a class with one sample; 0: none")

    paper = (
        "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019, "
        "https://arxiv.org/abs/1906.07413"
    )

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """Cross-entropy of the logits with margins."""
        counts = client.counts.to(batch.logits.device)
        logits = margin_logits(batch.logits, batch.labels, counts, margin=self.params.margin)
        return {"cross_entropy": cross_entropy(logits, batch.labels)}

    def deviations(self) -> list[str]:
        """What of the authors' code is left out."""
        return ["features and classifier are not normalised, and the margins are not rescaled to a largest one of 0.5"]
