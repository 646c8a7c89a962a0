"""The host's trainers, each told from outside who takes part in a round; and those without their faults.

What a trainer remembers from round to round can be read and set as tensors: what goes to the clients with the next
model, and what stays on the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from fedml.simulation.sp.feddyn.feddyn_trainer import FedDynTrainer
from fedml.simulation.sp.fednova.fednova_trainer import FedNovaTrainer
from fedml.simulation.sp.fedopt.fedopt_api import FedOptAPI
from fedml.simulation.sp.fedprox.fedprox_trainer import FedProxTrainer
from fedml.simulation.sp.mime.mime_trainer import MimeTrainer
from fedml.simulation.sp.scaffold.scaffold_trainer import ScaffoldTrainer
from torch import Tensor, nn

from fl_labelskew_plugins.tensors import State, Weights, group, joined


class Hosted:
    """What is ours in each of the host's trainers.

    ``clients`` are those of the round. ``absent`` is, where a method weighs by all clients' samples, how many samples
    are not in the round, and ``old`` the weights that the round starts from.
    """

    clients: Sequence[int] = ()
    absent: int = 0
    old: Weights

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

    def shared(self) -> State:
        """Tensors beside the model that go to the clients of the next round."""
        return {}

    def memory(self) -> State:
        """Tensors that stay with the server, or with the host's clients; copies, or never changed in place."""
        return {}

    def restore(self, shared: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """Set what :meth:`shared` and :meth:`memory` gave."""


class FedAvg(Hosted, FedAvgAPI):  # type: ignore[misc]  # the host is untyped, here and below
    """The host's FedAvg."""


class FedProx(Hosted, FedProxTrainer):  # type: ignore[misc]
    """The host's FedProx."""


class FedOpt(Hosted, FedOptAPI):  # type: ignore[misc]
    """The host's FedOpt."""

    def memory(self) -> State:
        """The server's optimiser."""
        return optimizer_state(self.opt, self.model_trainer.model)

    def restore(self, shared: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """The server's optimiser."""
        set_optimizer_state(self.opt, self.model_trainer.model, memory)


class FedNova(Hosted, FedNovaTrainer):  # type: ignore[misc]
    """The host's FedNova."""


class FedDyn(Hosted, FedDynTrainer):  # type: ignore[misc]
    """The host's FedDyn."""

    def memory(self) -> State:
        """The server's state, and each client's gradient."""
        gradients = {str(i): client.old_grad for i, client in enumerate(self.client_list)}
        server = {name: value.clone() for name, value in self.server_state.items()}
        return joined(server_state=server, old_grad=joined(**gradients))

    def restore(self, shared: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """The server's state, and each client's gradient."""
        self.server_state = {name: value.cpu() for name, value in group(memory, "server_state").items()}
        gradients = group(memory, "old_grad")
        for i, client in enumerate(self.client_list):
            client.old_grad = group(gradients, str(i))


class Mime(Hosted, MimeTrainer):  # type: ignore[misc]
    """The host's Mime."""

    def shared(self) -> State:
        """The mean gradient, and the server's optimiser."""
        gradient = {name: value.clone() for name, value in self.grad_global.items()}
        return joined(grad_global=gradient, state=optimizer_state(self.opt, self.model_trainer.model))

    def restore(self, shared: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """The mean gradient, and the server's optimiser."""
        self.grad_global = {name: value.cpu() for name, value in group(shared, "grad_global").items()}
        set_optimizer_state(self.opt, self.model_trainer.model, group(shared, "state"))


class SCAFFOLD(Hosted, ScaffoldTrainer):  # type: ignore[misc]
    """The host's SCAFFOLD, which is not SCAFFOLD; its clients' control variates never change."""

    def shared(self) -> State:
        """The server's control variate."""
        return {name: value.clone() for name, value in self.c_model_global.state_dict().items()}

    def restore(self, shared: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
        """The server's control variate."""
        self.c_model_global.load_state_dict(dict(shared))


class CorrectedFedOpt(FedOpt):
    """The host's FedOpt, with the server's momentum."""

    def _instanciate_opt(self) -> None:
        super()._instanciate_opt()
        for parameters in self.opt.param_groups:
            if self.args.server_momentum:
                parameters["momentum"] = self.args.server_momentum


class CorrectedFedNova(FedNova):
    """The host's FedNova, with the method's weights."""

    def aggregate(self, params: Any, norm_grads: Any, tau_effs: Any, tau_eff: Any = 0) -> Any:
        """The host's mean, with the old model for the samples of clients outside the round."""
        present = sum(self.train_data_local_num_dict[client] for client in self.clients)
        share = present / (present + self.absent)
        return super().aggregate(params, norm_grads, tau_effs, share * sum(tau_effs))


AS_THEY_ARE: dict[str, Any] = {
    kind.__name__: kind for kind in (FedAvg, FedProx, FedOpt, FedNova, FedDyn, Mime, SCAFFOLD)
}
CORRECTED: dict[str, Any] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedOpt": CorrectedFedOpt,
    "FedNova": CorrectedFedNova,
}


def make(kind: type[Any], *, args: Any, device: torch.device, dataset: list[Any], model: nn.Module) -> Any:
    """One of the host's trainers; it has two orders of arguments."""
    if issubclass(kind, FedAvgAPI | FedOptAPI):
        return kind(args, device, dataset, model)
    return kind(dataset, model, device, args)


def optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> State:
    """Copies of an optimiser's tensors, as ``what/parameter``."""
    return {
        f"{what}/{name}": value.clone()
        for name, parameter in model.named_parameters()
        for what, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def set_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Set what :func:`optimizer_state` gave; the host's server computes on the CPU."""
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        what, _, name = key.partition("/")
        optimizer.state[parameters[name]][what] = value.to("cpu", copy=True)
