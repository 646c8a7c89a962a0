"""Single-process rounds inside FedML, the host: with our training, or with its own training and corrected faults."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from fedml.simulation.sp.fednova.fednova_trainer import FedNovaTrainer
from fedml.simulation.sp.fedopt.fedopt_api import FedOptAPI
from fedml.simulation.sp.fedprox.fedprox_trainer import FedProxTrainer
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fl_labelskew_plugins.engine.aggregate import check_made, check_upload, numbers
from fl_labelskew_plugins.engine.isolation import WITHOUT_CLIENT, Baseline
from fl_labelskew_plugins.engine.local import LocalResult, LocalSettings, learning_rate, load, snapshot
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.tensors import State, Weights, joined


def train(host: Any, record: Record) -> None:
    """Run the remaining rounds; ``host``: a :class:`.host.framework.FedML`."""
    session = record.session
    if compatibility.choice(session.recipe, session.trainer.model)[0] == "corrected":
        HostedFederation(host.args, record).train()
    else:
        SingleProcess(host, record).train()


class SingleProcess(FedAvgAPI):  # type: ignore[misc]  # the host is untyped
    """The host's federation with our trainer, aggregator and rounds."""

    def __init__(self, host: Any, record: Record) -> None:
        local = record.session.trainer
        super().__init__(host.args, local.device, [None] * 8, local.model)
        self.model_trainer, self.aggregator = host.trainer(local), host.hooks(local.model)
        self.rounds = Simulation(record, take=self.model_trainer.take, hooks=self.aggregator)

    def _setup_clients(self, *parts: Any) -> None:
        """Do nothing, as the simulation has its own clients."""

    def train(self) -> None:
        """Run the remaining rounds."""
        for _ in self.rounds:
            pass


class Hosted:
    """Our additions to each of the host's trainers."""

    clients: Sequence[int] = ()
    absent: int = 0
    """Samples of clients outside the round, if the method weighs by all clients' samples."""
    old: Weights

    def client_sampling(self, *_: Any) -> Sequence[int]:
        """The round's clients."""
        return self.clients

    def test(self, *_: Any) -> None:
        """The runtime evaluates."""

    _client_sampling = client_sampling
    local_test_on_all_clients = _local_test_on_all_clients = test

    def _aggregate(self, w_locals: list[tuple[int, Weights]]) -> Any:
        """The host's mean, with the old model for clients outside the round."""
        if self.absent:
            w_locals = [*w_locals, (self.absent, self.old)]
        return super()._aggregate(w_locals)  # type: ignore[misc]

    def memory(self) -> State:
        """Tensors kept between rounds; copies, or never changed in place."""
        return {}

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Restore :meth:`memory`."""


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
        """State of the server's optimiser, by ``quantity/parameter``."""
        return {
            f"{quantity}/{name}": value.clone()
            for name, parameter in self.model_trainer.model.named_parameters()
            for quantity, value in self.opt.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Restore the server's optimiser, which computes on the CPU."""
        parameters = dict(self.model_trainer.model.named_parameters())
        for key, value in memory.items():
            quantity, _, name = key.partition("/")
            self.opt.state[parameters[name]][quantity] = value.to("cpu", copy=True)


class HostedFedNova(Hosted, FedNovaTrainer):  # type: ignore[misc]
    """The host's FedNova, with the method's weights."""

    def aggregate(self, params: Any, norm_grads: Any, tau_effs: Any, tau_eff: Any = 0) -> Any:
        """See :class:`Hosted`."""
        present = sum(self.train_data_local_num_dict[client] for client in self.clients)
        share = present / (present + self.absent)
        return super().aggregate(params, norm_grads, tau_effs, share * sum(tau_effs))


HOSTED: dict[str, Any] = {
    "FedAvg": HostedFedAvg,
    "FedProx": HostedFedProx,
    "FedOpt": HostedFedOpt,
    "FedNova": HostedFedNova,
}


class HostedFederation(Simulation):
    """A run with the host's local training and aggregation."""

    def __init__(self, args: Any, record: Record) -> None:
        super().__init__(record, server=partial(HostedServer, self))
        self.args, session = args, record.session
        self.turn: HostedTurn | None = None
        self.round_number = 0
        self.results: list[tuple[int, LocalResult]] = []
        local, recipe = session.trainer, session.recipe
        self.network = copy.deepcopy(local.model)  # the host moves it from device to device
        load(self.network, record.weights)
        self.network.register_forward_hook(self._calibrating())
        name, self.settings = recipe.train.federated_optimizer, local.settings
        args.comm_round, args.client_num_per_round = 1, session.federation.clients_per_round
        # keys of the host that repeat others or concern its tests
        args.wd, args.ci, args.frequency_of_the_test = recipe.train.weight_decay, 0, 1
        args.dampening, args.nesterov, args.mu, args.gmf = 0.0, False, 0.0, 0.0
        inputs: tuple[Any, ...] = (args, local.device, self._dataset(), self.network)
        if name in ("FedProx", "FedNova"):  # their arguments have another order
            inputs = (*inputs[2:], local.device, args)
        self.host = HOSTED[name](*inputs)
        if record.next_round:
            self.host.restore(record.memory)
        self.host.client_list = [ClientSlot(self, client) for client in self.host.client_list]
        if trainer := getattr(self.host, "model_trainer", None):
            shared_weights = trainer.get_model_params
            trainer.get_model_params = lambda: {name: value.clone() for name, value in shared_weights().items()}
        self.share()

    def train(self) -> None:
        """Run the remaining rounds."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This overload of", UserWarning)  # the host's FedNova
            for _ in self:
                pass

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Let the host train and aggregate; yield the uploads."""
        host, session, method = self.host, self.session, self.session.method
        self.round_number, self.results, host.clients = round, [], clients
        host.old = {name: value.cpu() for name, value in self.server.weights.items()}
        self.args.learning_rate = learning_rate(self.settings, round)
        if method.aggregation == "population":
            host.absent = session.federation.num_samples - sum(session.sizes[k] for k in clients)
        host.train()
        yield from self.results

    def run_turn(self, client: int, train: Callable[[], Any], network: nn.Module) -> Any:
        """Train a client's ``network``; return the upload of the host's client."""
        local, record, round = self.session.trainer, self.record, self.round_number
        record.progress.client(round, len(self.results) + 1, len(self.host.clients), local.names.get(client, ""))
        turn = Turn(local, client, round, shared=self.server.shared, times_selected=record.states.select(client))
        self.turn = HostedTurn(turn, network, self.settings.epochs)
        of_method, baseline = local.unchanged[0], Baseline(network)
        of_method.check(*WITHOUT_CLIENT)
        try:
            with turn.seeded(), with_recipe_settings(self.settings):
                sent = train()
        finally:
            baseline.restore()
        of_method.check("calibrate")
        result = LocalResult(snapshot(network), {}, {}, {})
        self.server.check(client, round, result)
        test = local.test_indices[client]
        if record.personalised and record.tests(round) and len(test):
            logits, labels = local.predict(test, result.upload)
            result.personalised = (int((logits.argmax(1) == labels).sum()), len(labels))
        result.upload = dict(enumerate(tensors(sent)))  # type: ignore[arg-type]  # only its size is needed
        self.results.append((client, result))
        return sent

    def share(self) -> None:
        """Copy the state of the host's server to ours."""
        device, memory = self.session.trainer.device, self.host.memory()
        weights = {name: value.to(device) for name, value in snapshot(self.network).items()}
        check_made({**joined(memory=memory), **weights}, self.server.optimizer)
        self.server.weights, self.server.memory = weights, memory

    def _calibrating(self) -> Callable[..., Tensor | None]:
        """A forward hook with the method's calibration, shared by copies of the network."""

        def calibrate(module: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> Tensor | None:
            if not module.training or self.turn is None:
                return None
            return self.session.method.calibrate(logits.float(), self.turn.view)

        return calibrate

    def _dataset(self) -> list[Any]:
        """The host's 8-tuple; it reads the sizes, and the batches of the client in training."""
        sizes = dict(enumerate(self.session.sizes))
        if self.session.method.aggregation == "uniform":
            sizes = dict.fromkeys(sizes, 1)
        batches, classes = dict.fromkeys(sizes, Epochs(self)), self.session.federation.num_classes
        return [0, 0, None, None, sizes, batches, dict.fromkeys(sizes), classes]


class HostedServer(Server):
    """Our server, whose state the host changes."""

    def __init__(self, hosted: HostedFederation, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.hosted = hosted

    def check(self, client: int, round: int, result: LocalResult) -> None:
        """Check only the weights; the host handles other uploads."""
        where = f"round {round + 1}: upload of {self.name(client)}"
        check_upload(result.upload, self.weights, where=where, keys=numbers(self.optimizer))

    def run_round(
        self,
        clients: Sequence[int],
        sizes: Sequence[int],
        uploads: Iterable[tuple[int, LocalResult]],
        *_: Any,
        **__: Any,
    ) -> list[int]:
        """Copy the result of the host's round."""
        participants = [client for client, _ in uploads]
        self.hosted.share()
        return participants


class HostedTurn:
    """A client's view of the network, and its batches of the round."""

    def __init__(self, inner: Turn, network: nn.Module, epochs: int) -> None:
        self.inner, self.view = inner, replace(inner.view, model=network)
        self.batches, total = inner.batches()
        self.per_epoch = total // epochs

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The next epoch's batches."""
        return itertools.islice(self.batches, self.per_epoch)


class Epochs:
    """A data loader for the host; each iteration is an epoch of the client in training."""

    def __init__(self, hosted: HostedFederation) -> None:
        self.hosted = hosted

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.hosted.turn is not None  # the host reads it only in local training
        return self.hosted.turn.epoch()


class ClientSlot:
    """One of the host's client objects, which it uses for many clients."""

    def __init__(self, hosted: HostedFederation, inner: Any) -> None:
        self.hosted, self.inner, self.client = hosted, inner, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_local_dataset(self, client: int, *data: Any) -> None:
        """Set the next client."""
        self.client = client
        self.inner.update_local_dataset(client, *data)

    def train(self, *sent: Any, **more: Any) -> Any:
        """Run the host's training; FedNova passes a network."""
        network = more.get("net", self.hosted.network)
        return self.hosted.run_turn(self.client, partial(self.inner.train, *sent, **more), network)


@contextlib.contextmanager
def with_recipe_settings(settings: LocalSettings) -> Iterator[None]:
    """Context in which SGD and Adam use the recipe's settings, not their constructors' arguments."""
    of_sgd = {"momentum": settings.momentum, "weight_decay": settings.weight_decay, "fused": True}
    options: dict[type, Any] = {torch.optim.SGD: of_sgd, torch.optim.Adam: {"amsgrad": False, "fused": True}}

    def before_step(optimizer: torch.optim.Optimizer, args: Any, more: Any) -> None:
        for parameters in optimizer.param_groups:
            parameters.update(options.get(type(optimizer), {}))

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield
    finally:
        handle.remove()


def tensors(sent: Any) -> Iterator[Tensor]:
    """All tensors in the upload of one of the host's clients."""
    if isinstance(sent, Tensor):
        yield sent
    elif isinstance(sent, Mapping):
        yield from tensors(list(sent.values()))
    elif isinstance(sent, list | tuple):
        for part in sent:
            yield from tensors(part)
