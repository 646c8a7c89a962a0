"""MAP: Model Aggregation and Personalization in Federated Learning with Incomplete Classes.

HPM: the inherited private model. With momentum 0 it is the last personalised model, as in the paper's text.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method, Stage
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import Scaling, full, keep_private, mmd, on_device, private_model, restricted_logits

PREFIX = "hpm."


def hpm_momentum(times_selected: int, *, rounds: int, fraction: float, mu0: float = 0.9) -> float:
    """Momentum of a client's inherited private model (below eq. 10, see :class:`MAP`), 0 .. 1.

    Args:
        times_selected: ``z_k``, number of rounds that selected this client; the current one may count or not.
        rounds: ``T``.
        fraction: ``Q``, clients per round over all clients.
        mu0: macro momentum.

    >>> hpm_momentum(5, rounds=100, fraction=0.1)
    0.45
    """
    return min(max(mu0 * times_selected / (fraction * rounds), 0.0), 1.0)


def distillation(student: Tensor, teacher: Tensor, *, temperature: float = 4.0) -> Tensor:
    """Distil one model's outputs into another's (eq. 11, see :class:`MAP`; no factor of the squared temperature).

    Args:
        student: ``(B, C)`` logits in training.
        teacher: ``(B, C)`` logits of the inherited private model.
        temperature: of both.

    >>> distillation(torch.tensor([[0.0, 0.0]]), torch.tensor([[4.0, 0.0]])).item()  # doctest: +ELLIPSIS
    0.110...
    """
    log_p = functional.log_softmax(full(teacher) / temperature, dim=1)
    log_q = functional.log_softmax(full(student) / temperature, dim=1)
    return functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


class TransferParams(params.Params):
    """Options of the inherited private model; ``lam: 0`` turns off the transfer."""

    transfer: Literal["kd", "mmd"] = Field("kd", description="transfer from the HPM: kd: outputs; mmd: features")
    lam: float | None = Field(None, ge=0, le=1, description="weight of the transfer; default 0.05 (kd), 0.1 (mmd)")
    mu0: float = Field(0.9, ge=0, description="macro momentum of the HPM; 0: the HPM is the last personalised model")
    hpm_count: Literal["text", "algorithm"] = Field(
        "text", description="rounds in the HPM's momentum: text: including this one; algorithm: only earlier ones"
    )
    temperature: float = Field(4.0, gt=0, description="temperature of both models' outputs in kd")


class InheritedPrivateModel(Method):
    """Base of MAP and FedPHP: a private model per client supervises the stage ``personalise``."""

    aggregation = "uniform"
    uses_rounds = True

    @property
    def lam(self) -> float:
        default = 0.05 if self.params.transfer == "kd" else 0.1
        return float(default if self.params.lam is None else self.params.lam)

    def before_round(self, client: ClientView) -> None:
        state = self.personalised(client.state)
        if state is not None and client.frozen is not None and self.lam > 0:
            client.scratch["teacher"] = client.frozen(state)

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """Equation 13 in the stage ``personalise``, if there is a teacher."""
        terms = super().loss(batch, client)
        teacher: Any = client.scratch.get("teacher")
        if client.stage != "personalise" or teacher is None:
            return terms
        with torch.no_grad():
            kd = self.params.transfer == "kd"
            target = teacher(batch.inputs) if kd else teacher.features(batch.inputs)
        if kd:
            transfer = distillation(batch.logits, target, temperature=self.params.temperature)
        else:
            transfer = mmd(batch.features, target)
        return {"cross_entropy": (1 - self.lam) * terms["cross_entropy"], "transfer": self.lam * transfer}

    def after_round(self, client: ClientView) -> None:
        """Equation 10; integer buffers, such as batch normalisation's counter, are the personalised model's."""
        assert client.model is not None
        run = client.federation
        mu = hpm_momentum(
            client.times_selected - (self.params.hpm_count == "algorithm"),
            rounds=run.rounds,
            fraction=run.clients_per_round / run.num_clients,
            mu0=self.params.mu0,
        )
        weights = client.model.state_dict()
        if (old := self.personalised(client.state)) is not None:
            weights = {
                name: (1 - mu) * theta + mu * old[name].to(theta.device) if theta.is_floating_point() else theta
                for name, theta in weights.items()
            }
        keep_private(client, PREFIX, weights)

    def deviations(self) -> list[str]:
        if self.params.mu0 == 0:
            return []
        if self.params.hpm_count == "text":
            return ["hpm_count text: mu_k counts this round, as the text below eq. 10; algorithm 1 of MAP does not"]
        return ["hpm_count: algorithm omits this round in mu_k, as algorithm 1; MAP's text below eq. 10 counts it"]

    def personalised(self, state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return private_model(state, PREFIX)


class MAP(InheritedPrivateModel):
    r"""Restricted softmax for the upload, then personalisation with the inherited private model.

    Stage one is equation 8, the restricted softmax of FedRS. Stage two adds a transfer from the private model ``p`` to
    cross-entropy (equation 13): distillation (equation 11), or the maximum mean discrepancy of features (equation 12).

    .. math::
        \mathcal{L}_{kd} =
        \frac{1}{B} \sum_{i=1}^{B} D_{KL}\bigl(\sigma(z_{p,i} / \tau) \,\Vert\, \sigma(z_i / \tau)\bigr), \quad
        \mathcal{L} = (1 - \lambda) \, \mathcal{L}_{ce} + \lambda \, \mathcal{L}_{kd}

    After the round the private model is mixed with the personalised one (equation 10). The momentum grows with ``z_k``,
    the number of rounds that selected the client:

    .. math::
        \theta_p \leftarrow (1 - \mu_k) \, \theta + \mu_k \, \theta_p, \quad
        \mu_k = \min\bigl(\mu_0 \, z_k / (Q T), 1\bigr)

    With ``alpha: 1`` and ``lam: 0``, the loss of both stages is bit-identical to plain cross-entropy. In a client's
    first round, it has no private model: the client trains with plain cross-entropy, and the personalised model
    becomes the private one. Stage one has the larger half of an odd number of epochs; a single epoch is split.
    """

    class Params(TransferParams):
        alpha: float = Field(0.5, ge=0, le=1, description="factor on the logits of missing classes; 1: plain softmax")
        min_count: int = Field(1, ge=1, description="a class with fewer samples is missing")
        scaling: Scaling = Field("indicator", description="as in fedrs")

    paper = (
        "MAP: Model Aggregation and Personalization in Federated Learning with Incomplete Classes, TKDE 2024, "
        "https://arxiv.org/abs/2404.09232"
    )
    corrects = "missing classes"

    def stages(self, epochs: int) -> list[Stage]:
        first = 0.5 if epochs == 1 else math.ceil(epochs / 2)
        return [Stage("aggregate", first), Stage("personalise", epochs - first, upload=False)]

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """Equation 8 in the first stage."""
        if client.stage == "personalise":
            return logits
        p, counts = self.params, on_device(client, "counts", client.counts, logits.device)
        return restricted_logits(logits, counts, alpha=p.alpha, min_count=p.min_count, scaling=p.scaling)

    def deviations(self) -> list[str]:
        lines = super().deviations()
        if self.params.scaling == "proportional":
            lines.append("scaling proportional: rare observed classes are scaled; eq. 8 uses an indicator")
        return lines
