"""Not-true distillation: keep the global model's outputs for the classes other than the label.

Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.
G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun. NeurIPS 2022. https://arxiv.org/abs/2106.03097

The loss is the cross-entropy plus a distillation from the server's model, over the classes other than a sample's label.
``beta: 0`` is plain cross-entropy.
"""

from typing import Any

import torch
from fl_labelskew_registry import Batch, ClientView, Method
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot


def not_true_distillation(student: Tensor, teacher: Tensor, labels: Tensor, *, tau: float) -> Tensor:
    r"""Distil a teacher's outputs over the classes other than each sample's label.

    .. math::
        \tau^2 \, \frac{1}{B} \sum_n \sum_{c \ne y_n} p^g_{nc} \log \frac{p^g_{nc}}{p_{nc}}, \qquad
        p_{nc} = \frac{\exp(z_{nc} / \tau)}{\sum_{j \ne y_n} \exp(z_{nj} / \tau)}

    Args:
        student: ``(B, C)`` logits ``z`` in training.
        teacher: ``(B, C)`` logits of the server's model, without a gradient; they give ``p^g``.
        labels: ``(B,)`` int64.
        tau: temperature of both.

    Returns:
        A scalar.
    """
    true = one_hot(labels, student.shape[1]).bool()
    log_p = (teacher / tau).masked_fill(true, -torch.inf).log_softmax(dim=1)
    log_q = (student / tau).masked_fill(true, -torch.inf).log_softmax(dim=1)
    ratio = (log_p - log_q).masked_fill(true, 0)  # instead of -inf - (-inf)
    return tau**2 * (log_p.exp() * ratio).sum(dim=1).mean()


class NotTrue(Method):
    """Distillation from the server's model over the classes other than the label."""

    class Params(BaseModel):
        """Options of NotTrue; ``beta: 0`` is plain cross-entropy."""

        model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

        beta: float = Field(1.0, ge=0, allow_inf_nan=False, description="weight of the distillation; 0: none")
        tau: float = Field(1.0, gt=0, allow_inf_nan=False, description="temperature of both models' outputs")

    paper = (
        "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022, "
        "https://arxiv.org/abs/2106.03097"
    )

    def before_round(self, client: ClientView) -> None:
        """Freeze a copy of the server's model as the teacher of this round."""
        if self.params.beta > 0:
            client.scratch["teacher"] = client.frozen(client.model.state_dict())

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """The distillation, in addition to the cross-entropy."""
        teacher: Any = client.scratch.get("teacher")
        if teacher is None:
            return {}
        with torch.no_grad():
            outputs = teacher(batch.inputs)
        distillation = not_true_distillation(batch.logits, outputs, batch.labels, tau=self.params.tau)
        return {"distillation": self.params.beta * distillation}

    def deviations(self) -> list[str]:
        """Differences from the paper."""
        return ["the distillation is multiplied by tau^2, as in the authors' code"] if self.params.tau != 1 else []
