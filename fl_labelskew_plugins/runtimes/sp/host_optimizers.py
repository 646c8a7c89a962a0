"""FedML's trainers without their faults, each told from outside which clients take part in a round.

What a trainer remembers from round to round can be read and set as tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from fedml.simulation.sp.fednova.client import Client as FedNovaClient
from fedml.simulation.sp.fednova.fednova_trainer import FedNovaTrainer
from fedml.simulation.sp.fedopt.fedopt_api import FedOptAPI
from fedml.simulation.sp.fedprox.fedprox_trainer import FedProxTrainer
from torch import Tensor, nn

from fl_labelskew_plugins.tensors import State, Weights


class Hosted:
    """What is ours in each of the host's trainers.

    ``clients`` are those of the round. ``absent`` is, where a method weighs by all clients' samples, how many samples
    are not in the round, and ``old`` the weights that the round starts from. ``coefficients`` tells ``||a||_1`` of a
    number of local steps.
    """

    clients: Sequence[int] = ()
    absent: int = 0
    old: Weights
    coefficients: Callable[[int], float]

    def client_sampling(self, *_: Any) -> Sequence[int]:
        """The clients of the round."""
        return self.clients

    def test(self, *_: Any) -> None:
        """Evaluation is the runtime's."""

    _client_sampling = client_sampling
    local_test_on_all_clients = _local_test_on_all_clients = test

    def _aggregate(self, w_locals: list[tuple[int, Weights]]) -> Any:
        """The host's mean, with the old model for the samples of those who do not take part."""
        if self.absent:
            w_locals = [*w_locals, (self.absent, self.old)]
        return super()._aggregate(w_locals)  # type: ignore[misc]

    def memory(self) -> State:
        """Tensors that stay with the server; copies, or never changed in place."""
        return {}

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Set what :meth:`memory` gave."""


class HostedFedAvg(Hosted, FedAvgAPI):  # type: ignore[misc]  # the host is untyped, here and below
    """The host's FedAvg."""


class HostedFedProx(Hosted, FedProxTrainer):  # type: ignore[misc]
    """The host's FedProx."""


class HostedFedOpt(Hosted, FedOptAPI):  # type: ignore[misc]
    """The host's FedOpt, with the server's momentum."""

    def _instanciate_opt(self) -> None:
        super()._instanciate_opt()
        for parameters in self.opt.param_groups:
            if self.args.server_momentum:
                parameters["momentum"] = self.args.server_momentum

    def memory(self) -> State:
        """The server's optimiser, as ``what/parameter``."""
        return {
            f"{what}/{name}": value.clone()
            for name, parameter in self.model_trainer.model.named_parameters()
            for what, value in self.opt.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """The server's optimiser, which computes on the CPU."""
        parameters = dict(self.model_trainer.model.named_parameters())
        for key, value in memory.items():
            what, _, name = key.partition("/")
            self.opt.state[parameters[name]][what] = value.to("cpu", copy=True)


class NovaClient(FedNovaClient):  # type: ignore[misc]
    """The host's client, with the normalising vector of its whole optimiser."""

    trainer: HostedFedNova

    def get_local_norm_grad(self, opt: Any, cur_params: Any, init_params: Any, weight: int = 0) -> Any:
        """The host's normalised change."""
        opt.local_normalizing_vec = self.trainer.coefficients(opt.local_steps)
        return super().get_local_norm_grad(opt, cur_params, init_params, weight)


class HostedFedNova(Hosted, FedNovaTrainer):  # type: ignore[misc]
    """The host's FedNova, with ``gmf`` over the rounds, the whole normalising vector and the method's weights."""

    def setup_clients(self, num: Any, train: Any, test: Any) -> None:
        """As many as take part in a round."""
        self.buffer: Weights = {}
        every = range(self.args.client_num_per_round)
        self.client_list = [NovaClient(k, train[k], test[k], num[k], self.args, self.device) for k in every]
        for client in self.client_list:
            client.trainer = self

    def aggregate(self, params: Any, norm_grads: Any, tau_effs: Any, tau_eff: Any = 0) -> Any:
        """The host's, with the buffer of the rounds before, which is in units of weights: no schedule rescales it."""
        present = sum(self.train_data_local_num_dict[client] for client in self.clients)
        share = present / (present + self.absent)
        self.global_momentum_buffer = self.buffer
        rate, self.args.learning_rate = self.args.learning_rate, 1.0
        try:
            return super().aggregate(params, norm_grads, tau_effs, share * sum(tau_effs))
        finally:
            self.args.learning_rate = rate

    def memory(self) -> State:
        """The server's momentum."""
        return {name: value.clone() for name, value in self.buffer.items()}

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """The server's momentum."""
        self.buffer = {name: value.clone() for name, value in memory.items()}


HOSTED: dict[str, Any] = {
    "FedAvg": HostedFedAvg,
    "FedProx": HostedFedProx,
    "FedOpt": HostedFedOpt,
    "FedNova": HostedFedNova,
}
"""By the optimiser's name."""


def make(name: str, *, args: Any, device: torch.device, dataset: list[Any], model: nn.Module) -> Any:
    """One of the host's trainers; it has two orders of arguments."""
    kind = HOSTED[name]
    if name in ("FedAvg", "FedOpt"):
        return kind(args, device, dataset, model)
    return kind(dataset, model, device, args)
