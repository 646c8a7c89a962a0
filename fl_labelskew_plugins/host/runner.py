"""``fl.fedml``: our methods in FedML's own scripts, see docs/fedml.md.

FedML averages uploads by name, weighted by samples, and over MPI it calls only get_model_params, set_model_params and
test of an aggregator. So the mean of uploads of :func:`pack` contains everything that the server needs.
"""

import contextlib
import copy
import logging
import secrets
import sys
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fedml.core import ClientTrainer
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from fl_labelskew_registry import Contribution, LabelSkewError, Method, Total, mistake
from safetensors.torch import load_file
from torch import Tensor, nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import WeightedMean, check_extra, check_result, check_upload, share_of_old
from fl_labelskew_plugins.engine.local import snapshot
from fl_labelskew_plugins.engine.samples import Samples
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.host.start import offline
from fl_labelskew_plugins.host.task import Task
from fl_labelskew_plugins.tensors import State, Weights, group, joined, rest, save_atomic

__all__ = ["aggregator", "offline", "trainer"]

LOG = logging.getLogger("fl_labelskew_plugins")
GROUP = "fl_labelskew"  # of tensors that do not belong to the model
TIMES = f"{GROUP}/times"  # a client's number of selections


def pack(weights: Weights, sums: Mapping[str, Tensor], *, samples: int, uniform: bool) -> OrderedDict[str, Tensor]:
    """An upload with a sample-weighted mean that is sufficient for the server.

    The mean of ``1 / n_k`` is the number of clients divided by their samples. So the mean of ``s_k / n_k``, divided by
    that, is a plain mean of ``s_k``. ``samples``: ``n_k``; ``uniform``: the server needs a plain mean of the weights.
    """
    inverse = torch.tensor(1 / samples, dtype=torch.float64)
    if uniform:
        weights = {k: (v if v.is_floating_point() else v.double()) / samples for k, v in weights.items()}
    apart = {"inverse": inverse, **joined(sum={k: v.cpu().double() * inverse for k, v in sums.items()})}
    return OrderedDict(weights | joined(**{GROUP: apart}))


def unpack(
    mean: Weights, apart: Weights, old: Weights, *, aggregation: str, clients: int, population: int
) -> tuple[Weights, Weights]:
    """The aggregated weights and float32 sums, from the mean of uploads of :func:`pack`.

    ``apart``: mean of the other tensors, empty for plain weights; ``old``: the weights at the start of the round;
    ``population``: training samples of all clients.
    """
    inverse = float(apart["inverse"]) if apart else 1.0
    samples = clients / inverse  # of the round's clients
    factor = {"uniform": 1 / inverse, "population": samples / population}.get(aggregation, 1.0)
    running = WeightedMean(old)
    running.add(mean, factor)
    weights = running.result(share_of_old([factor]) if aggregation == "population" else 0.0)
    return weights, {name: (value.cpu() * samples).float() for name, value in group(apart, "sum").items()}


class Trainer(ClientTrainer):  # type: ignore[misc]
    """Train FedML's clients with a label-skew method; pass it to ``FedMLRunner`` as ``client_trainer``.

    docs/fedml.md describes the arguments. ``model``, which is copied, returns logits ``(B, C)``; ``dataset[5][k]``:
    client ``k``'s batches of inputs ``(B, ...)`` and labels ``(B,)``; ``counts``: ``(K, C)`` training samples;
    ``parameters``: the method's, such as ``tau=0.5``.

    Raises:
        LabelSkewError: FedML's runner or messages do not support this, or values are invalid.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Any,
        *,
        dataset: Sequence[Any],
        method: str | Method,
        counts: Any = None,
        state_dir: str | Path | None = None,
        **parameters: Any,
    ) -> None:
        # before FedML sees the arguments
        self.task = Task(model, args, dataset=dataset, method=method, counts=counts, state_dir=state_dir, **parameters)
        super().__init__(model, args)
        self._given, self._message = model, OrderedDict[str, Tensor]()
        self._states: dict[int, State] = {}
        self._secret = None if self.task.simulated else secrets.randbits(128)

    def get_model_params(self) -> OrderedDict[str, Tensor]:
        """The server's message before training, the upload after it."""
        return self._message

    def set_model_params(self, model_parameters: Mapping[str, Tensor]) -> None:
        """Store the server's message."""
        self._message = OrderedDict(model_parameters)

    def train(self, train_data: Any, device: torch.device, args: Any) -> None:
        """Train one client for a round; raises LabelSkewError for unsuitable data, RunError if training diverges."""
        with _abort_on_error(args):
            self._train(train_data, torch.device(device), int(args.round_idx))

    def _train(self, train_data: Any, device: torch.device, round: int) -> None:
        task, received = self.task, group(self._message, GROUP)
        if task.plain == bool(received) or (received and not torch.equal(received["mark"].cpu(), task.mark)):
            use = "fl.fedml.aggregator with the same method and parameters"
            raise mistake("fl.fedml.trainer", "the server's aggregator does not fit this trainer", use)
        client = self._client(train_data)
        weights = task.inward(self._message, device)
        state = self._state(client)
        times = int(state.pop(TIMES, torch.tensor(0))) + 1
        train, test = self._samples(client, train_data, round, device)
        fresh = partial(task.inward, self._given.state_dict(), device)
        local = task.local(client, train, test, secret=self._secret, fresh=fresh)
        turn = Turn(
            local,
            client,
            round,
            shared={name: value.to(device) for name, value in group(received, "shared").items()},
            state={name: value.to(device) for name, value in state.items()},
            times_selected=times,
        )
        result = turn.fit(weights, personalised=test is not None)
        where = f"round {round + 1}: upload of client {client}"
        upload, extra = result.upload, result.contributions
        check_result(upload, extra, weights, task.shapes, task.method, local.optimizer, where=where)
        self._keep(client, {**result.state, TIMES: torch.tensor(times)} if result.state else {})
        self._message = task.outward(result.upload)
        if not task.plain:
            sums = {name: torch.zeros(shape) for name, shape in task.shapes.items()} | dict(result.contributions)
            if task.simulated and task.method.personalises():
                right, of = result.personalised or (0, 0)
                sums["personalised"] = torch.tensor([right / max(of, 1), float(of > 0)])
            uniform = task.method.aggregation == "uniform"
            self._message = pack(self._message, sums, samples=task.dataset[4][client], uniform=uniform)

    def _samples(self, client: int, data: Any, round: int, device: torch.device) -> tuple[Samples, Samples | None]:
        task = self.task
        with torch.random.fork_rng([]):  # for a DataLoader with augmentation
            torch.manual_seed(seeds.torch_seed(task.federation.seed, "loader", round, client))
            train = task.samples(data, device, f"dataset[5][{client}]")
            tested = task.simulated and task.method.personalises() and task.tests(round)
            test = task.dataset[6].get(client) if tested else None
            return train, task.samples(test, device, f"dataset[6][{client}]") if test else None

    def personalised(self, client: int) -> nn.Module | None:
        """A client's own model in eval mode, if known."""
        state = self.task.method.personalised(rest(self._state(client), GROUP))
        if state is None:
            return None
        network = copy.deepcopy(self._given)
        network.load_state_dict(self.task.outward(state))
        return network.eval()

    def _client(self, train_data: Any) -> int:
        clients = [client for client, data in self.task.dataset[5].items() if data is train_data]
        federation = self.task.federation
        if len(clients) == 1:
            return int(clients[0])
        if federation.clients_per_round == federation.num_clients:
            return int(self.id)  # the number of this process, which always trains the same client
        problem = f"{'several entries contain' if clients else 'no entry contains'} the object train_data"
        raise mistake(
            "fl.fedml.trainer: dataset[5]",
            problem,
            "one object for each client, and these same objects for FedMLRunner",
        )

    def _file(self, client: int) -> Path | None:
        return None if self.task.state_dir is None else self.task.state_dir / f"client{client:06d}.safetensors"

    def _state(self, client: int) -> State:
        if (file := self._file(client)) is None:
            return dict(self._states.get(client, {}))
        return load_file(file) if file.exists() else {}

    def _keep(self, client: int, state: State) -> None:
        if not state:
            return
        if (file := self._file(client)) is None:
            self._states[client] = {name: value.cpu() for name, value in state.items()}
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_atomic(state, file)


class Aggregator(DefaultServerAggregator):  # type: ignore[misc]
    """FedML's server with a label-skew method; pass it to ``FedMLRunner`` as ``server_aggregator``.

    It takes the arguments of :class:`Trainer`. ``model`` has the aggregated weights after each round, and ``history`` a
    dictionary of measures per test, which is also logged.
    """

    def __init__(self, model: nn.Module, args: Any, **options: Any) -> None:
        self.task = task = Task(model, args, **options)
        super().__init__(model, args)
        self.history: list[dict[str, Any]] = []
        self._personalised: float | None = None
        weights = snapshot(task.network)
        self.server = Server(task.network, method=task.method, federation=task.federation, weights=weights)
        if task.method.uses("opening"):
            self.server.open(_openings(task, _counts(task)))

    def get_model_params(self) -> OrderedDict[str, Tensor]:
        """The message to the clients."""
        message = self.task.outward(self.server.weights)
        if not self.task.plain:
            apart = {"mark": self.task.mark, **joined(shared=self.server.shared)}
            message.update({name: value.cpu() for name, value in joined(**{GROUP: apart}).items()})
        return message

    def set_model_params(self, model_parameters: dict[str, Tensor]) -> None:
        """Aggregate FedML's mean of uploads, and replace its entries by the next message."""
        with _abort_on_error(self.args):
            self._aggregate(model_parameters)
        self.model.load_state_dict(self.task.outward(self.server.weights))
        model_parameters.clear()
        model_parameters.update(self.get_model_params())

    def _aggregate(self, mean: dict[str, Tensor]) -> None:
        task, server, round = self.task, self.server, int(self.args.round_idx)
        apart = group(mean, GROUP)
        if task.plain == bool(apart) or rest(mean, GROUP).keys() != {*task.names.values()}:
            use = "fl.fedml.trainer with the same method and parameters"
            raise mistake("fl.fedml.aggregator", "the clients' trainer does not fit this aggregator", use)
        weights, sums = unpack(
            task.inward(mean),
            apart,
            server.weights,
            aggregation=task.method.aggregation,
            clients=task.federation.clients_per_round,
            population=task.federation.num_samples,
        )
        check_upload(weights, server.weights, where=f"round {round + 1}: the mean of the uploads")
        right, tested = sums.pop("personalised", torch.zeros(2)).tolist()
        self._personalised = right / tested if tested else None
        check_extra(sums, task.shapes, where=f"round {round + 1}: the sum of the clients' tensors")
        server.advance(weights, {}, {}, Total(sums, task.federation.clients_per_round, round))

    def test(self, test_data: Any, device: Any, args: Any) -> Any:
        """Test the global model as FedML does; append to ``history`` and the log."""
        result = super().test(test_data, device, args)
        line = {"round": int(args.round_idx), "accuracy": float(result[0]), "loss": float(result[1])}
        text = f"round {line['round'] + 1}: accuracy {line['accuracy']:.4f}, loss {line['loss']:.4f}"
        if self._personalised is not None:
            line["personalised_accuracy"] = self._personalised
            text += f", personalised models {self._personalised:.4f}"
        self.history.append(line)
        LOG.info(text)
        return result


def _counts(task: Task) -> Tensor:
    clients, classes = task.federation.num_clients, task.federation.num_classes
    if task.counts is not None:
        return task.counts
    if not task.simulated:
        problem = "missing; the method needs the class counts of all clients, and FedML's server does not ask for them"
        use = f"integers of shape {(clients, classes)}: training samples by client and class"
        raise mistake("counts", problem, use)
    with torch.random.fork_rng([]):
        data = [task.samples(task.dataset[5][k], torch.device("cpu"), f"dataset[5][{k}]") for k in range(clients)]
    return torch.stack([torch.bincount(samples.y, minlength=classes) for samples in data])


def _openings(task: Task, counts: Tensor) -> Iterator[Contribution]:
    for client, row in enumerate(counts):
        y = torch.arange(len(row)).repeat_interleave(row)
        tensors = Turn(task.local(client, Samples(y[:, None], y, (), ())), client).opening()
        check_extra(tensors, task.method.opening_shapes(task.federation), where=f"opening of client {client}")
        yield Contribution(client, tensors)


@contextlib.contextmanager
def _abort_on_error(args: Any) -> Iterator[None]:
    """End all processes of a simulation on an error: they would wait for each other."""
    try:
        yield
    except BaseException as error:
        if (comm := getattr(args, "comm", None)) is None:
            raise
        text = f"error: {error}\n" if isinstance(error, LabelSkewError) else traceback.format_exc()
        print(text, end="", file=sys.stderr, flush=True)
        comm.Abort(1)
        raise


trainer, aggregator = Trainer, Aggregator
