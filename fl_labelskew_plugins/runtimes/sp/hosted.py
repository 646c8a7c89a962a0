"""The rounds of one of the host's trainers: its code trains and aggregates, all else is this package's."""

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
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fl_labelskew_plugins.engine.aggregate import check_made, check_upload, numbers
from fl_labelskew_plugins.engine.isolation import BETWEEN, Baseline
from fl_labelskew_plugins.engine.local import LocalResult, LocalSettings, learning_rate, load, snapshot
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.recipe.host_faults import LIVE_IN_EVERY_ROUND
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.runtimes.sp.host_optimizers import AS_THEY_ARE, CORRECTED, make
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, group, joined, rest


class HostedFederation(Simulation):
    """A run whose local training and aggregation are the host's; ``corrected``: without the host's faults."""

    def __init__(self, args: Any, record: Record, *, corrected: bool) -> None:
        super().__init__(record, server=partial(HostedServer, self))
        self.args, self.corrected, session = args, corrected, record.session
        self.turn: HostedTurn | None = None
        self.round_number = 0
        self.results: list[tuple[int, LocalResult]] = []
        local, recipe = session.trainer, session.recipe
        self.network = copy.deepcopy(local.model)  # the host moves it from device to device
        load(self.network, record.weights)
        self.network.register_forward_hook(self._calibrating())
        name, self.settings = recipe.train.federated_optimizer, local.settings
        args.comm_round, args.client_num_per_round = 1, session.federation.clients_per_round
        # keys of the host's that repeat others, or have to do with its tests, of which it makes none here
        args.wd, args.ci, args.frequency_of_the_test = recipe.train.weight_decay, 0, 1
        # options of the host's FedNova and Mime that recipes do not have
        args.dampening, args.nesterov, args.mu, args.gmf, args.mimelite = 0.0, False, 0.0, 0.0, False
        kind = (CORRECTED if corrected else AS_THEY_ARE)[name]
        self.host = make(kind, args=args, device=local.device, dataset=self._dataset(), model=self.network)
        if record.next_round:
            self.host.restore(group(record.shared, OPTIMIZER), record.memory)
        self.host.client_list = [Slot(self, client) for client in self.host.client_list]
        self._trainer = getattr(self.host, "model_trainer", None)
        self._always_live = name in LIVE_IN_EVERY_ROUND
        self.share()

    def train(self) -> None:
        """All rounds that are left."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This overload of", UserWarning)  # the host's FedNova
            for _ in self:
                pass

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Let the host train the clients and aggregate; then what each of them sent."""
        host, session, method = self.host, self.session, self.session.method
        self.round_number, self.results, host.clients = round, [], clients
        host.old = {name: value.cpu() for name, value in self.server.weights.items()}
        if self.corrected:
            self.args.learning_rate = learning_rate(self.settings, round)
            if method.aggregation == "population":
                host.absent = session.federation.num_samples - sum(session.sizes[k] for k in clients)
        if self._trainer is not None:
            # only the host's train() as a whole hands out live weights in one round and its own mean in the next
            copies = self.corrected or (round > 0 and not self._always_live)
            host.model_trainer = Copies(self._trainer) if copies else self._trainer
        host.train()
        yield from self.results

    def play(self, client: int, train: Callable[[], Any], network: nn.Module) -> Any:
        """A client's turn: the host's local training of this network; what the host's client sends."""
        local, record, round = self.session.trainer, self.record, self.round_number
        record.progress.client(round, len(self.results) + 1, len(self.host.clients), local.names.get(client, ""))
        shared = rest(self.server.shared, OPTIMIZER)
        turn = Turn(local, client, round, shared=shared, times_selected=record.states.select(client))
        self.turn = HostedTurn(turn, network, self.settings.epochs)
        as_asked = asked_for(self.settings) if self.corrected else contextlib.nullcontext()
        of_method, baseline = local.unchanged[0], Baseline(network)
        of_method.check(*BETWEEN)
        try:
            with turn.seeded(), as_asked:
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
        result.upload = dict(enumerate(tensors(sent)))  # type: ignore[arg-type]  # of which only the size is asked
        self.results.append((client, result))
        return sent

    def share(self) -> None:
        """Tell our server where the host's stands."""
        device, (shared, memory) = self.session.trainer.device, (self.host.shared(), self.host.memory())
        weights = {name: value.to(device) for name, value in snapshot(self.network).items()}
        check_made({**joined(shared=shared, memory=memory), **weights}, self.server.optimizer)
        self.server.weights, self.server.memory = weights, memory
        self.server.shared = rest(self.server.shared, OPTIMIZER) | joined(**{OPTIMIZER: shared})

    def _calibrating(self) -> Callable[..., Tensor | None]:
        """Makes the method's logits of a network's in training; copies of the network share it."""

        def calibrate(module: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> Tensor | None:
            if not module.training or self.turn is None:
                return None
            return self.session.method.calibrate(logits.float(), self.turn.view)

        return calibrate

    def _dataset(self) -> list[Any]:
        """The host's 8-tuple: of it the host reads sizes and, in a client's turn, its batches; nothing else is told."""
        sizes = dict(enumerate(self.session.sizes))
        if self.corrected and self.session.method.aggregation == "uniform":
            sizes = dict.fromkeys(sizes, 1)
        batches, classes = dict.fromkeys(sizes, Epochs(self)), self.session.federation.num_classes
        return [0, 0, None, None, sizes, batches, dict.fromkeys(sizes), classes]


class HostedServer(Server):
    """The server's state, which the host changes."""

    def __init__(self, hosted: HostedFederation, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.hosted = hosted

    def check(self, client: int, round: int, result: LocalResult) -> None:
        """Weights alone: what the host's clients send beside them is between them and the host."""
        where = f"round {round + 1}: upload of {self.name(client)}"
        check_upload(result.upload, self.weights, where=where, keys=numbers(self.optimizer))

    def run_round(
        self,
        clients: Sequence[int],
        sizes: Sequence[int],
        uploads: Iterable[tuple[int, LocalResult]],
        *_: Any,
        **more: Any,
    ) -> list[int]:
        """Take over what the host's round has left."""
        came = [client for client, _ in uploads]
        self.hosted.share()
        return came


class HostedTurn:
    """A client in the host's training: its view of the network that is trained, and the batches of its round."""

    def __init__(self, inner: Turn, network: nn.Module, epochs: int) -> None:
        self.inner, self.view = inner, replace(inner.view, model=network)
        self.batches, total = inner.batches()
        self.left, self.per_epoch = epochs, total // epochs

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The next epoch's batches; after the last one, the first comes again."""
        if self.left == 0:  # Mime reads all once more
            self.batches, total = self.inner.batches()
            self.left = total // self.per_epoch
        self.left -= 1
        return itertools.islice(self.batches, self.per_epoch)


class Epochs:
    """What the host takes for a client's data loader: an epoch of the client whose turn it is, every time."""

    def __init__(self, hosted: HostedFederation) -> None:
        self.hosted = hosted

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.hosted.turn is not None  # the host reads it in local training alone
        return self.hosted.turn.epoch()


class Slot:
    """One of the host's clients, through which clients pass; what it trains is watched."""

    def __init__(self, hosted: HostedFederation, inner: Any) -> None:
        self.hosted, self.inner, self.client = hosted, inner, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_local_dataset(self, client: int, *data: Any) -> None:
        """Whose turn comes."""
        self.client = client
        self.inner.update_local_dataset(client, *data)

    def train(self, *sent: Any, **more: Any) -> Any:
        """The host's local training; its FedNova brings a network of its own."""
        network = more.get("net", self.hosted.network)
        return self.hosted.play(self.client, partial(self.inner.train, *sent, **more), network)


class Copies:
    """One of the host's model trainers, handing out copies of its weights."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_model_params(self) -> Weights:
        """The weights, which nobody else holds."""
        return {name: value.clone() for name, value in self.inner.get_model_params().items()}


@contextlib.contextmanager
def asked_for(settings: LocalSettings) -> Iterator[None]:
    """Within it, SGD and Adam do what a recipe asks for, whatever they were made with."""
    options: dict[type, dict[str, Any]] = {
        torch.optim.SGD: {
            "momentum": settings.momentum,
            "weight_decay": settings.weight_decay,
            "fused": True,
        },
        torch.optim.Adam: {"amsgrad": False, "fused": True},
    }

    def before_step(optimizer: torch.optim.Optimizer, args: Any, more: Any) -> None:
        for parameters in optimizer.param_groups:
            parameters.update(options.get(type(optimizer), {}))

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield
    finally:
        handle.remove()


def tensors(sent: Any) -> Iterator[Tensor]:
    """All tensors in what one of the host's clients returns."""
    if isinstance(sent, Tensor):
        yield sent
    elif isinstance(sent, Mapping):
        yield from tensors(list(sent.values()))
    elif isinstance(sent, list | tuple):
        for part in sent:
            yield from tensors(part)
