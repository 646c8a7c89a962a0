"""The sections of a recipe and their keys: a FedML configuration with the host's own names, plus two of ours.

Every section is a frozen pydantic model. The sections that choose a plugin (``data_args``, ``partition_args``,
``model_args``, ``train_args``, ``method_args``) hold here only the keys that are common to all plugins of the kind; the
rest belongs to the plugin's own ``Params``. What is the host's own is in :mod:`~fl_labelskew_plugins.recipe.security`.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from fl_labelskew_registry import catalog
from pydantic import Field, ValidationInfo, field_validator

from fl_labelskew_plugins.params import LARGEST, Params
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.recipe.diagnostics import Name
from fl_labelskew_plugins.recipe.mistakes import show

Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
AboveZero = Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]
Statistics = Literal["imagenet", "data"]
IS_PATH = "path"
"""Marks keys that hold paths relative to the file that names them."""


def absolute(value: Any, folder: Path) -> Any:
    """A path of a recipe, or each of a list of them, from ``folder`` where it is relative."""
    if isinstance(value, list):
        return [absolute(path, folder) for path in value]
    return os.path.abspath(folder / os.path.expanduser(value)) if isinstance(value, str) else value


MOST_NUMBERS = 10**8
"""Numbers of one sample."""
MOST_CLASSES = 10**6


class PluginArgs(Params):
    """A section that chooses a plugin: the keys that are common to all plugins of the kind."""

    key: ClassVar[str]
    """Holds the plugin's name."""
    kind: ClassVar[catalog.Kind]
    attribute: ClassVar[str]
    """What the plugin is called in a :class:`~fl_labelskew_plugins.recipe.model.Recipe`."""


class CommonArgs(Params):
    """What kind of run this is."""

    training_type: Literal["simulation", "cross_silo"] = Field(
        "simulation", description="the host's kind of run; cross_silo: every client is a machine with data of its own"
    )
    random_seed: int = Field(0, ge=0, lt=2**31, description="seed of everything random in this run")

    @property
    def across_silos(self) -> bool:
        """Whether every client is a machine of its own."""
        return self.training_type == "cross_silo"


class DataArgs(PluginArgs):
    """Which data set, and where it lies."""

    key, kind, attribute = "dataset", "datasets", "dataset"

    dataset: str = Field(description="name of a data set: labelskew datasets")
    data_cache_dir: str | None = Field(None, description="folder of the data set's files; default: the data set's own")
    download: bool = Field(False, description="whether missing files may be fetched from the network")
    input_shape: list[Positive] | None = Field(
        None,
        min_length=1,
        max_length=5,
        description="shape of one sample, to be checked; server_test_data: false needs it",
    )
    classes: int | None = Field(
        None, ge=1, le=MOST_CLASSES, description="number of classes, to be checked; server_test_data: false needs it"
    )

    mean: list[Finite] | Statistics | None = Field(
        None,
        min_length=1,
        description="mean of each channel, in units of 0..1 for pictures; imagenet: ImageNet's, with its std; data: "
        "of the training part, across silos of all silos' training parts, with its std; default: the data set's own",
    )
    std: list[AboveZero] | Statistics | None = Field(
        None,
        min_length=1,
        validate_default=True,
        description="standard deviation of each channel, where mean is a list",
    )

    @field_validator("std")
    @classmethod
    def _goes_with_mean(cls, std: list[float] | str | None, info: ValidationInfo) -> list[float] | str | None:
        if "mean" not in info.data:
            return std  # that one is wrong already
        mean = info.data["mean"]
        if isinstance(mean, list) and not (isinstance(std, list) and len(std) == len(mean)):
            raise ValueError(f"{show(std)} does not go with mean {show(mean)}; use a list as long")
        if not isinstance(mean, list) and std not in (None, mean):
            raise ValueError(f"{show(std)} does not go with mean {show(mean)}; use lists for both, or mean alone")
        return std if isinstance(mean, list) else mean

    @field_validator("input_shape")
    @classmethod
    def _is_no_giant(cls, shape: list[int] | None) -> list[int] | None:
        if shape is not None and math.prod(shape) > MOST_NUMBERS:
            raise ValueError(f"{show(shape)} are too many numbers; allowed: {MOST_NUMBERS} at most")
        return shape


class PartitionArgs(PluginArgs):
    """How samples are dealt to clients."""

    key, kind, attribute = "partition_method", "partitioners", "partitioner"

    partition_method: str = Field("iid", description="name of a partition: labelskew partitions")


class ModelArgs(PluginArgs):
    """Which network."""

    key, kind, attribute = "model", "models", "network"

    model: str = Field(description="name of a network: labelskew models")


class TrainArgs(PluginArgs):
    """The federation and its local training."""

    key, kind, attribute = "federated_optimizer", "optimizers", "optimizer"

    federated_optimizer: str = Field("FedAvg", description="name of an optimiser: labelskew optimizers")
    optimizer_source: Literal["own", "corrected", "host"] | None = Field(
        None,
        description="whose code optimises; corrected: the host's, without its faults; host: as it is; default:"
        " corrected where that can run the recipe (docs/mixing.md), else own",
    )
    client_num_in_total: Positive = Field(10, description="clients K")
    client_num_per_round: Positive | None = Field(None, description="clients that join a round; default: all")
    comm_round: Positive = Field(10, description="rounds T")
    epochs: Positive = Field(1, description="local epochs E")
    batch_size: Positive = Field(64, description="samples of a batch")
    client_optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser")
    learning_rate: float = Field(0.01, gt=0, description="local learning rate in round 0")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum")
    dampening: float = Field(0.0, ge=0, le=1, description="dampening of SGD momentum")
    nesterov: bool = Field(False, description="Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="weight decay (L2)")
    lr_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="learning rate over the rounds; step multiplies by lr_decay every lr_decay_every rounds"
    )
    lr_decay: float = Field(0.95, gt=0, le=1, description="factor of the step schedule (FedShift: 0.95)")
    lr_decay_every: Positive = Field(10, description="rounds between two steps (FedShift: 10)")
    gradient_clip_norm: float | None = Field(
        None, gt=0, description="clip the gradient's norm, that of private parameters apart; default: never"
    )
    proxy_aggregation: Literal["model", "class"] = Field(
        "model", description="weights of the classifier's rows: as the model's, or per class (FedRS section 4.4)"
    )
    proxy_smoothing: float = Field(0.0, ge=0, description="lambda of proxy_aggregation: class, in samples")

    @property
    def proxies_by_class(self) -> float | None:
        """``proxy_smoothing`` where the classifier's rows have weights of their own, else None."""
        return self.proxy_smoothing if self.proxy_aggregation == "class" else None

    @property
    def clients_per_round(self) -> int:
        """``client_num_per_round``, or all clients where it is null."""
        return self.client_num_in_total if self.client_num_per_round is None else self.client_num_per_round


def names(value: object) -> list[str]:
    """The name, or the names with ``+`` between or in a list, that a value stands for; none for anything else."""
    parts = value.split("+") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return []
    return [part.strip() for part in parts]


class MethodArgs(PluginArgs):
    """Which label-skew method."""

    key, kind, attribute = "method", "methods", "method"

    method: str = Field(
        description="name of a method: labelskew methods; several in a row: a list of them, or names with + between"
    )

    @field_validator("method", mode="before")
    @classmethod
    def _one_name(cls, value: object) -> str:
        methods = names(value)
        if not methods or (isinstance(value, list) and len(methods) == 1):
            raise ValueError(f"{show(value)} is no method; allowed: a name, or a list of two names or more")
        return "+".join(methods)


class ValidationArgs(Params):
    """When and what is measured."""

    frequency_of_the_test: int = Field(1, ge=0, description="rounds between two tests; 0: after the last round alone")
    personalised: bool = Field(True, description="also test each client's own model on its own test split")
    per_client: bool = Field(
        False,
        description="also measure the global model on each client's own test split; across silos each silo does so, and"
        " tells it with send_measures",
    )
    last_rounds: Positive = Field(5, description="tests that the summary's mean and std are taken over")
    server_test_data: bool = Field(
        True, description="cross_silo: whether the server holds the test part; false: the global model is not tested"
    )


class DeviceArgs(Params):
    """Where and how tensors are computed."""

    using_gpu: bool = Field(False, description="train on GPUs")
    gpu_ids: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1, description="GPUs in use; sp uses the first")
    workers_per_gpu: Positive = Field(1, description="MPI: processes that share one GPU")
    fallback: Literal["cpu"] | None = Field(
        None, description="cpu: warn and train on the CPU where one of the GPUs is missing; default: an error"
    )
    threads: Positive | None = Field(None, description="torch threads of a process; default: the cores it may use")
    loader_workers: int | None = Field(
        None,
        ge=0,
        description="processes that decode pictures ahead of training; default: half of the cores, or with"
        " a GPU all but one; 0: none",
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: mixed precision, weights stay fp32")
    channels_last: bool = Field(True, description="memory format of images and convolutions")


class CommArgs(Params):
    """How clients and server talk, and how long they wait for each other; times in seconds.

    Paths are relative to the file that names them, or to the current folder on the command line.
    """

    backend: str = Field(
        "sp", description="name of a runtime; sp: all in one process; MPI: several; GRPC: across silos"
    )
    workers: Positive | None = Field(
        None, description="MPI: worker processes; default: one per GPU, else per core, at most clients per round"
    )
    server_address: str = Field("127.0.0.1:8890", description="cross_silo: host:port where silos find the server")
    listen_address: str | None = Field(
        None, description="cross_silo: host:port where the server listens; default: server_address"
    )
    grpc_ipconfig_path: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: the host's CSV file, whose row of rank 0 stands in for server_address"
    )
    certs: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: folder of labelskew certs new for this machine; not needed on loopback"
    )
    round_deadline_s: float = Field(3600.0, gt=0, description="cross_silo: how long a round waits for its uploads")
    reconnect_s: float = Field(
        60.0, ge=0, description="cross_silo: how long a silo that lost its connection in a round is waited for"
    )
    min_clients: Positive | None = Field(
        None, description="cross_silo: uploads that a round needs; default: 2, or 1 where one client joins a round"
    )
    quorum_timeout_s: float = Field(
        600.0, gt=0, description="cross_silo: how long the server waits for min_clients; it then stops, resumable"
    )
    send_measures: bool = Field(
        False,
        description="cross_silo: a silo also reports its loss terms and accuracies on its own test part",
    )
    send_contributions: bool = Field(
        True, description="cross_silo; false: no prototypes or other contributions leave a silo, weights alone do"
    )
    upload_memory_mb: int = Field(
        256, ge=0, description="messages that arrive or wait for their turn held in memory; the rest is on disk"
    )
    audit_digests: bool = Field(True, description="cross_silo: the audit log has the SHA-256 of every message")
    max_update_ratio: float | None = Field(
        1000.0,
        ge=1,
        description="cross_silo: an upload whose norm is so many times the median of the others' and of its own past"
        " is refused; null: never",
    )
    max_samples: int = Field(
        10**9, ge=1, le=10**12, description="cross_silo: training samples that a silo may say it has"
    )

    secure_aggregation: bool = Field(
        False, description="the server sees the sum of what clients send, in whole numbers, and no client's part of it"
    )
    secure_bits: int = Field(
        32, ge=16, le=32, description="secure_aggregation: bits of each of these numbers; 16 halve the bytes"
    )
    secure_clip: float | None = Field(
        None,
        gt=0,
        description="secure_aggregation: the most that a parameter may change in a client's round, an error beyond it;"
        " the smaller, the finer the steps; default: 2^(secure_bits / 8), 16 with 32 bits and 4 with 16",
    )

    @property
    def largest_change(self) -> float:
        """``secure_clip``, or its default."""
        return 2.0 ** (self.secure_bits / 8) if self.secure_clip is None else self.secure_clip

    @property
    def in_process(self) -> bool:
        """Whether one process is the server and all clients."""
        return self.backend == "sp"

    @property
    def over_mpi(self) -> bool:
        """Whether the processes of a simulation talk over MPI."""
        return self.backend == "MPI"

    def quorum(self, clients_per_round: int) -> int:
        """Uploads that a round needs."""
        return min(2, clients_per_round) if self.min_clients is None else self.min_clients

    def address(self) -> str:
        """Where silos find the server; reads ``grpc_ipconfig_path``, if there is one.

        Raises:
            LabelSkewError: that file does not hold the server's address.
        """
        return self.server_address if self.grpc_ipconfig_path is None else addresses.from_csv(self.grpc_ipconfig_path)

    @field_validator("server_address", "listen_address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            addresses.split(value)
        return value


class ClientSpecificArgs(Params):
    """What differs from silo to silo, under the host's own key."""

    data_silo_config: Annotated[list[str], IS_PATH] = Field(
        [],
        description="cross_silo: a YAML file for each silo, by rank, whose data_args replace the recipe's; the silo"
        " then trains on all of its own data",
    )


class TrackingArgs(Params):
    """What is kept of a run."""

    run_dir: str = Field("runs", description="folder in which each run makes its own folder")
    checkpoint_every: Positive = Field(10, description="rounds between two checkpoints")
    keep_checkpoints: Positive = Field(
        2, description="checkpoints that are kept, the last one included; --from-round goes back to one"
    )
    keep_best: bool = Field(
        True, description="also keep the model of the best round, by the global test, as best.safetensors"
    )
    state_memory_mb: int = Field(256, ge=0, description="clients' private state held in memory; the rest is on disk")
    diagnostics: list[Name] = Field(
        [], description="what the papers plot beside accuracy, into the run's folder diagnostics/"
    )
    diagnostics_every: Positive = Field(
        1, description="rounds between two that the diagnostics look at; the last one they always do"
    )
    trackers: list[Any] = Field(
        [], description="whom rounds are shown to: names of labelskew trackers, or {NAME: {parameter: value}}"
    )

    @field_validator("trackers", mode="before")
    @classmethod
    def _is_a_list(cls, value: object) -> object:
        if not isinstance(value, list):  # which is not shown: a parameter may hold a secret
            raise ValueError("is no list; allowed: a list of names, such as [csv]")
        return value


_WANDB = "is FedML's own; use trackers: [{{wandb: {{{}: ...}}}}]"
HOSTS_TRACKING = {
    "enable_wandb": "is FedML's own; use trackers: [wandb], which sends nothing, or [{wandb: {mode: online}}]",
    "wandb_key": "is FedML's own; use the environment variable WANDB_API_KEY, a key has no place in a recipe",
    "wandb_project": _WANDB.format("project"),
    "wandb_entity": _WANDB.format("entity"),
    "wandb_name": _WANDB.format("name"),
    "run_name": _WANDB.format("name"),
    "wandb_group_id": _WANDB.format("group"),
    "wandb_only_server": "is FedML's own; leave it away, the server's process alone has trackers",
    "enable_tracking": "is of FedML's own cloud, which has no part in a run; leave it away",
    "log_file_dir": "is of FedML's own cloud, which has no part in a run; leave it away, run_dir is where results are",
}
"""The host's keys of ``tracking_args``, and what to write instead."""
