"""FedLMD: Federated Learning with Label-Masking Distillation."""

from typing import Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins.methods.fedntd import FedNTD, not_true_distillation
from fl_labelskew_plugins.ops import from_teacher, frozen_model, on_device


def majority_labels(counts: Tensor) -> Tensor:
    r"""Labels of which a client has more samples than the mean of all classes, ``(C,)`` bool.

    .. math:: \mathcal{M} = \{c : n_c > N_k / C\}

    ``counts``: ``(C,)`` int64, the client's training samples per class.

    >>> majority_labels(torch.tensor([6, 3, 0, 3]))
    tensor([ True, False, False, False])
    """
    return counts * len(counts) > counts.sum()


class FedLMD(Method):
    r"""Distillation of the client's minority labels in local training.

    A label is a majority label if the client has more samples of it than the mean of all classes. All others, also
    missing classes, are minority labels (``m``). The teacher (``g``) is the server's frozen model without the majority
    labels. The trained model's softmax omits only the sample's label ``y``:

    .. math::
        \mathcal{L} = \mathcal{L}_{ce} + \beta \, \tau^2 \, \frac{1}{B}
        \sum_n \sum_{c \in m, c \ne y_n} p^g_{nc} \log \frac{p^g_{nc}}{p_{nc}}

    .. math::
        p^g_{nc} = \frac{\exp(z^g_{nc} / \tau)}{\sum_{j \in m, j \ne y_n} \exp(z^g_{nj} / \tau)}, \quad
        p_{nc} = \frac{\exp(z_{nc} / \tau)}{\sum_{j \ne y_n} \exp(z_{nj} / \tau)}

    With ``teacher: uniform``, all targets of a sample are equal (FedLMD-Tf). With ``beta: 0``, the loss is
    bit-identical to plain cross-entropy. If a client has equally many samples of all classes, the loss is FedNTD's.
    """

    class Params(FedNTD.Params):
        teacher: Literal["global", "uniform"] = Field(
            "global", description="global: the server's model; uniform: equal targets without a model (FedLMD-Tf)"
        )

    paper = "Federated Learning with Label-Masking Distillation, ACM Multimedia 2023, https://arxiv.org/abs/2409.13136"

    def before_round(self, client: ClientView) -> None:
        if self.params.beta > 0 and self.params.teacher == "global":
            client.scratch["teacher"] = frozen_model(client)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        p = self.params
        if p.beta == 0:
            return {}
        outputs = torch.zeros_like(batch.logits) if p.teacher == "uniform" else from_teacher(batch, client)
        if outputs is None:
            return {}
        majority = majority_labels(on_device(client, "counts", client.counts, batch.logits.device))
        distillation = not_true_distillation(batch.logits, outputs, batch.labels, tau=p.tau, masked=majority)
        return {"distillation": p.beta * distillation}

    def deviations(self) -> list[str]:
        if self.params.beta == 0:
            return []
        lines = ["a sample of the only minority label counts 0; in the authors' code, up to 1000"]
        if self.params.teacher == "uniform":
            lines.append("teacher: uniform: targets sum to 1; the authors' code divides them by C - B - 1")
        return lines
