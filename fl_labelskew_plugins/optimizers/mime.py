r"""Mime: Breaking the Centralized Barrier for Cross-Device Federated Learning.

Algorithm 1 with SGD and momentum as the base optimiser (table 1): every local step mixes in the server's momentum
``s``, which is constant during the round,

.. math:: y \leftarrow y - \eta \bigl((1 - \beta) \, g + \beta s\bigr), \qquad
    g = \nabla f_k(y; \zeta) - \nabla f_k(x; \zeta) + c

Each client then sends its whole gradient at the server's ``x``; ``c`` is their mean, and ``s <- (1 - beta) c + beta s``
starts from ``s = 0``. The server sends the part that a step needs, ``(1 - beta) c + beta s``, with the model. ``beta``
is ``server_momentum``; local momentum must be 0. MimeLite is omitted. In round 1, without ``c``, ``g`` is the first
gradient. Both local gradients have the same draws (dropout) and normalise by the batch. Weight decay is in ``f_k``,
like the regulariser in the authors' code (google/fedjax). Clipping, and FedML's Mime: docs/mixing.md.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from fl_labelskew_registry.contracts import Aggregated, LocalWork, Optimizer
from pydantic import Field
from torch import Tensor

from fl_labelskew_plugins import params
from fl_labelskew_plugins.ops import frozen_model


class Mime(Optimizer):
    """Server momentum in every local step."""

    class Params(params.Params):
        server_optimizer: Literal["sgd"] = Field("sgd", description="the base optimiser")
        server_lr: float = Field(1.0, gt=0, description="the server's learning rate on the mean change (paper: 1)")
        server_momentum: float = Field(0.9, ge=0, lt=1, description="beta, momentum of the base optimiser")

    paper = (
        "Breaking the Centralized Barrier for Cross-Device Federated Learning, NeurIPS 2021, "
        "https://arxiv.org/abs/2008.03606"
    )
    aggregation = "uniform"
    client_optimizers = ("sgd",)
    local_momentum = False

    def deviations(self) -> list[str]:
        return [
            "c is the mean gradient at the weights of the last round, with none in the first round; algorithm 1 uses "
            "the current weights"
        ]

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        return parameters

    def before_round(self, work: LocalWork) -> None:
        client = work.client
        client.scratch["gradient"] = work.gradient()
        if client.shared:
            client.scratch["server_model"] = frozen_model(client).requires_grad_()

    def correct(self, work: LocalWork) -> None:
        """Gradient of a local step; local SGD adds the weight decay at ``y``."""
        client, beta, decay = work.client, self.params.server_momentum, work.weight_decay
        names, gradients = zip(*work.gradients().items(), strict=True)
        server_model = client.scratch.get("server_model")
        if server_model is not None:
            by_name = dict(server_model.named_parameters())
            at_start = torch.autograd.grad(work.loss(server_model), [by_name[n] for n in names])
            torch._foreach_sub_(gradients, list(at_start))
        torch._foreach_mul_(gradients, 1 - beta)
        if decay:
            torch._foreach_add_(gradients, [work.parameters[n].detach() for n in names], alpha=-beta * decay)
            if server_model is not None:
                torch._foreach_add_(gradients, [work.start[n] for n in names], alpha=(beta - 1) * decay)
        if client.shared:
            torch._foreach_add_(gradients, [client.shared[n] for n in names])

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> Mapping[str, Tensor]:
        gradient: dict[str, Tensor] = work.client.scratch["gradient"]
        return gradient

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        new, beta = dict(round.mean), self.params.server_momentum
        for name in round.parameters:
            c = round.contributions[name]
            s = (1 - beta) * c + beta * round.memory.get(name, torch.zeros_like(c))
            round.memory[name] = s
            round.shared[name] = (1 - beta) * c + beta * s
            if self.params.server_lr != 1:
                new[name] = round.old[name] + self.params.server_lr * (round.mean[name] - round.old[name])
        return new
