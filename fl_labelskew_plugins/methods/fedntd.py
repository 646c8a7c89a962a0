"""FedNTD: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning."""

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import from_teacher, frozen_model, full, one_hot


def not_true_distillation(
    student: Tensor, teacher: Tensor, labels: Tensor, *, tau: float = 1.0, masked: Tensor | None = None
) -> Tensor:
    """Distil one model's outputs into another's, over the classes other than each sample's label; see :class:`FedNTD`.

    Args:
        student: ``(B, C)`` logits in training.
        teacher: ``(B, C)`` logits of the server's model, without a gradient.
        labels: ``(B,)`` int64.
        tau: temperature of both.
        masked: ``(C,)`` bool, classes that the teacher's softmax also omits (FedLMD), so their logits fall. A sample
            counts 0 if the teacher omits all classes.

    >>> z, g = torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 2.0]])
    >>> not_true_distillation(z, g, torch.tensor([0]))  # (0.12, 0.88) against (0.5, 0.5)
    tensor(0.3278)
    >>> majority = torch.tensor([False, True, False])
    >>> not_true_distillation(z, g, torch.tensor([0]), masked=majority)  # (0, 1) against (0.5, 0.5)
    tensor(0.6931)
    """
    true = one_hot(labels, student.shape[1], torch.bool)
    without = true if masked is None else true | masked
    log_p = (full(teacher) / tau).masked_fill(without, -torch.inf).log_softmax(dim=1)
    log_q = (full(student) / tau).masked_fill(true, -torch.inf).log_softmax(dim=1)
    # the masks replace 0 * -inf, and NaN in rows without a class
    p, ratio = log_p.exp().masked_fill(without, 0), (log_p - log_q).masked_fill(without, 0)
    return tau**2 * (p * ratio).sum(dim=1).mean()


class FedNTD(Method):
    r"""Not-true distillation from the server's model in local training.

    Cross-entropy plus the divergence between the outputs of the server's frozen model (``g``) and of the trained model,
    over the classes other than the sample's label ``y``:

    .. math::
        \mathcal{L} = \mathcal{L}_{ce} + \beta \, \tau^2 \, \frac{1}{B}
        \sum_n \sum_{c \ne y_n} p^g_{nc} \log \frac{p^g_{nc}}{p_{nc}}, \quad
        p_{nc} = \frac{\exp(z_{nc} / \tau)}{\sum_{j \ne y_n} \exp(z_{nj} / \tau)}

    The distillation has no gradient with respect to the label's logit. With ``beta: 0``, the loss is bit-identical to
    plain cross-entropy.
    """

    class Params(params.Params):
        beta: float = Field(1.0, ge=0, description="weight of the distillation; 0: plain cross-entropy")
        tau: float = Field(1.0, gt=0, description="temperature of both models' outputs")

    paper = (
        "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022, "
        "https://arxiv.org/abs/2106.03097"
    )

    def before_round(self, client: ClientView) -> None:
        if self.params.beta > 0:
            client.scratch["teacher"] = frozen_model(client)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        if (outputs := from_teacher(batch, client)) is None:
            return {}
        distillation = not_true_distillation(batch.logits, outputs, batch.labels, tau=self.params.tau)
        return {"distillation": self.params.beta * distillation}

    def deviations(self) -> list[str]:
        if self.params.beta == 0 or self.params.tau == 1:
            return []
        return ["tau: the distillation is multiplied by tau^2, as in the authors' code"]
