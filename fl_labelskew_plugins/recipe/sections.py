"""The sections of a recipe and of a silo's own file, with their keys: FedML's own names, plus some of ours.

Every section is a frozen pydantic model. The sections that choose a plugin (``data_args``, ``partition_args``,
``model_args``, ``train_args``, ``method_args``) have only the keys that are common to all plugins of the kind; the
rest belongs to the plugin's own ``Params``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from fl_labelskew_registry import catalog
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from fl_labelskew_plugins.params import IS_PATH, LARGEST, Params, absolute
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.recipe.mistakes import show

Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
AboveZero = Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]
Statistics = Literal["imagenet", "data"]
Level = Literal["silo", "claim"]
MOST_NUMBERS = 10**8
"""Numbers of one sample."""
MOST_CLASSES = 10**6

DiagnosticName = Literal[
    "class_accuracy",
    "client_drift",
    "deviation_bound",
    "eigenvalue_variance",
    "feature_sphere",
    "features_2d",
    "intra_loss",
    "label_heatmap",
    "observed_probability",
    "proxy_gradients",
    "tsne",
]
"""Names for ``tracking_args.diagnostics``; :data:`fl_labelskew_plugins.diagnostics.watch.KINDS` has their classes."""

IN_TRAINING: tuple[DiagnosticName, ...] = ("deviation_bound", "intra_loss", "observed_probability", "proxy_gradients")
"""Those that look into local training, which they can where it happens in the run's own process alone."""

OUTSIDE_TRAINING: tuple[DiagnosticName, ...] = tuple(
    name for name in get_args(DiagnosticName) if name not in IN_TRAINING
)
"""Those that look at uploads and global models alone."""

OF_UPLOADS: tuple[DiagnosticName, ...] = (*("class_accuracy", "client_drift", "features_2d", "feature_sphere", "tsne"),)
"""Those that take a client's upload for the model that it has trained."""


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

    model: str = Field(
        description="name of a network: labelskew models; or a function that makes one, FILE.py:FUNCTION or"
        " PACKAGE.MODULE:FUNCTION"
    )


def is_code(name: object) -> bool:
    """Whether ``model_args.model`` names a function rather than a registered network."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


def code_at(name: Any, folder: Path) -> Any:
    """``FILE.py:FUNCTION`` with the file's path from ``folder``; any other name as it is."""
    file, _, function = str(name).rpartition(":")
    return f"{absolute(file, folder)}:{function}" if is_code(name) and file.endswith(".py") else name


class TrainArgs(PluginArgs):
    """The federation and its local training."""

    key, kind, attribute = "federated_optimizer", "optimizers", "optimizer"

    federated_optimizer: str = Field("FedAvg", description="name of an optimiser: labelskew optimizers")
    optimizer_source: Literal["own", "corrected"] | None = Field(
        None,
        description="whose code optimises; corrected: FedML's, without its faults; default: corrected if that can run"
        " the recipe (docs/mixing.md), else own",
    )
    client_num_in_total: Positive = Field(10, description="clients K")
    client_num_per_round: Positive | None = Field(None, description="clients that join a round; default: all")
    comm_round: Positive = Field(10, description="rounds T")
    epochs: Positive = Field(1, description="local epochs E")
    batch_size: Positive = Field(64, description="samples of a batch")
    client_optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser")
    learning_rate: float = Field(0.01, gt=0, description="local learning rate in round 0")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum")
    weight_decay: float = Field(0.0, ge=0, description="weight decay (L2)")
    lr_schedule: Literal["constant", "step"] = Field(
        "constant", description="learning rate over the rounds; step multiplies by lr_decay every lr_decay_every rounds"
    )
    lr_decay: float = Field(0.95, gt=0, le=1, description="factor of the step schedule (FedShift: 0.95)")
    lr_decay_every: Positive = Field(10, description="rounds between two steps (FedShift: 10)")
    gradient_clip_norm: float | None = Field(
        None, gt=0, description="clip the gradient's norm, that of private parameters apart; default: never"
    )
    augment: list[Literal["flip", "crop", "colour"]] = Field(
        [],
        description="random changes of training pictures: flip (left to right, half of the time), crop (at a random"
        " place after zero padding by 1/8 of each side), colour (brightness, contrast, saturation by up to 20 %)",
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
    threads: Positive | None = Field(
        None, description="torch threads of a process; default: 1, or 4 for a large network and batch"
    )
    loader_workers: int | None = Field(
        None,
        ge=0,
        description="processes that decode pictures ahead of training; default: half of the cores, or with"
        " a GPU all but one; 0: none",
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: mixed precision, weights stay fp32")
    channels_last: bool = Field(True, description="memory format of images and convolutions")


LEAST_SUMMED = 3
"""Clients below which a sum hides nobody."""


def to_the_end(clients: int) -> int:
    """How many of so many a sum with noise needs to its end by default: more than two thirds.

    >>> [to_the_end(clients) for clients in (3, 4, 5, 6, 10)]
    [3, 3, 4, 5, 7]
    """
    return max(LEAST_SUMMED, 2 * clients // 3 + 1)


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
    hostfile: Annotated[str | None, IS_PATH] = Field(
        None, description="MPI: file of nodes and their slots, as mpirun's, this machine first; default: this machine"
    )
    server_address: str = Field("127.0.0.1:8890", description="cross_silo: host:port where silos find the server")
    listen_address: str | None = Field(
        None, description="cross_silo: host:port where the server listens; default: server_address"
    )
    certs: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: folder of labelskew certs new for this machine; not needed on loopback"
    )
    round_deadline_s: float = Field(
        3600.0,
        gt=0,
        description="cross_silo: how long a round waits for uploads; for sum and test at least a quarter more",
    )
    reconnect_s: float = Field(
        60.0, ge=0, description="cross_silo: how long a silo that lost its connection in a round is waited for"
    )
    answer_after_s: float | None = Field(
        None,
        ge=0,
        description="cross_silo with secure_aggregation and noise: a silo is ready with a round no sooner than so many"
        " seconds after it was asked, as the time of training may tell something; default: round_deadline_s / 4",
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
    secure_threshold: int | None = Field(
        None,
        ge=LEAST_SUMMED,
        description="cross_silo with secure_aggregation: silos that a round's sum needs to its end; default: all of"
        " the round, or more than two thirds with privacy_args.noise_multiplier",
    )

    @property
    def answers_after(self) -> float:
        """``answer_after_s``, or its default."""
        return self.round_deadline_s / 4 if self.answer_after_s is None else self.answer_after_s

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
        """Uploads that a round needs: with secure aggregation no fewer than hide each other in a sum."""
        least = min(2, clients_per_round) if self.min_clients is None else self.min_clients
        return max(least, LEAST_SUMMED) if self.secure_aggregation else least

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


class PrivacyBudget(Params):
    """As much as may be revealed: epsilon, at delta."""

    epsilon: float = Field(gt=0, description="most that all answers of a silo may add up to")
    delta: float = Field(gt=0, lt=1, description="chance that the bound may fail")


class PrivacyArgs(Params):
    """How much each silo may reveal; a silo's own file may set it for itself.

    ``level`` says whose privacy it is. ``silo``: had the silo held any other samples, as many; this is proven for what
    is clipped and has noise. ``claim``: had it held another sample in place of one; this is proven for class counts,
    and for weights it is the claim of FedRS's appendix B that a sample moves an update by 2L/m at most (L: its largest
    norm, m: samples of the smallest silo), or of who wrote ``dp_args.sensitivity``.
    """

    noise_multiplier: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="with secure_aggregation: least standard deviation of the noise in a round's sum, over clip",
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="noise_multiplier: largest norm of what a client adds, which is its change of all parameters times"
        " its weight in the mean, such as its share of all samples; what is longer is shortened",
    )
    budget: PrivacyBudget | None = Field(
        None,
        description="such as {epsilon: 8, delta: 1e-5}: a silo for which another answer would be more stops"
        " answering; null: no end, the ledger counts all the same",
    )
    level: Level = Field("silo", description="silo: of all that it sends; claim: of one sample, as the paper has it")
    ledger: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: file of the silo's ledger; default: privacy.jsonl in the silo's folder"
    )

    @model_validator(mode="after")
    def _noise_needs_clip(self) -> PrivacyArgs:
        if (self.noise_multiplier is None) != (self.clip is None):
            raise ValueError("noise_multiplier and clip go together; give both or neither")
        return self


class TrackingArgs(Params):
    """What is kept of a run."""

    run_dir: str = Field("runs", description="folder in which each run makes its own folder")
    checkpoint_every: Positive = Field(10, description="rounds between two checkpoints")
    keep_checkpoints: Positive = Field(
        2, description="checkpoints that are kept, the last one included; --from-round goes back to one"
    )
    keep_best: bool = Field(
        True, description="also keep the model of the best round, by the main accuracy, as best.safetensors"
    )
    state_memory_mb: int = Field(256, ge=0, description="clients' private state held in memory; the rest is on disk")
    diagnostics: list[DiagnosticName] = Field(
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
    "wandb_only_server": "is FedML's own; remove this key: only the server's process has trackers",
    "enable_tracking": "is a setting of FedML's platform; remove this key",
    "log_file_dir": "is a setting of FedML's platform; remove this key: results are in run_dir",
}
"""The host's keys of ``tracking_args``, and what to write instead."""


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


class HostArgs(Params):
    """A section under the host's own keys; it tests some of them with ``hasattr``, so none may be None."""

    @field_validator("attack_type", "defense_type", "dp_solution_type", mode="before", check_fields=False)
    @classmethod
    def _works_in_the_host(cls, value: object) -> object:
        if isinstance(value, str) and value in DEAD:
            raise ValueError(f"'{value}' does not work in the host: {DEAD[value]}")
        return value

    @model_serializer(mode="wrap")
    def _in_use(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class SecurityArgs(HostArgs):
    """The host's attacks and defences (``fedml/core/security``); all further keys are given to the host as they are."""

    model_config = ConfigDict(extra="allow")

    enable_attack: bool = Field(False, description="simulate an attack")
    attack_type: Literal["byzantine", "label_flipping", "model_replacement"] | None = Field(
        None, description="which attack; its keys are FedML's, such as attack_mode: random"
    )
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
    ) = Field(None, description="which defence; its keys are FedML's, such as norm_bound: 0.1")


class DpArgs(HostArgs):
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


ExpectedMeasure = Literal["accuracy", "best_accuracy", "personalised_accuracy", "balanced_accuracy", "rounds_to"]


class Expected(Params):
    """A paper's number, which a recipe's runs can be compared with; it has no part in a run.

    Accuracies are in per cent, as papers print them: means over the last ``validation_args.last_rounds`` tests, but
    ``best_accuracy``, the highest of any test. ``rounds_to`` is the first round, from 1, whose accuracy is ``target``.
    """

    value: float = Field(ge=0, description="the number: per cent, or rounds with rounds_to")
    measure: ExpectedMeasure = Field("accuracy", description="what it measures")
    target: float | None = Field(None, ge=0, le=100, description="rounds_to: the accuracy to be reached, in per cent")
    tolerance: float = Field(2.0, ge=0, description="how far from it still counts as reached, in its unit")
    paper: str = Field(description="whose number it is")
    table: str = Field(description="where it is printed, such as Table 1")

    @model_validator(mode="after")
    def _target_goes_with_rounds(self) -> Expected:
        if (self.measure == "rounds_to") != (self.target is not None):
            raise ValueError("target and measure rounds_to go together; give both or neither")
        return self


ACCOUNT = "account.json"
Sent = Literal["weights", "prototypes", "counts", "moments", "measures", "optimizer", "other"]


Scale = Annotated[float, Field(gt=0)]


class LeastNoise(Params):
    """Noise of one kind: Laplace and Gaussian noise of one scale do not protect alike."""

    kind: Literal["laplace", "gaussian"] = Field(description="distribution of the noise")
    scale: float = Field(gt=0, description="least scale (laplace), or standard deviation (gaussian)")


class NoiseAtLeast(Params):
    """Least noise that a recipe must have, by kind; what is not given is not limited."""

    count_noise: Scale | LeastNoise | None = Field(None, description="scale, on class counts")
    upload_sigma: Scale | LeastNoise | None = Field(None, description="standard deviation, on weights")
    dp: Scale | LeastNoise | None = Field(None, description="scale of FedML's noise on weights (dp_args)")
    noise_multiplier: Scale | LeastNoise | None = Field(None, description="of sums (privacy_args)")


class Policy(Params):
    """What a silo takes part in; what is not given is not limited."""

    methods: list[str] | None = Field(None, description="methods that may run, of a combination each of them")
    max_rounds: Positive | None = Field(None, description="rounds that this silo answers, all runs together")
    max_answers_per_round: Positive | None = Field(
        None,
        description="different answers to one round of a run; the same question gets the same answer, which is one",
    )
    min_clients: Positive | None = Field(
        None, description="uploads that a round needs, by the recipe's comm_args.min_clients and the server's word"
    )
    require_secure_aggregation: bool = Field(
        False, description="only recipes with comm_args.secure_aggregation: true, and no surveys"
    )
    several_runs: bool = Field(
        False,
        description="with comm_args.secure_aggregation: one process of this silo may answer several runs, whose sums"
        " the server can compare",
    )
    send: list[Sent] | None = Field(
        None,
        description="what may leave: weights; prototypes (features or outputs of a class); counts (of each class);"
        " moments (sums of samples and of their squares, by channel); measures; optimizer (what an optimiser sends"
        " beside weights); other (of methods that do not say what it is)",
    )
    server_fingerprint: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the server's certificate, as labelskew certs show has it",
    )
    noise_at_least: NoiseAtLeast | None = Field(
        None, description="least noise of each kind: a number, or {kind: laplace or gaussian, scale: number}"
    )
    account: Annotated[str | None, IS_PATH] = Field(
        None, description=f"file of the account of answers; default: {ACCOUNT} in the silo's folder"
    )

    def least_noise(self, name: str) -> tuple[float, str]:
        """Scale and kind of ``noise_at_least``; 0 without, and no kind if any will do."""
        least = getattr(self.noise_at_least, name, None)
        return (least.scale, least.kind) if isinstance(least, LeastNoise) else (least or 0.0, "")
