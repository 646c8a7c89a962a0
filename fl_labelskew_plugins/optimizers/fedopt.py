"""FedOpt: Adaptive Federated Optimization.

Algorithm 2: the mean change of the uploads is the gradient for the server's optimiser. ``sgd`` with ``server_momentum``
is FedAvgM, and with ``server_lr = 1`` and no momentum FedAvg except for rounding.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from fl_labelskew_registry.contracts import Aggregated, Optimizer
from pydantic import Field, model_validator
from torch import Tensor

from fl_labelskew_plugins import params

TORCH: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}


class FedOpt(Optimizer):
    """An optimiser on the server: momentum, Adam or Adagrad."""

    class Params(params.Params):
        server_optimizer: Literal["sgd", "adam", "adagrad"] = Field("sgd", description="the server's optimiser")
        server_lr: float = Field(1.0, gt=0, description="eta, the server's learning rate (0.01 or so with adam)")
        server_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the server's sgd (FedAvgM: 0.9)")

        @model_validator(mode="after")
        def _momentum_needs_sgd(self) -> FedOpt.Params:
            if self.server_momentum and self.server_optimizer != "sgd":
                raise ValueError(f"server_momentum has no effect with {self.server_optimizer}; use sgd, or 0")
            return self

    paper = "Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295"

    def deviations(self) -> list[str]:
        lines = ["uploads have the method's weights; algorithm 2 prints 1/|S|"]
        if self.params.server_optimizer != "sgd":
            lines += ["the server's optimiser is torch's: bias correction, and an epsilon unlike algorithm 2"]
        return lines

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        """One step of the server's optimiser, which has its state in ``memory`` under ``entry/parameter``."""
        p = self.params
        weights = {name: round.old[name].clone().requires_grad_() for name in round.parameters}
        for name, weight in weights.items():
            weight.grad = round.old[name] - round.mean[name]
        options = {"momentum": p.server_momentum} if p.server_optimizer == "sgd" else {}
        optimizer: torch.optim.Optimizer = TORCH[p.server_optimizer](weights.values(), lr=p.server_lr, **options)
        for key, value in round.memory.items():
            entry, _, name = key.partition("/")
            optimizer.state[weights[name]][entry] = value.clone()
        optimizer.step()
        for name, weight in weights.items():
            state = optimizer.state[weight].items()
            round.memory |= {f"{entry}/{name}": value for entry, value in state if isinstance(value, torch.Tensor)}
        return round.mean | {name: weight.detach() for name, weight in weights.items()}
