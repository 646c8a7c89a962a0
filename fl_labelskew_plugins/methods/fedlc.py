"""FedLC: Federated Learning with Label Distribution Skew via Logits Calibration."""

from typing import Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, Method
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import Missing, check_choice, check_per_class, full, on_device


def calibrated_logits(logits: Tensor, counts: Tensor, *, tau: float, missing: Missing = "one") -> Tensor:
    r"""Lower each logit by its class's margin (eq. 7).

    .. math:: \hat z_c = z_c - \tau \, n_c^{-1/4}

    Args:
        logits: ``(B, C)``.
        counts: ``(C,)``, the client's training samples per class, integers or floats.
        tau: strength of the margins; 0 adds none.
        missing: ``one`` counts a class without samples as one sample; ``mask`` sets its logit to minus infinity.

    >>> calibrated_logits(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([16, 1, 0]), tau=1.0)
    tensor([[0.5000, 0.0000, 0.0000]])
    >>> calibrated_logits(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([16, 1, 0]), tau=1.0, missing="mask")
    tensor([[0.5000, 0.0000,   -inf]])
    """
    check_choice("missing", missing, ("one", "mask"))
    check_per_class("counts", counts, logits)
    if tau != 0:
        # count a missing class as one sample, because 0 ** -0.25 is infinite
        present = counts.masked_fill(counts <= 0, 1).to(full(logits.new_empty(0)).dtype)
        logits = logits - tau * present.pow(-0.25)
    if missing == "mask":
        logits = logits.masked_fill(counts <= 0, -torch.inf)
    return logits


def others_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross-entropy without the label's own term in the denominator, as eq. 5 and 7 are printed.

    .. math:: \frac1B \sum_n \Bigl( \log \sum_{i \ne y_n} e^{z_{n,i}} - z_{n,y_n} \Bigr)

    It has no lower bound. A sample with an empty sum (one class, or all others masked) counts 0.

    Args:
        logits: ``(B, C)``, calibrated; minus infinity is not in the sum.
        labels: ``(B,)`` int64.

    >>> others_cross_entropy(torch.tensor([[2.0, 1.0, -torch.inf]]), torch.tensor([0]))
    tensor(-1.)
    """
    logits = full(logits)
    target = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    empty = (others == -torch.inf).all(dim=1, keepdim=True)
    # a row of minus infinities would make the gradient inf - inf, so such rows never reach logsumexp
    total = others.masked_fill(empty, 0).logsumexp(dim=1, keepdim=True)
    return (total - target).masked_fill(empty, 0).mean()


class FedLC(Method):
    r"""Logits calibration in local training.

    Equation 7, with the counts of the client's own training set. The difference of ``tau n_c^{-1/4}`` between two
    classes is their margin in equation 6.

    .. math:: \mathcal{L} = -\log \frac{\exp(z_y - \tau \, n_y^{-1/4})}{\sum_c \exp(z_c - \tau \, n_c^{-1/4})}

    With ``tau: 0``, the loss is bit-identical to plain cross-entropy.
    """

    class Params(params.Params):
        tau: float = Field(1.0, ge=0, description="strength of the margins; the paper gives no value; 0: none")
        missing: Missing = Field(
            "one", description="class without samples; one: counts as one sample; mask: not in the softmax"
        )
        denominator: Literal["full", "others"] = Field(
            "full", description="full: whole softmax (theorem 3); others: without the label's own term (eq. 7 printed)"
        )

    paper = (
        "Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022, "
        "https://arxiv.org/abs/2209.00189"
    )
    corrects = "class counts"

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """The exponents of equation 7."""
        counts = on_device(client, "counts", client.counts, logits.device)
        return calibrated_logits(logits, counts, tau=self.params.tau, missing=self.params.missing)

    def logits_only(self) -> bool:
        return bool(self.params.denominator == "full")

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        if self.params.denominator == "full":
            return super().loss(batch, client)
        return {"cross_entropy": others_cross_entropy(self.calibrate(batch.logits, client), batch.labels)}

    def deviations(self) -> list[str]:
        p, lines = self.params, []
        if p.denominator == "full":
            lines.append("denominator: full keeps the label's own term in the softmax (theorem 3); eq. 5 and 7 omit it")
        if p.tau > 0:
            lines.append(f"tau: {p.tau:g}; the paper gives no value")
        if p.missing == "mask":
            lines.append("missing: mask removes a class without samples from the softmax; the paper has no rule")
        elif p.tau > 0:
            lines.append("with missing: one, a class without samples counts as one sample; the paper has no rule")
        return lines

    def warnings(self, federation: Federation) -> list[str]:
        if self.params.denominator == "others":
            return ["with denominator: others, the loss has no lower bound, so training may diverge; full is safe"]
        return []
