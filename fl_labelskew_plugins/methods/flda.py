"""FLDA: Private Federated Learning with Domain Adaptation.

The gate starts at one half. The private network starts with the same weights at all clients. With ``private_start:
general``, both networks stay equal in a client's first round. The gate then does not change, because its gradient is
proportional to the difference of the networks' outputs.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Method
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import check_choice, frozen_model, full, keep_private, private_model

Mixture = Literal["logits", "probabilities"]
Start = Literal["random", "general"]
PRIVATE, GATE = "private.", "gate"
EXPERT, GATE_NOW = "flda.private", "flda.gate"  # the private network and gate of this round


def mixed(general: Tensor, private: Tensor, score: Tensor, *, mixture: Mixture = "logits") -> Tensor:
    r"""Logits ``(B, C)`` of the mixture; for ``probabilities``, the logarithm of the mixed probabilities.

    .. math:: a z_G + (1 - a) z_P \quad\text{or}\quad \log\bigl(a \, \sigma(z_G) + (1 - a) \, \sigma(z_P)\bigr)

    Args:
        general: ``(B, C)`` logits of the general model.
        private: ``(B, C)`` logits of the private one.
        score: ``(B,)``, ``a`` before its sigmoid, or one number ``()`` for all.
        mixture: values to mix.

    >>> mixed(torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 2.0]]), torch.tensor([0.0]))
    tensor([[2., 1.]])
    >>> p, q = torch.tensor([[0.2, 0.8]]), torch.tensor([[0.6, 0.4]])
    >>> mixed(p.log(), q.log(), torch.tensor([0.0]), mixture="probabilities").exp()
    tensor([[0.4000, 0.6000]])
    """
    check_choice("mixture", mixture, ("logits", "probabilities"))
    score = full(score)[..., None]
    if mixture == "logits":
        return torch.lerp(full(private), full(general), score.sigmoid())
    one = functional.log_softmax(full(general), dim=1) + functional.logsigmoid(score)
    return torch.logaddexp(one, functional.log_softmax(full(private), dim=1) + functional.logsigmoid(-score))


class FLDA(Method):
    r"""A private model and a private gate in addition to the general model, which is uploaded and averaged.

    The general model ``G``, the private model ``P`` and the gate ``a`` are trained with the loss of the mixture:

    .. math:: \hat y = a(x) \, \hat y_G(x) + (1 - a(x)) \, \hat y_P(x), \quad a(x) = \sigma(v^\top h + b)

    With ``general_share: 1``, only the general model exists, and the loss is bit-identical to plain cross-entropy.
    """

    class Params(params.Params):
        mixture: Mixture = Field("logits", description="values to mix, before or after the softmax")
        private_start: Start = Field(
            "random", description="initial private model: another random network, or a copy of the general one"
        )
        general_share: float | None = Field(
            None, gt=0, le=1, description="fixed share of the general model in the mixture; default: learnt by a gate"
        )

    paper = "Private Federated Learning with Domain Adaptation, NeurIPS workshop 2019, https://arxiv.org/abs/1912.06733"

    def before_round(self, client: ClientView) -> None:
        if self.params.general_share == 1:
            return
        assert client.model is not None
        kept = private_model(client.state, PRIVATE)
        if kept is None and self.params.private_start == "random":
            assert client.fresh is not None
            kept = dict(client.fresh())
        expert = frozen_model(client, kept)  # its parameters are trained, see below
        for private, shared in zip(expert.parameters(), client.model.parameters(), strict=True):
            private.requires_grad_(shared.requires_grad)
        client.scratch[EXPERT] = expert
        if self.params.general_share is None:
            start = client.state.get(GATE, torch.zeros(client.federation.num_features + 1))
            client.scratch[GATE_NOW] = nn.Parameter(start.to(client.counts.device, copy=True))

    def private_parameters(self, client: ClientView) -> Sequence[nn.Parameter]:
        if EXPERT not in client.scratch:
            return []
        parameters = [p for p in client.scratch[EXPERT].parameters() if p.requires_grad]
        return [*parameters, client.scratch[GATE_NOW]] if GATE_NOW in client.scratch else parameters

    def _mixed(self, inputs: Tensor, features: Tensor, logits: Tensor, client: ClientView) -> Tensor:
        gate, share = client.scratch.get(GATE_NOW), self.params.general_share
        if gate is not None:
            score = full(features).mv(gate[:-1]) + gate[-1]
        else:
            score = logits.new_tensor(math.log(share / (1 - share)))
        return mixed(logits, client.scratch[EXPERT](inputs), score, mixture=self.params.mixture)

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        expert: Any = client.scratch.get(EXPERT)
        if expert is None:
            return super().loss(batch, client)
        assert client.model is not None
        # batch normalisation cannot train on one sample
        expert.train(client.model.training and len(batch.labels) > 1)
        logits = self._mixed(batch.inputs, batch.features, batch.logits, client)
        return {"cross_entropy": functional.cross_entropy(self.calibrate(logits, client), batch.labels)}

    def after_round(self, client: ClientView) -> None:
        if EXPERT not in client.scratch:
            return
        keep_private(client, PRIVATE, client.scratch[EXPERT].state_dict())
        if GATE_NOW in client.scratch:
            keep_private(client, "", {GATE: client.scratch[GATE_NOW]})

    def private_logits(self, inputs: Tensor, client: ClientView) -> Tensor:
        if EXPERT not in client.scratch:
            return super().private_logits(inputs, client)
        model: Any = client.model
        client.scratch[EXPERT].eval()
        features = model.features(inputs)
        return self._mixed(inputs, features, model.classifier(features), client)

    def deviations(self) -> list[str]:
        lines = []
        if self.params.general_share is None:
            lines.append("the gate is linear in the general model's features; the paper's is linear in the input")
        elif self.params.general_share < 1:
            lines.append("general_share: a fixed share replaces the learnt gate")
        if self.params.mixture == "logits" and self.params.general_share != 1:
            lines.append("with mixture: logits, the logits are mixed; the paper mixes predictions")
        return lines
