"""FedVLS: Exploring Vacant Classes in Label-Skewed Federated Learning.

Line numbers are those of algorithm 1 in the technical appendix, which the authors publish with their code. With ``form:
paper``, the gradient of the suppression does not vanish for very small logits.
"""

import math
from typing import Any, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div

from fl_labelskew_plugins import params
from fl_labelskew_plugins.methods.fedrod import balanced_logits
from fl_labelskew_plugins.ops import check_choice, check_per_class, from_teacher, frozen_model, full, on_device, one_hot

Form = Literal["code", "paper"]
VACANT = "fedvls.vacant"


def vacant_class_distillation(logits: Tensor, teacher: Tensor, vacant: Tensor) -> Tensor:
    """Divergence of the server's and the client's model on the vacant classes (line 15, see :class:`FedVLS`).

    With one vacant class, it is 0.

    Args:
        logits: ``(B, C)`` of the trained model.
        teacher: ``(B, C)`` of the server's model.
        vacant: ``(V,)`` int64, the classes ``O`` without samples at the client.

    >>> z, teacher = torch.zeros(1, 3), torch.tensor([[9.0, 0.0, 0.0]])
    >>> vacant_class_distillation(z, teacher, torch.tensor([1, 2]))
    tensor(0.)
    >>> vacant_class_distillation(z, teacher, torch.tensor([0, 2]))
    tensor(0.6919)
    """
    student, target = (full(z).index_select(1, vacant).log_softmax(dim=1) for z in (logits, teacher))
    return kl_div(student, target, reduction="batchmean", log_target=True)


def logit_suppression(logits: Tensor, labels: Tensor, counts: Tensor, *, form: Form = "code") -> Tensor:
    r"""Lower each class's logit in samples of other classes (algorithm 1, lines 16 and 17).

    .. math:: \text{paper: } \sum_c p_c \log \frac1B \sum_{n: y_n \ne c} e^{z_{n,c}} \qquad
        \text{code: } \sum_c p_c \log \frac1B \Bigl( \sum_{n: y_n \ne c} \frac{e^{z_{n,c}}}{C p_c}
        + B_c \Bigr)

    ``B_c``: samples of class ``c`` in the batch. With ``form: paper``, a class has no term if all samples of the batch
    are of this class.

    Args:
        logits: ``(B, C)``.
        labels: ``(B,)`` int64.
        counts: ``(C,)``, the client's training samples per class; ``p_c`` is the share of class ``c``.
        form: ``code`` or ``paper``.

    >>> z, labels, counts = torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([1, 1, 0])
    >>> logit_suppression(z, labels, counts, form="paper")  # half of the samples are of another class: log(1 / 2)
    tensor(-0.6931)
    >>> logit_suppression(z, labels, counts)  # another class counts 2 / 3, the class itself 1: log(5 / 6)
    tensor(-0.1823)
    """
    check_choice("form", form, ("code", "paper"))
    check_per_class("counts", counts, logits)
    z = full(logits)
    share = counts.to(z.dtype) / counts.sum().clamp(min=1)
    own = one_hot(labels, len(counts), torch.bool)
    if form == "code":
        z = (z - (share * len(counts)).masked_fill(share == 0, 1).log()).masked_fill(own, 0)
    else:
        only = own.all(dim=0)  # a column of minus infinities would make the gradient inf - inf
        z, share = z.masked_fill(own & ~only, -torch.inf), share * ~only
    return (share * (z.logsumexp(dim=0) - math.log(len(labels)))).sum()


class FedVLS(Method):
    r"""Vacant-class distillation and logit suppression in local training.

    The calibrated cross-entropy, with the share ``p_c`` of each class at the client (algorithm 1, line 14). Classes
    without samples (*vacant* classes, ``O``) have no term in the softmax:

    .. math:: \mathcal{L}_{cal} = -\log \frac{p_y \exp(z_y)}{\sum_c p_c \exp(z_c)}

    The distillation holds the vacant classes near the server's model ``g``, with softmaxes ``q`` over ``O`` (line 15):

    .. math:: \mathcal{L}_{dis} = \frac1B \sum_{i=1}^{B} \sum_{o \in O} q^g_{i,o} \log \frac{q^g_{i,o}}{q_{i,o}}

    The suppression lowers the logit of each class in the samples of other classes (lines 16 and 17). The formula below
    is that of ``form: paper``. Line 18 is the sum, with ``w = 1``:

    .. math::
        \mathcal{L}_{logit} = \sum_c p_c \log \frac1B \sum_{i: y_i \ne c} \exp(z_{i,c}), \quad
        \mathcal{L} = \mathcal{L}_{cal} + \lambda \, \mathcal{L}_{dis} + w \, \mathcal{L}_{logit}

    With ``calibration: none``, ``lam: 0`` and ``suppression: 0``, the loss is bit-identical to plain cross-entropy.
    """

    class Params(params.Params):
        lam: float = Field(0.1, ge=0, description="weight of the distillation (authors' README: 0.1)")
        suppression: float = Field(0.005, ge=0, description="weight w of the suppression (paper: 1)")
        form: Form = Field(
            "code", description="suppression; paper: without the label's logit, unbounded; code: it counts as exp(0)"
        )
        calibration: Literal["prior", "none"] = Field(
            "prior", description="cross-entropy; prior: weighted by class shares (line 14); none: plain"
        )

    paper = "Exploring Vacant Classes in Label-Skewed Federated Learning, AAAI 2025, https://arxiv.org/abs/2401.02329"

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        vars(self).update(corrects="class counts" if self.params.calibration == "prior" else "")

    def before_round(self, client: ClientView) -> None:
        vacant = (client.counts == 0).nonzero().flatten()
        if self.params.lam > 0 and len(vacant) > 1:
            client.scratch["teacher"] = frozen_model(client)
            client.scratch[VACANT] = vacant

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """The exponents of line 14, plus a constant."""
        if self.params.calibration == "none":
            return logits
        return balanced_logits(logits, on_device(client, "counts", client.counts, logits.device), missing="mask")

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        p, terms = self.params, {}
        if (teacher := from_teacher(batch, client)) is not None:
            vacant = on_device(client, VACANT, client.scratch[VACANT], batch.logits.device)
            terms["distillation"] = p.lam * vacant_class_distillation(batch.logits, teacher, vacant)
        if p.suppression > 0:
            counts = on_device(client, "counts", client.counts, batch.logits.device)
            terms["suppression"] = p.suppression * logit_suppression(batch.logits, batch.labels, counts, form=p.form)
        return terms

    def deviations(self) -> list[str]:
        p, lines = self.params, []
        if p.calibration == "none":
            lines.append("with calibration: none, the cross-entropy is plain; line 14 weights each class by its share")
        if p.suppression not in (0, 1):
            lines.append(
                f"suppression has the weight {p.suppression:g}; line 18 has no weight, the authors' code has 0.005"
            )
        if p.suppression > 0 and p.form == "code":
            lines.append("with form: code, logits are shifted, and samples of the class add exp(0); line 16 omits them")
        return lines

    def warnings(self, federation: Federation) -> list[str]:
        if self.params.suppression > 0 and self.params.form == "paper":
            return ["with form: paper, the loss has no lower bound, so training may diverge; code is safe"]
        return []
