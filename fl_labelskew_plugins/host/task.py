"""Checked arguments of :mod:`.runner`."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from fl_labelskew_registry import Federation, Method, mistake
from torch import Tensor, nn

from fl_labelskew_plugins.engine.aggregate import announced
from fl_labelskew_plugins.engine.local import LocalSettings, LocalTrainer
from fl_labelskew_plugins.engine.samples import Samples
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.models.module import Headed, ModuleNetwork
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.recipe import plugins
from fl_labelskew_plugins.recipe.mistakes import Mistakes, ModelT, keys_of
from fl_labelskew_plugins.recipe.plugins import from_objects
from fl_labelskew_plugins.recipe.sections import DeviceArgs, MethodArgs, TrainArgs
from fl_labelskew_plugins.runs.session import local_settings
from fl_labelskew_plugins.tensors import Weights

SWITCHES = ("enable_attack", "enable_defense", "enable_dp", "enable_fhe", "enable_contribution")  # they read messages


class Task:
    """The common part of trainer and aggregator.

    ``network``: a copy of the user's module, with ``features`` and ``classifier``; ``names``: of its tensors in the
    user's module; ``shapes``: of the summed tensors that clients send in addition to weights; ``plain``: whether
    messages contain only the model; ``simulated``: whether MPI simulates the clients.
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
        self.simulated = _is_simulated(args)
        self.method, train, self.settings = _settings(args, method, parameters)
        where = f"method {clean(method if isinstance(method, str) else type(method).__name__)}"
        if self.method.individual:
            problem = "the server needs each client's tensors, and FedML passes on only the mean"
            raise mistake(where, problem, "labelskew run, which has its own messages")
        if len(dataset) != 8:
            raise mistake("dataset", f"has {len(dataset)} entries", "FedML's list of eight: train_data_num, ...")
        samples: Mapping[int, int] = dataset[4]
        clients, classes, self.dataset = train.client_num_in_total, int(dataset[7]), dataset
        self.counts = None if counts is None else _checked_counts(counts, clients, classes)
        network = ModuleNetwork(model).build(_shape(dataset), classes)
        self.network, self.names = network, _names(network)
        self.federation = federation = Federation(
            num_clients=clients,
            clients_per_round=_clients_per_round(args, self.simulated),
            rounds=train.comm_round,
            epochs=train.epochs,
            num_classes=classes,
            num_features=int(network.classifier.in_features),  # type: ignore[union-attr, arg-type]
            num_samples=sum(samples.values()) if self.counts is None else int(self.counts.sum()),
            min_samples=min(samples.values(), default=0),
            seed=int(getattr(args, "random_seed", 0)),
        )
        with torch.random.fork_rng([]):
            modules = self.method.shared_modules(federation)
        if modules:
            use = "labelskew run" + (", or projection: none" if "projection" in parameters else "")
            raise mistake(where, "adds modules to the network, which FedML's model does not have", use)
        trained = [name for name, p in network.named_parameters() if p.requires_grad]
        self.shapes = announced(self.method, FedAvgOptimizer(), federation, network.state_dict(), trained)
        sends_more = self.method.aggregation != "samples" or self.method.uses("opening")
        self.plain = self.method.logits_only() and not sends_more
        self.frequency = max(1, int(getattr(args, "frequency_of_the_test", 1)))
        self.state_dir = None if state_dir is None else Path(state_dir)
        self._check(args, where)

    def _check(self, args: Any, where: str) -> None:
        on = [switch for switch in SWITCHES if getattr(args, switch, False)]
        if on and not self.plain:
            problem = f"true, but {where} sends more than the model"
            raise mistake(f"args.{on[0]}", problem, f"{on[0]}: false, or a method such as fedlc")
        federation, folder = self.federation, self.state_dir
        missing = [k for k in range(federation.num_clients) if k not in self.dataset[5]]
        if self.simulated and missing:
            problem = f"{federation.num_clients}, but dataset[5] has no client {missing[0]}"
            raise mistake("args.client_num_in_total", problem, f"{len(self.dataset[5])}")
        if self.method.uses("after_round") and folder is None and federation.clients_per_round < federation.num_clients:
            problem = "it keeps tensors for each client, and another process may train that client next"
            raise mistake(where, problem, "state_dir: a new folder that all processes see")
        first = not self.simulated or int(args.rank) == 0  # before other processes write
        if folder is not None and first and folder.is_dir() and any(folder.iterdir()):
            raise mistake(f"state_dir {clean(folder, 4096)}", "is not empty", "a new folder for each run")

    @property
    def mark(self) -> Tensor:
        """A checksum of the method and its parameters."""
        return torch.tensor(crc32(f"{type(self.method).__name__} {self.method.params!r}".encode()))

    def tests(self, round: int) -> bool:
        """Whether FedML tests after this round."""
        return round % self.frequency == 0 or round == self.federation.rounds - 1

    def local(self, client: int, train: Samples, test: Samples | None = None, **more: Any) -> LocalTrainer:
        """A trainer of one client."""
        test = Samples(train.x[:0], train.y[:0], (), ()) if test is None else test
        return LocalTrainer(
            model=self.network.to(train.y.device),
            method=self.method,
            settings=self.settings,
            federation=self.federation,
            train=train,
            indices={client: _every(train)},
            test=test,
            test_indices={client: _every(test)},
            **more,
        )

    def samples(self, data: Any, device: torch.device, where: str) -> Samples:
        """Join a client's batches; raises LabelSkewError if there are none, or labels are not classes."""
        batches = [(batch[0], batch[1]) for batch in data]
        if not batches:
            raise mistake(where, "has no samples", "clients with at least one sample")
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        classes = self.federation.num_classes
        if y.dim() != 1 or y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < classes:
            problem = f"labels are not integers from 0 to {classes - 1}, one per sample"
            raise mistake(where, problem, "batches of (inputs, labels), and dataset[7] for the number of classes")
        return Samples(x.to(device), y.long().to(device), (), ())

    def inward(self, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> Weights:
        """The state dict of ``network`` from one of the user's module."""
        return {ours: tensors[theirs].to(device) for ours, theirs in self.names.items()}

    def outward(self, weights: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
        """The reverse of :meth:`inward`."""
        # FedML reads a plain dict as one model per client
        return OrderedDict((theirs, weights[ours].detach().cpu()) for ours, theirs in self.names.items())


def _is_simulated(args: Any) -> bool:
    """Whether MPI simulates the clients; raises LabelSkewError for unsupported configurations."""
    kind, backend = getattr(args, "training_type", None), getattr(args, "backend", None)
    if kind == "cross_silo" and getattr(args, "scenario", "horizontal") == "horizontal":
        simulated = False
    elif (kind, backend) == ("simulation", "MPI"):
        simulated = True
    else:
        problem = f"FedML's {clean(kind)} with backend {clean(backend)} ignores custom trainers, or cannot run them"
        use = "simulation with backend: MPI, cross_silo with scenario: horizontal, or labelskew run"
        raise mistake("args.training_type", problem, use)
    optimizer = getattr(args, "federated_optimizer", "FedAvg")
    if optimizer != "FedAvg":
        problem = f"FedML's {clean(optimizer)} does not work with custom trainers"
        raise mistake("args.federated_optimizer", problem, "FedAvg, or labelskew run, which has other optimisers")
    return simulated


def _settings(args: Any, method: str | Method, parameters: dict[str, Any]) -> tuple[Method, TrainArgs, LocalSettings]:
    mistakes = Mistakes(Path("args"))

    def section(name: str, kind: type[ModelT], *more: str) -> ModelT | None:
        keys = [key for key in keys_of(kind) if key in (*LocalSettings.__dataclass_fields__, *more)]
        return mistakes.validated(name, kind, {key: vars(args)[key] for key in keys if key in vars(args)})

    train = section("train_args", TrainArgs, "client_num_in_total", "comm_round")
    device = section("device_args", DeviceArgs)
    named = isinstance(method, str)
    instead = None if named else from_objects(method=method)["method_args"]  # type: ignore[arg-type]
    given = {**parameters, **({"method": method} if named else {})}
    plugin = plugins.chosen("method_args", MethodArgs, given, mistakes, instead=instead)[1]
    mistakes.raise_if_any()
    assert train is not None
    assert device is not None
    plugin.stages(train.epochs)
    return plugin, train, local_settings(train, device)


def _clients_per_round(args: Any, simulated: bool) -> int:
    processes, joining = int(args.worker_num) - simulated, int(args.client_num_per_round)
    if processes > joining:  # all processes would wait forever
        problem = f"{joining}, but there are {processes} processes for clients"
        start = f"mpirun -np {joining + 1}" if simulated else f"args.worker_num: {joining}"
        raise mistake("args.client_num_per_round", problem, f"{processes}, or {start}")
    return processes


def _checked_counts(counts: Any, *shape: int) -> Tensor:
    use = f"integers of shape {shape}: training samples by client and class"
    try:
        given = torch.as_tensor(counts)
    except (TypeError, ValueError, RuntimeError):
        raise mistake("counts", "is not an array of numbers", use) from None
    if given.shape != shape or given.is_floating_point() or bool((given < 0).any()):
        found = f"{tuple(given.shape)} {given.dtype}".replace("torch.", "")
        raise mistake("counts", found if given.shape != shape else f"{found} with values that are not counts", use)
    return given


def _shape(dataset: Sequence[Any]) -> tuple[int, ...]:
    with torch.random.fork_rng([]):  # a DataLoader draws from the global generator
        for data in (dataset[3], dataset[2], *dataset[5].values()):
            for batch in () if data is None else data:
                return tuple(batch[0].shape[1:])
    raise mistake("dataset", "has no samples", "FedML's list of eight entries, with test or training data")


def _names(network: nn.Module) -> dict[str, str]:
    names = {name: name for name in network.state_dict()}
    if isinstance(network, Headed):
        head = f"{network.path}." if network.path else ""
        for name in names:
            part, _, inner = name.partition(".")
            names[name] = head + inner if part == "classifier" else inner
    return names


def _every(samples: Samples) -> Tensor:
    return torch.arange(len(samples.y), device=samples.y.device)
