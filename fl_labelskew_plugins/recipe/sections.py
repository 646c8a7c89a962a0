"""The sections of a recipe and their keys: a FedML configuration with the host's own names, plus two of ours.

Every section is a frozen pydantic model. The sections that choose a plugin (``data_args``, ``partition_args``,
``model_args``, ``train_args``, ``method_args``) hold here only the keys that are common to all plugins of the kind; the
rest belongs to the plugin's own ``Params``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe import addresses, policy
from fl_labelskew_plugins.recipe.diagnostics import BESIDE_TRAINING, IN_TRAINING, Name
from fl_labelskew_plugins.recipe.mistakes import show

Positive = Annotated[int, Field(ge=1)]
MOST_NUMBERS = 10**8
"""Numbers of one sample."""
MOST_CLASSES = 10**6


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


class DataArgs(Params):
    """Which data set, and where it lies."""

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

    @field_validator("input_shape")
    @classmethod
    def _is_no_giant(cls, shape: list[int] | None) -> list[int] | None:
        if shape is not None and math.prod(shape) > MOST_NUMBERS:
            raise ValueError(f"{show(shape)} are too many numbers; allowed: {MOST_NUMBERS} at most")
        return shape


class PartitionArgs(Params):
    """How samples are dealt to clients."""

    partition_method: str = Field("iid", description="name of a partition: labelskew partitions")


class ModelArgs(Params):
    """Which network."""

    model: str = Field(description="name of a network: labelskew models")


class TrainArgs(Params):
    """The federation and its local training."""

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
    def clients_per_round(self) -> int:
        """``client_num_per_round``, or all clients where it is null."""
        return self.client_num_in_total if self.client_num_per_round is None else self.client_num_per_round


def names(value: object) -> list[str]:
    """The name, or the names with ``+`` between or in a list, that a value stands for; none for anything else."""
    parts = value.split("+") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return []
    return [part.strip() for part in parts]


class MethodArgs(Params):
    """Which label-skew method."""

    method: str = Field(
        description="name of a method: labelskew methods; several in a row: a list of them, or names with + between"
    )

    @field_validator("method", mode="before")
    @classmethod
    def _one_name(cls, value: object) -> str:
        found = names(value)
        if not found or (isinstance(value, list) and len(found) == 1):
            raise ValueError(f"{show(value)} is no method; allowed: a name, or a list of two names or more")
        return "+".join(found)


class ValidationArgs(Params):
    """When and what is measured."""

    frequency_of_the_test: int = Field(1, ge=0, description="rounds between two tests; 0: after the last round alone")
    personalised: bool = Field(True, description="also test each client's own model on its own test split")
    per_client: bool = Field(
        False, description="also measure the global model on each client's own test split; not across silos"
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
    grpc_ipconfig_path: str | None = Field(
        None, description="cross_silo: the host's CSV file, whose row of rank 0 stands in for server_address"
    )
    certs: str | None = Field(
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
        False, description="cross_silo: a silo also reports its loss terms and the accuracy of its own model"
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

    data_silo_config: list[str] = Field(
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
    state_memory_mb: int = Field(256, ge=0, description="clients' private state held in memory; the rest is on disk")
    diagnostics: list[Name] = Field(
        [], description="what the papers plot beside accuracy, into the run's folder diagnostics/"
    )
    diagnostics_every: Positive = Field(
        1, description="rounds between two that the diagnostics look at; the last one they always do"
    )


class SecurityArgs(Params):
    """The host's attacks and defences, under the host's own keys (``fedml/core/security``)."""

    enable_attack: bool = Field(False, description="simulate an attack")
    attack_type: Literal["byzantine", "label_flipping", "model_replacement"] | None = Field(
        None, description="which attack"
    )
    attack_prob: float | None = Field(None, ge=0, le=1, description="probability of an attack; default: always")
    byzantine_client_num: int | None = Field(None, ge=0, description="malicious clients of a round, known or assumed")
    attack_mode: Literal["zero", "random", "flip"] | None = Field(None, description="byzantine: what they upload")
    original_class_list: list[int] | None = Field(None, description="label_flipping: classes that are relabelled")
    target_class_list: list[int] | None = Field(None, description="label_flipping: their new labels, in order")
    ratio_of_poisoned_client: float | None = Field(None, ge=0, le=1, description="label_flipping: share of clients")
    poison_start_round_id: int | None = Field(None, ge=0, description="label_flipping: first round; default: 0")
    poison_end_round_id: int | None = Field(None, ge=0, description="label_flipping: last round; default: the last")
    malicious_client_id: int | None = Field(
        None, ge=0, description="model_replacement: position in the round; default: drawn every round"
    )
    attack_training_rounds: list[Positive] | None = Field(
        None, description="model_replacement: rounds, from 1; default: every round"
    )
    poisoned_training_round: list[Positive] | None = Field(
        None, description="model_replacement: the same list again; the host looks at both"
    )
    scale_factor_S: float | None = Field(None, gt=0, description="model_replacement: bound on the scale")  # noqa: N815
    enable_defense: bool = Field(False, description="defend the aggregation")
    defense_type: (
        Literal[
            "norm_diff_clipping",
            "krum",
            "multikrum",
            "slsgd",
            "geo_median",
            "cclip",
            "wise_median",
            "rfa",
            "foolsgold",
            "3sigma",
            "3sigma_foolsgold",
            "3sigma_geo",
            "crfl",
            "trimmed_mean",
            "anomaly_detection",
        ]
        | None
    ) = Field(None, description="which defence")
    norm_bound: float | None = Field(None, gt=0, description="norm_diff_clipping: bound on an update's norm")
    krum_param_m: Positive | None = Field(None, description="multikrum: uploads that are kept; default: 1")
    trim_param_b: int | None = Field(None, ge=0, description="slsgd: uploads trimmed at each end")
    alpha: float | None = Field(None, ge=0, le=1, description="slsgd: weight of the new model")
    option_type: Literal[1, 2] | None = Field(None, description="slsgd: 1 mean, 2 trimmed mean")
    batch_num: Positive | None = Field(None, description="geo_median: buckets of uploads")
    bucket_size: Positive | None = Field(None, description="cclip: uploads in a bucket")
    tau: float | None = Field(None, gt=0, description="cclip: clipping radius; default: 10")
    beta: float | None = Field(None, ge=0, lt=0.5, description="trimmed_mean: share trimmed at each end")
    clip_threshold: float | None = Field(None, gt=0, description="crfl: bound on the model's norm")
    sigma: float | None = Field(None, ge=0, description="crfl: noise on the model; default: 0.01")
    bucketing_batch_size: Positive | None = Field(None, description="3sigma_foolsgold: uploads in a bucket; default: 1")
    pretraining_round_num: int | None = Field(
        None, ge=0, description="3sigma_foolsgold, 3sigma_geo: rounds without defence; default: 2"
    )
    to_keep_higher_scores: bool | None = Field(
        None, description="3sigma_foolsgold (default: true), 3sigma_geo (default: false): which side is kept"
    )
    cosine_similarity_bound: float | None = Field(
        None, ge=-1, le=1, description="anomaly_detection: below it an upload is suspect"
    )

    @field_validator("attack_type", "defense_type", mode="before")
    @classmethod
    def _works_in_the_host(cls, value: object) -> object:
        return _refuse_dead(value)

    def host_keys(self) -> dict[str, Any]:
        """The keys that were given; the host tests some of its keys with ``hasattr``, so none may be None."""
        return self.model_dump(exclude_none=True)


class DpArgs(Params):
    """The host's differential privacy, under the host's own keys (``fedml/core/dp``)."""

    enable_dp: bool = Field(False, description="add the host's noise")
    dp_solution_type: Literal["ldp", "cdp"] | None = Field(
        None, description="ldp: every client adds noise to its upload; cdp: the server adds noise to the aggregate"
    )
    mechanism_type: Literal["gaussian", "laplace"] | None = Field(None, description="distribution of the noise")
    epsilon: float | None = Field(None, gt=0, description="privacy budget of a round; gaussian: at most 1")
    delta: float | None = Field(None, ge=0, lt=1, description="failure probability; gaussian: above 0")
    sensitivity: float | None = Field(None, gt=0, description="L2 (gaussian) or L1 (laplace) sensitivity")
    max_grad_norm: float | None = Field(None, gt=0, description="cdp: uploads are scaled to this norm; default: never")

    @field_validator("dp_solution_type", mode="before")
    @classmethod
    def _works_in_the_host(cls, value: object) -> object:
        return _refuse_dead(value)

    def host_keys(self) -> dict[str, Any]:
        """The keys that were given; see :meth:`SecurityArgs.host_keys`."""
        return self.model_dump(exclude_none=True)


# Names that FedML 0.9.6 knows and yet leaves without effect, or cannot run: silence would be a false promise.
DEAD: dict[str, str] = {
    "dlg": "FedML 0.9.6 attacks only its own LeNet, resnet20 and resnet56",
    "weak_dp": "FedML 0.9.6 never calls it, so nothing would be defended",
    "robust_learning_rate": "FedML 0.9.6 never calls it, so nothing would be defended",
    "diff_clipping": "FedML 0.9.6 has no code for it; norm_diff_clipping is there",
    "dp": "FedML 0.9.6 has no code for it; see dp_args",
    "nbafl": "FedML 0.9.6 never adds its noise, so nothing would be private",
    "dp_clip": "FedML 0.9.6 never adds its noise, so nothing would be private",
}


def _refuse_dead(value: object) -> object:
    if isinstance(value, str) and value in DEAD:
        raise ValueError(f"'{value}' does not work in the host: {DEAD[value]}")
    return value


Measure = Literal["accuracy", "best_accuracy", "personalised_accuracy", "balanced_accuracy", "rounds_to"]


class Expected(Params):
    """A paper's number, which a recipe's runs can be compared with; it has no part in a run.

    Accuracies are in per cent, as papers print them: means over the last ``validation_args.last_rounds`` tests, but
    ``best_accuracy``, the highest of any test. ``rounds_to`` is the first round, from 1, whose accuracy is ``target``.
    """

    value: float = Field(ge=0, description="the number: per cent, or rounds with rounds_to")
    measure: Measure = Field("accuracy", description="what it measures")
    target: float | None = Field(None, ge=0, le=100, description="rounds_to: the accuracy to be reached, in per cent")
    tolerance: float = Field(2.0, ge=0, description="how far from it still counts as reached, in its unit")
    paper: str = Field(description="whose number it is")
    table: str = Field(description="where it is printed, such as Table 1")

    @model_validator(mode="after")
    def _target_goes_with_rounds(self) -> Expected:
        if (self.measure == "rounds_to") != (self.target is not None):
            raise ValueError("target and measure rounds_to go together; both, or neither, would be right")
        return self


EXPECTED = "expected"
"""The part of a recipe that holds these: one mapping, or a list of them."""

PLAIN: dict[str, type[Params]] = {
    "common_args": CommonArgs,
    "validation_args": ValidationArgs,
    "device_args": DeviceArgs,
    "comm_args": CommArgs,
    "client_specific_args": ClientSpecificArgs,
    "tracking_args": TrackingArgs,
    "security_args": SecurityArgs,
    "dp_args": DpArgs,
}
"""Sections that are complete here."""


@dataclass(frozen=True)
class PluginSection:
    """A section that chooses a plugin: its common ``model``, the ``key`` that holds the name, the plugin's ``kind``."""

    model: type[Params]
    key: str
    kind: Literal["methods", "optimizers", "partitioners", "datasets", "models"]


PLUGGED: dict[str, PluginSection] = {
    "data_args": PluginSection(DataArgs, "dataset", "datasets"),
    "partition_args": PluginSection(PartitionArgs, "partition_method", "partitioners"),
    "model_args": PluginSection(ModelArgs, "model", "models"),
    "train_args": PluginSection(TrainArgs, "federated_optimizer", "optimizers"),
    "method_args": PluginSection(MethodArgs, "method", "methods"),
}
"""Sections whose other keys belong to a plugin."""

SECTIONS = (
    "common_args",
    "data_args",
    "partition_args",
    "model_args",
    "train_args",
    "method_args",
    "validation_args",
    "device_args",
    "comm_args",
    "client_specific_args",
    "tracking_args",
    "security_args",
    "dp_args",
)
"""All sections, in the order in which a recipe is written."""

PATHS: dict[str, tuple[str, ...]] = {
    "comm_args": ("grpc_ipconfig_path", "certs"),
    "client_specific_args": ("data_silo_config",),
    policy.SECTION: ("account",),
}
"""Keys that hold paths relative to the file that names them."""

SILO: dict[str, tuple[str, ...] | None] = {
    "data_args": None,
    "method_args": None,
    "validation_args": None,
    "device_args": None,
    "comm_args": ("certs", "send_measures", "send_contributions", "audit_digests"),
    "tracking_args": None,
    policy.SECTION: None,
}
"""Sections of a silo's own file, with the keys that it may set; None: all keys, or those that the method names."""


def silos_own(content: object) -> bool:
    """Whether a file's content has the form of a silo's own file: sections of :data:`SILO` alone, and no method."""
    if not isinstance(content, dict) or not content or not content.keys() <= SILO.keys():
        return False
    method = content.get("method_args")
    return not (isinstance(method, dict) and "method" in method)


NEEDS: dict[str, tuple[str, ...]] = {
    "byzantine": ("byzantine_client_num", "attack_mode"),
    "label_flipping": ("original_class_list", "target_class_list", "ratio_of_poisoned_client"),
    "norm_diff_clipping": ("norm_bound",),
    "krum": ("byzantine_client_num",),
    "multikrum": ("byzantine_client_num", "krum_param_m"),
    "slsgd": ("trim_param_b", "alpha", "option_type"),
    "geo_median": ("byzantine_client_num", "batch_num"),
    "cclip": ("bucket_size",),
    "crfl": ("clip_threshold",),
    "trimmed_mean": ("beta",),
    "anomaly_detection": ("cosine_similarity_bound",),
    "ldp": ("mechanism_type", "epsilon", "delta", "sensitivity"),
    "cdp": ("mechanism_type", "epsilon", "delta", "sensitivity"),
}
"""Keys that the host reads without a default, by the type of attack, defence or differential privacy."""


@dataclass(frozen=True)
class Conflict:
    """Values that are right alone and wrong together.

    Args:
        key: ``section.key`` to put right.
        message: what is wrong, and what would be right.
        others: further keys that the judgement rests on.
        missing: whether it is the key's absence that is wrong.
    """

    key: str
    message: str
    others: tuple[str, ...] = ()
    missing: bool = False


def conflicts(
    common: CommonArgs,
    train: TrainArgs,
    comm: CommArgs,
    silos: ClientSpecificArgs,
    tracking: TrackingArgs,
    security: SecurityArgs,
    dp: DpArgs,
) -> Iterator[Conflict]:
    """Everything that no section's own model can see."""
    yield from _train_conflicts(train)
    yield from _comm_conflicts(common, train, comm)
    yield from _silo_conflicts(common, train, silos)
    yield from _diagnostics_conflicts(common, comm, tracking)
    yield from _needed("security_args", security, "enable_attack", "attack_type")
    yield from _needed("security_args", security, "enable_defense", "defense_type")
    yield from _needed("dp_args", dp, "enable_dp", "dp_solution_type")
    if security.enable_attack:
        yield from _attack_conflicts(security)
    if security.enable_defense:
        yield from _defense_conflicts(security, train.clients_per_round)
    if dp.enable_dp and dp.mechanism_type == "gaussian":
        yield from _gaussian_conflicts(dp)


def _train_conflicts(train: TrainArgs) -> Iterator[Conflict]:
    if train.clients_per_round > train.client_num_in_total:
        yield Conflict(
            "train_args.client_num_per_round",
            f"{train.client_num_per_round} is out of range; allowed: an integer from 1 to client_num_in_total,"
            f" {train.client_num_in_total}",
            ("train_args.client_num_in_total",),
        )
    if train.nesterov and train.client_optimizer != "sgd":
        yield Conflict(
            "train_args.nesterov",
            f"true does not go with client_optimizer {train.client_optimizer}; allowed: true with sgd, or false",
            ("train_args.client_optimizer",),
        )
    elif train.nesterov and train.momentum == 0:
        yield Conflict(
            "train_args.nesterov",
            "true needs momentum; allowed: true with a momentum above 0, or false",
            ("train_args.momentum",),
        )
    elif train.nesterov and train.dampening:
        yield Conflict(
            "train_args.dampening",
            f"{train.dampening} does not go with nesterov; allowed: 0 with it, or nesterov: false",
            ("train_args.nesterov",),
        )


def _comm_conflicts(common: CommonArgs, train: TrainArgs, comm: CommArgs) -> Iterator[Conflict]:
    kind = ("common_args.training_type",)
    cross_silo = common.across_silos
    if cross_silo != (comm.backend == "GRPC"):
        right = "GRPC" if cross_silo else "another backend, or GRPC with training_type cross_silo"
        yield Conflict(
            "comm_args.backend",
            f"{comm.backend} does not go with training_type {common.training_type}; allowed: {right}",
            kind,
        )
    if comm.workers is not None and not comm.over_mpi:
        yield Conflict(
            "comm_args.workers",
            f"{comm.workers} does not go with backend {comm.backend}; allowed: null, or a number with MPI",
            ("comm_args.backend",),
        )
    if comm.min_clients is not None and comm.min_clients > train.clients_per_round:
        yield Conflict(
            "comm_args.min_clients",
            f"{comm.min_clients} is out of range; allowed: an integer from 1 to client_num_per_round,"
            f" {train.clients_per_round}",
            ("train_args.client_num_per_round", "train_args.client_num_in_total"),
        )
    if not comm.send_contributions and not cross_silo:
        yield Conflict(
            "comm_args.send_contributions",
            "false does not go with training_type simulation; allowed: true, or false with cross_silo",
            kind,
        )
    if cross_silo and comm.certs is None:
        # with the host's CSV file, the server's address is not known before that file is read
        use = [] if comm.grpc_ipconfig_path is not None else [("server_address", comm.server_address)]
        for key, address in [*use, ("listen_address", comm.listen_address)]:
            if address is not None and not addresses.loopback(address):
                yield Conflict(
                    "comm_args.certs",
                    f"missing; {key} {address} can be reached from other machines; a folder of `labelskew certs new`, "
                    "or an address such as 127.0.0.1:8890, would be right",
                    (f"comm_args.{key}", "comm_args.grpc_ipconfig_path", *kind),
                )
                break


def _silo_conflicts(common: CommonArgs, train: TrainArgs, silos: ClientSpecificArgs) -> Iterator[Conflict]:
    files, key = silos.data_silo_config, "client_specific_args.data_silo_config"
    if files and not common.across_silos:
        yield Conflict(
            key,
            f"does not go with training_type {common.training_type}; allowed: files with cross_silo, or none",
            ("common_args.training_type",),
        )
    elif files and len(files) != train.client_num_in_total:
        yield Conflict(
            key,
            f"{len(files)} files for {train.client_num_in_total} clients; allowed: a file for each, or none",
            ("train_args.client_num_in_total",),
        )


def classes_of(data: DataArgs, params: Any) -> int | None:
    """Number of classes that ``data_args`` tell, of the data set's own parameters too; None where they tell none."""
    names = getattr(params, "class_names", None)
    return data.classes or getattr(params, "classes", None) or (None if names is None else len(names))


def form_conflicts(common: CommonArgs, data: DataArgs, validation: ValidationArgs, params: Any) -> Iterator[Conflict]:
    """What a server without test data has to be told, as no silo's word is taken for it; ``params``: the data set's."""
    if not common.across_silos or validation.server_test_data:
        return
    why = "missing; validation_args.server_test_data: false leaves the server no sample that tells; write"
    others = ("common_args.training_type", "validation_args.server_test_data", "data_args.dataset")
    if data.input_shape is None:
        yield Conflict("data_args.input_shape", f"{why} the shape of one sample, such as [1, 28, 28]", others)
    if getattr(params, "class_names", ()) is None:
        yield Conflict("data_args.class_names", f"{why} the names of all classes, in order", others)
    elif classes_of(data, params) is None:
        yield Conflict("data_args.classes", f"{why} how many classes there are, such as 10", others)


def _diagnostics_conflicts(common: CommonArgs, comm: CommArgs, tracking: TrackingArgs) -> Iterator[Conflict]:
    asked, places = tracking.diagnostics, ("common_args.training_type", "comm_args.backend")
    key = "tracking_args.diagnostics"
    if asked and common.across_silos:
        yield Conflict(key, "no process of a cross_silo run sees what they need; allowed: none, or simulation", places)
    elif not comm.in_process and (blind := [name for name in asked if name in IN_TRAINING]):
        yield Conflict(
            key,
            f"{', '.join(blind)}: with backend {comm.backend} other processes train and cannot be watched; allowed: "
            f"{', '.join(BESIDE_TRAINING)}, or backend sp",
            places,
        )


def _needed(section: str, args: Params, switch: str, chooser: str) -> Iterator[Conflict]:
    if not getattr(args, switch):
        return
    chosen = getattr(args, chooser)
    if chosen is None:
        yield Conflict(f"{section}.{chooser}", f"missing; {switch}: true needs it", (f"{section}.{switch}",), True)
        return
    for key in NEEDS.get(chosen, ()):
        if getattr(args, key) is None:
            why = f"missing; {chooser}: {chosen} needs it"
            yield Conflict(f"{section}.{key}", why, (f"{section}.{chooser}", f"{section}.{switch}"), missing=True)


def _attack_conflicts(security: SecurityArgs) -> Iterator[Conflict]:
    if security.attack_type == "label_flipping":
        old, new = security.original_class_list, security.target_class_list
        if old is not None and new is not None and len(old) != len(new):
            yield Conflict(
                "security_args.target_class_list",
                f"{len(new)} classes for {len(old)} in original_class_list; allowed: as many",
                ("security_args.original_class_list",),
            )
    # The host looks for one key and reads the other.
    rounds, again = security.attack_training_rounds, security.poisoned_training_round
    if security.attack_type == "model_replacement" and rounds != again:
        yield Conflict(
            "security_args.poisoned_training_round",
            "differs from attack_training_rounds; allowed: the same list, or neither (the host reads both)",
            ("security_args.attack_training_rounds",),
        )


def _defense_conflicts(security: SecurityArgs, clients: int) -> Iterator[Conflict]:
    per_round = ("train_args.client_num_per_round", "train_args.client_num_in_total")
    bad = security.byzantine_client_num
    if security.defense_type in ("krum", "multikrum") and bad is not None:
        most = (clients - (security.krum_param_m or 1) - 2) // 2
        if bad > most:
            yield Conflict(
                "security_args.byzantine_client_num",
                f"{bad} is out of range; allowed: at most (client_num_per_round - krum_param_m - 2) / 2, here {most}",
                ("security_args.krum_param_m", *per_round),
            )
    if security.defense_type == "slsgd" and security.trim_param_b is not None:
        most = (clients + 1) // 2 - 1
        if security.trim_param_b > most:
            yield Conflict(
                "security_args.trim_param_b",
                f"{security.trim_param_b} is out of range; allowed: less than half of client_num_per_round,"
                f" here at most {most}",
                per_round,
            )
    if security.defense_type == "geo_median" and security.batch_num is not None and security.batch_num > clients:
        yield Conflict(
            "security_args.batch_num",
            f"{security.batch_num} is out of range; allowed: at most client_num_per_round, {clients}",
            per_round,
        )


def _gaussian_conflicts(dp: DpArgs) -> Iterator[Conflict]:
    if dp.epsilon is not None and dp.epsilon > 1:
        yield Conflict(
            "dp_args.epsilon",
            f"{dp.epsilon} is out of range; allowed: a number above 0 and at most 1 with mechanism_type gaussian",
            ("dp_args.mechanism_type",),
        )
    if dp.delta == 0:
        yield Conflict(
            "dp_args.delta",
            "0 is out of range; allowed: a number above 0 and below 1 with mechanism_type gaussian",
            ("dp_args.mechanism_type",),
        )
