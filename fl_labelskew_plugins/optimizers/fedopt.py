r"""FedOpt: Adaptive Federated Optimization.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan. ICLR 2021.
https://arxiv.org/abs/2003.00295

Algorithm 2: the mean change ``Delta`` of the uploads is a gradient for the server's optimiser. ``server_form: paper``
is that algorithm,

.. math:: m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \qquad x \leftarrow x + \eta \, m / (\sqrt v + \tau)

with ``v <- v + Delta^2`` (adagrad), ``v - (1 - beta_2) Delta^2 sign(v - Delta^2)`` (yogi) or
``beta_2 v + (1 - beta_2) Delta^2`` (adam), from ``v = tau^2`` on, without bias correction. ``Delta`` has the method's
weights of the uploads (by samples, unless the method says otherwise), where algorithm 2 prints ``1/|S|``.
``server_form: host`` is torch's optimiser of that name with torch's other defaults, as FedML does it. ``sgd`` with
``server_momentum`` is FedAvgM in both. Neutral setting: ``sgd`` with ``server_lr = 1`` and no momentum is FedAvg but
for rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from fl_labelskew_registry.contracts import Optimizer
from pydantic import Field, model_validator

from fl_labelskew_plugins import params

if TYPE_CHECKING:
    from fl_labelskew_registry.contracts import Aggregated
    from torch import Tensor

HOST: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}


def adaptive_step(
    change: Tensor, m: Tensor, v: Tensor, *, kind: str, lr: float, beta1: float, beta2: float, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""One step of algorithm 2 on one tensor.

    Args:
        change: ``Delta``, mean of the clients' changes, of any shape; ``m`` and ``v`` have the same.
        m: first moment so far.
        v: second moment so far; ``tau ** 2`` at first.
        kind: ``adagrad``, ``yogi`` or ``adam``.
        lr: ``eta``.
        beta1: of the first moment.
        beta2: of the second; adagrad has none.
        tau: degree of adaptivity.

    Returns:
        What to add to the weights, the new ``m`` and the new ``v``.

    >>> one = torch.tensor([1.0])
    >>> adaptive_step(one, 0 * one, 0 * one, kind="adagrad", lr=0.5, beta1=0.0, beta2=0.0, tau=1.0)
    (tensor([0.2500]), tensor([1.]), tensor([1.]))
    """
    m = beta1 * m + (1 - beta1) * change
    square = change.square()
    if kind == "adagrad":
        v = v + square
    elif kind == "yogi":
        v = v - (1 - beta2) * square * (v - square).sign()
    else:
        v = beta2 * v + (1 - beta2) * square
    return lr * m / (v.sqrt() + tau), m, v


class FedOpt(Optimizer):
    """An optimiser on the server: momentum, Adam, Yogi or Adagrad."""

    class Params(params.Params):
        """Options of FedOpt; the first three have the host's names."""

        server_optimizer: Literal["sgd", "adam", "adagrad", "yogi"] = Field("sgd", description="the server's optimiser")
        server_lr: float = Field(1.0, gt=0, description="eta, the server's learning rate (0.01 or so with adam)")
        server_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the server's sgd (FedAvgM: 0.9)")
        server_form: Literal["host", "paper"] | None = Field(
            None, description="host: torch's optimiser; paper: algorithm 2; default: host, or paper with yogi"
        )
        server_beta1: float | None = Field(
            None, ge=0, lt=1, description="paper's form: decay of the first moment; default: 0.9, or 0 with adagrad"
        )
        server_beta2: float | None = Field(
            None, ge=0, lt=1, description="paper's form, but adagrad: decay of the second moment; default: 0.99"
        )
        server_tau: float | None = Field(None, gt=0, description="paper's form: degree of adaptivity; default: 0.001")

        @model_validator(mode="after")
        def _goes_together(self) -> FedOpt.Params:
            """Options that would do nothing are refused."""
            server = self.server_optimizer
            if server == "yogi" and self.server_form == "host":
                raise ValueError("server_form: host does not go with yogi, which torch does not have; use paper")
            if self.server_momentum and server != "sgd":
                raise ValueError(f"server_momentum does not go with {server}; use sgd, or 0")
            papers = server == "yogi" or (server != "sgd" and self.server_form == "paper")
            for name in ("server_beta1", "server_beta2", "server_tau"):
                has = papers and (name != "server_beta2" or server != "adagrad")
                if getattr(self, name) is not None and not has:
                    form = "" if server in ("sgd", "yogi") else f" with server_form: {self.server_form or 'host'}"
                    others = "adam or yogi" if name == "server_beta2" else "adam, adagrad or yogi"
                    use = f"use {others} with server_form: paper, or leave it out"
                    raise ValueError(f"{name} does not go with {server}{form}; {use}")
            return self

    paper = "Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295"

    @property
    def form(self) -> Literal["host", "paper"]:
        """Whose formula is in force."""
        chosen: Literal["host", "paper"] | None = self.params.server_form
        return chosen or ("paper" if self.params.server_optimizer == "yogi" else "host")

    def deviations(self) -> list[str]:
        """Torch's optimisers are not algorithm 2's; the weights of the uploads are the method's."""
        lines = ["uploads are weighed as the method has it; algorithm 2 prints 1/|S|"]
        if self.form == "host" and self.params.server_optimizer != "sgd":
            lines += ["server_form: host: torch's optimiser, with bias correction and another epsilon than algorithm 2"]
        return lines

    def step(self, round: Aggregated) -> dict[str, Tensor]:
        """The server's step."""
        new = dict(round.mean)
        if self.form == "host" or self.params.server_optimizer == "sgd":
            weights = {name: round.old[name].clone().requires_grad_() for name in round.parameters}
            for name, weight in weights.items():
                weight.grad = round.old[name] - round.mean[name]
            with_torch(host_optimizer(self.params, weights.values()), weights, round.memory)
            return new | {name: weight.detach() for name, weight in weights.items()}
        p = self.params
        tau = 1e-3 if p.server_tau is None else p.server_tau
        beta1 = p.server_beta1
        if beta1 is None:
            beta1 = 0.0 if p.server_optimizer == "adagrad" else 0.9
        for name in round.parameters:
            old = round.old[name]
            m, v = round.memory.get(f"m/{name}"), round.memory.get(f"v/{name}")
            change, m, v = adaptive_step(
                round.mean[name] - old,
                torch.zeros_like(old) if m is None else m,
                torch.full_like(old, tau**2) if v is None else v,
                kind=p.server_optimizer,
                lr=p.server_lr,
                beta1=beta1,
                beta2=0.99 if p.server_beta2 is None else p.server_beta2,
                tau=tau,
            )
            new[name] = old + change
            round.memory |= {f"m/{name}": m, f"v/{name}": v}
        return new


def host_optimizer(options: Any, weights: Any) -> torch.optim.Optimizer:
    """Torch's optimiser of these parameters as the host makes it; ``options`` are :class:`FedOpt.Params`."""
    more = {"momentum": options.server_momentum} if options.server_optimizer == "sgd" else {}
    optimizer: torch.optim.Optimizer = HOST[options.server_optimizer](weights, lr=options.server_lr, **more)
    return optimizer


def with_torch(optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], memory: dict[str, Tensor]) -> None:
    """One step of a torch optimiser whose state lies in ``memory``, as ``what/parameter``."""
    for key, value in memory.items():
        what, _, name = key.partition("/")
        optimizer.state[weights[name]][what] = value.clone()
    optimizer.step()
    for name, weight in weights.items():
        state = optimizer.state[weight].items()
        memory |= {f"{what}/{name}": value for what, value in state if isinstance(value, torch.Tensor)}
