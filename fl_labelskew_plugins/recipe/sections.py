"""Sections and keys of recipes and silos' files, except those of single plugins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from fl_labelskew_registry import catalog
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from fl_labelskew_plugins.params import IS_PATH, LARGEST, Params, absolute
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.recipe.mistakes import quoted

Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
AboveZero = Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]
Statistics = Literal["imagenet", "data"]
Level = Literal["silo", "claim"]
MOST_NUMBERS = 10**8  # per sample
MOST_CLASSES = 10**6


def _is_no_giant(shape: list[int]) -> list[int]:
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"{quoted(shape)}: too many numbers per sample; allowed: at most {MOST_NUMBERS}")
    return shape


InputShape = Annotated[list[Positive], Field(min_length=1, max_length=5), AfterValidator(_is_no_giant)]
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

IN_TRAINING: tuple[DiagnosticName, ...] = ("deviation_bound", "intra_loss", "observed_probability", "proxy_gradients")
OUTSIDE_TRAINING: list[DiagnosticName] = [name for name in get_args(DiagnosticName) if name not in IN_TRAINING]
OF_UPLOADS = ("class_accuracy", "client_drift", "features_2d", "feature_sphere", "tsne")
"""Diagnostics that treat a client's upload as its trained model."""


class PluginArgs(Params):
    """A section that chooses a plugin, with the keys of all plugins of its kind."""

    key: ClassVar[str]  # with the plugin's name
    kind: ClassVar[catalog.Kind]
    attribute: ClassVar[str]  # of a Recipe


class CommonArgs(Params):
    """The kind of run and its seed."""

    training_type: Literal["simulation", "cross_silo"] = Field(
        "simulation", description="FedML's kind of run; cross_silo: every client is a machine with its own data"
    )
    random_seed: int = Field(0, ge=0, lt=2**31, description="seed of all randomness in this run")

    @property
    def across_silos(self) -> bool:
        """Whether every client is a separate machine."""
        return self.training_type == "cross_silo"


class DataArgs(PluginArgs):
    """The data set and its folder."""

    key, kind, attribute = "dataset", "datasets", "dataset"

    dataset: str = Field(description="name of a data set: labelskew datasets")
    data_cache_dir: str | None = Field(None, description="folder of the data set's files; default: set by the data set")
    download: bool = Field(False, description="download missing files")
    input_shape: InputShape | None = Field(
        None, description="expected sample shape; required with server_test_data: false"
    )
    classes: int | None = Field(
        None, ge=1, le=MOST_CLASSES, description="expected number of classes; required with server_test_data: false"
    )

    mean: list[Finite] | Statistics | None = Field(
        None,
        min_length=1,
        description="mean of each channel, in units of 0..1 for images; imagenet: mean and std of ImageNet; data: mean"
        " and std of the training data, across silos of all silos' training data; default: set by the data set",
    )
    std: list[AboveZero] | Statistics | None = Field(
        None, min_length=1, validate_default=True, description="std of each channel; required if mean is a list"
    )

    @field_validator("std")
    @classmethod
    def _goes_with_mean(cls, std: list[float] | str | None, info: ValidationInfo) -> list[float] | str | None:
        if "mean" not in info.data:
            return std  # mean has already been rejected
        mean = info.data["mean"]
        if isinstance(mean, list) and not (isinstance(std, list) and len(std) == len(mean)):
            raise ValueError(f"{quoted(std)} does not match mean {quoted(mean)}; use a list of the same length")
        if not isinstance(mean, list) and std not in (None, mean):
            raise ValueError(f"{quoted(std)} does not match mean {quoted(mean)}; use lists for both, or only mean")
        return std if isinstance(mean, list) else mean


class PartitionArgs(PluginArgs):
    """The partition of samples among clients."""

    key, kind, attribute = "partition_method", "partitioners", "partitioner"

    partition_method: str = Field("iid", description="name of a partition: labelskew partitions")


class ModelArgs(PluginArgs):
    """The network."""

    key, kind, attribute = "model", "models", "network"

    model: str = Field(description="name of a network: labelskew models; or a function, FILE.py:FUNCTION")


def is_code(name: object) -> bool:
    """Whether ``model_args.model`` names a function."""
    return isinstance(name, str) and (":" in name or name.endswith(".py"))


def code_at(name: Any, folder: Path) -> Any:
    """``FILE.py:FUNCTION`` with an absolute path; other names unchanged."""
    file, _, function = str(name).rpartition(":")
    return f"{absolute(file, folder)}:{function}" if is_code(name) and file.endswith(".py") else name


class Stop(Params):
    """Early stopping."""

    metric: Literal["accuracy", "balanced_accuracy", "loss", "personalised_accuracy"] = Field(
        "accuracy", description="measure of the tests; accuracy: the run's main measure"
    )
    patience: Positive | None = Field(None, description="stop after this many tests in a row without improvement")
    min_delta: float = Field(0.0, ge=0, description="smallest improvement that counts")
    target: float | None = Field(None, description="stop when a test reaches this value")

    @model_validator(mode="after")
    def _has_a_criterion(self) -> Stop:
        if self.patience is None and self.target is None:
            raise ValueError("needs patience, target or both, such as {patience: 10, min_delta: 0.001}")
        return self


class TrainArgs(PluginArgs):
    """The federation, its optimiser and local training."""

    key, kind, attribute = "federated_optimizer", "optimizers", "optimizer"

    federated_optimizer: str = Field("FedAvg", description="name of an optimiser: labelskew optimizers")
    client_num_in_total: Positive = Field(10, description="number of clients K")
    client_num_per_round: Positive | None = Field(None, description="clients per round; default: all")
    comm_round: Positive = Field(10, description="rounds T")
    stop: Stop | None = Field(
        None,
        description="early stopping, such as {metric: accuracy, patience: 10, min_delta: 0.001} or {target: 0.9}; null:"
        " all rounds",
    )
    epochs: Positive = Field(1, description="local epochs E")
    batch_size: Positive = Field(64, description="samples per batch")
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
        None, gt=0, description="maximum gradient norm; private parameters are clipped separately; default: no clipping"
    )
    augment: list[Literal["flip", "crop", "colour"]] = Field(
        [],
        description="random augmentation of training images: flip (left to right, with probability 1/2), crop (random"
        " position after zero padding by 1/8 of each side), colour (brightness, contrast, saturation by up to 20 %)",
    )
    proxy_aggregation: Literal["model", "class"] = Field(
        "model", description="averaging weights of the classifier's rows: the model's, or per class (FedRS section 4.4)"
    )
    proxy_smoothing: float = Field(0.0, ge=0, description="lambda of proxy_aggregation: class, in samples")

    reference: Literal["centralised", "local"] | None = Field(
        None,
        description="reference run instead of a federation, with plain training: centralised (all training data in one"
        " place, as many steps) or local (each client trains its own model)",
    )

    @property
    def proxies_by_class(self) -> float | None:
        """``proxy_smoothing`` if rows are averaged per class, else None."""
        return self.proxy_smoothing if self.proxy_aggregation == "class" else None

    @property
    def clients_per_round(self) -> int:
        """``client_num_per_round``, or all clients."""
        return self.client_num_in_total if self.client_num_per_round is None else self.client_num_per_round


def names(value: object) -> list[str]:
    """Names joined by ``+`` or in a list; empty for any other value."""
    parts = value.split("+") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return []
    return [part.strip() for part in parts]


class MethodArgs(PluginArgs):
    """The label-skew method."""

    key, kind, attribute = "method", "methods", "method"

    method: str = Field(description="name of a method: labelskew methods; to combine: a list, or names joined by +")

    @field_validator("method", mode="before")
    @classmethod
    def _one_name(cls, value: object) -> str:
        methods = names(value)
        if not methods or (isinstance(value, list) and len(methods) == 1):
            raise ValueError(f"{quoted(value)} is not a method; allowed: a name, or a list of two names or more")
        return "+".join(methods)


class ValidationArgs(Params):
    """Tests during a run."""

    frequency_of_the_test: int = Field(1, ge=0, description="rounds between two tests; 0: only after the last round")
    personalised: bool = Field(True, description="also test each client's own model on its own test split")
    per_client: bool = Field(
        False,
        description="also test the global model on each client's own test split; across silos each silo tests it, and"
        " reports the result with send_measures",
    )
    last_rounds: Positive = Field(5, description="number of last tests in the summary's mean and std")
    server_test_data: bool = Field(
        True, description="cross_silo: whether the server has the test part; false: the global model is not tested"
    )


class DeviceArgs(Params):
    """Devices, threads and precision."""

    using_gpu: bool = Field(False, description="train on GPUs")
    gpu_ids: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1, description="GPUs to use; sp uses the first")
    workers_per_gpu: Positive = Field(1, description="MPI: processes that share one GPU")
    fallback: Literal["cpu"] | None = Field(
        None, description="cpu: warn and train on the CPU if a GPU is missing; default: an error"
    )
    threads: Positive | None = Field(
        None, description="torch threads per process; default: 1, or 4 for a large network and batch"
    )
    loader_workers: int | None = Field(
        None,
        ge=0,
        description="processes that decode images ahead of training; default: half of the cores, or all but one with"
        " a GPU; 0: none",
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: mixed precision, weights stay fp32")
    channels_last: bool = Field(True, description="memory format of images and convolutions")


LEAST_SUMMED = 3  # clients in a secure sum


def to_the_end(clients: int) -> int:
    """Default ``secure_threshold`` of a sum with noise: more than two thirds of ``clients``.

    >>> [to_the_end(clients) for clients in (3, 4, 5, 6, 10)]
    [3, 3, 4, 5, 7]
    """
    return max(LEAST_SUMMED, 2 * clients // 3 + 1)


class CommArgs(Params):
    """Communication and timeouts, in seconds.

    Paths are relative to the file that contains them, or to the current folder on the command line.
    """

    backend: str = Field(
        "sp", description="name of a runtime; sp: one process; MPI: several; GRPC: across silos; Flower: SuperNodes"
    )
    workers: Positive | None = Field(
        None, description="MPI: worker processes; default: one per GPU, else per core, at most clients per round"
    )
    server_address: str = Field("127.0.0.1:8890", description="cross_silo: host:port at which silos reach the server")
    listen_address: str | None = Field(None, description="cross_silo: host:port to listen on; default: server_address")
    certs: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: this machine's folder from labelskew certs new; not needed on loopback"
    )
    round_deadline_s: float = Field(
        3600.0, gt=0, description="cross_silo: time limit for uploads of a round; sum and test get at least a quarter"
    )
    reconnect_s: float = Field(60.0, ge=0, description="cross_silo: time limit for a lost silo to reconnect in a round")
    answer_after_s: float | None = Field(
        None,
        ge=0,
        description="cross_silo with secure_aggregation and noise: minimum time from a round's request to a silo's"
        " answer, to hide its training time; default: round_deadline_s / 4",
    )
    min_clients: Positive | None = Field(
        None, description="cross_silo: minimum of uploads per round; default: 2, or 1 if one client joins a round"
    )
    quorum_timeout_s: float = Field(
        600.0, gt=0, description="cross_silo: time limit to reach min_clients; then the server stops, resumable"
    )
    send_measures: bool = Field(
        False, description="cross_silo: silos also report loss terms and accuracies on their own test part"
    )
    send_contributions: bool = Field(
        True, description="cross_silo; false: silos send only weights, no prototypes or other contributions"
    )
    upload_memory_mb: int = Field(256, ge=0, description="memory for arriving and queued messages; the rest is on disk")
    audit_digests: bool = Field(True, description="cross_silo: write the SHA-256 of every message to the audit log")
    max_update_ratio: float | None = Field(
        1000.0,
        ge=1,
        description="cross_silo: refuse an upload if its norm exceeds this many times the round's median; null: never",
    )
    max_samples: int = Field(10**9, ge=1, le=10**12, description="cross_silo: largest number of samples per silo")

    secure_aggregation: bool = Field(False, description="the server sees only sums of clients' integer-coded updates")
    secure_bits: int = Field(32, ge=16, le=32, description="secure_aggregation: bits per integer; 16 halve the bytes")
    secure_clip: float | None = Field(
        None,
        gt=0,
        description="secure_aggregation: maximum change of a parameter by a client in a round; a larger change is an"
        " error; smaller values of this key give finer steps; default: 2^(secure_bits / 8), 16 with 32 bits and 4 with"
        " 16",
    )
    secure_threshold: int | None = Field(
        None,
        ge=LEAST_SUMMED,
        description="cross_silo with secure_aggregation: minimum of silos to complete a round's sum; default: all of"
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
        """Whether the server and all clients share one process."""
        return self.backend == "sp"

    @property
    def over_mpi(self) -> bool:
        """Whether a simulation's processes communicate over MPI."""
        return self.backend == "MPI"

    @property
    def over_flower(self) -> bool:
        """Whether clients are Flower's nodes."""
        return self.backend == "Flower"

    @field_validator("server_address", "listen_address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            addresses.split(value)
        return value


class ClientSpecificArgs(Params):
    """Differences between silos, under FedML's key."""

    data_silo_config: Annotated[list[str], IS_PATH] = Field(
        [],
        description="cross_silo: one YAML file per silo, by rank; its data_args replace the recipe's, and the silo"
        " trains on all of its own data",
    )


class PrivacyBudget(Params):
    """Privacy budget: epsilon at delta."""

    epsilon: float = Field(gt=0, description="maximum epsilon of all answers of a silo together")
    delta: float = Field(gt=0, lt=1, description="probability that the bound fails")


class PrivacyArgs(Params):
    """Limits on what each silo reveals; a silo's own file may set its own; docs/privacy.md explains the levels."""

    noise_multiplier: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="with secure_aggregation: minimum standard deviation of the noise in a round's sum, divided by"
        " clip",
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="noise_multiplier: maximum norm of a client's part of the sum; larger parts are scaled down; the"
        " part is the client's change of all parameters times its weight in the mean, such as its share of all"
        " samples",
    )
    budget: PrivacyBudget | None = Field(
        None,
        description="such as {epsilon: 8, delta: 1e-5}: a silo stops answering before it exceeds the budget; null: no"
        " limit, but the ledger still counts",
    )
    level: Level = Field("silo", description="unit of privacy: silo (all samples) or claim (one sample, as in FedRS)")
    ledger: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: file of the silo's ledger; default: privacy.jsonl in the silo's folder"
    )

    @model_validator(mode="after")
    def _noise_needs_clip(self) -> PrivacyArgs:
        if (self.noise_multiplier is None) != (self.clip is None):
            raise ValueError("noise_multiplier and clip belong together; set both or neither")
        return self


class TrackingArgs(Params):
    """The files that a run keeps."""

    run_dir: str = Field("runs", description="folder that contains the runs' folders")
    checkpoint_every: Positive = Field(10, description="rounds between two checkpoints")
    keep_checkpoints: Positive = Field(
        2, description="number of checkpoints to keep, including the last; --from-round resumes from one"
    )
    keep_best: bool = Field(True, description="also keep the model with the highest main accuracy as best.safetensors")
    diagnostics: list[DiagnosticName] = Field(
        [], description="plots and tables of the papers other than accuracy, in the run's folder diagnostics/"
    )
    diagnostics_every: Positive = Field(1, description="rounds between two diagnostics; the last round is included")
    trackers: list[Any] = Field(
        [], description="where to report rounds: names of labelskew trackers, or {NAME: {parameter: value}}"
    )

    @field_validator("trackers", mode="before")
    @classmethod
    def _is_a_list(cls, value: object) -> object:
        if not isinstance(value, list):  # do not show the value: a parameter may contain a secret
            raise ValueError("must be a list; allowed: a list of names, such as [csv]")
        return value


class HostArgs(Params):
    """A section with FedML's keys, without None, since FedML tests some with ``hasattr``."""

    @model_serializer(mode="wrap")
    def _in_use(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class SecurityArgs(HostArgs):
    """FedML's attacks and defences (``fedml/core/security``); all other keys are passed to FedML unchanged."""

    model_config = ConfigDict(extra="allow")

    enable_attack: bool = Field(False, description="simulate an attack")
    attack_type: Literal["byzantine", "label_flipping", "model_replacement"] | None = Field(
        None, description="type of attack; its keys are FedML's, such as attack_mode: random"
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
    ) = Field(None, description="type of defence; its keys are FedML's, such as norm_bound: 0.1")


class DpArgs(HostArgs):
    """FedML's differential privacy, with FedML's keys (``fedml/core/dp``)."""

    enable_dp: bool = Field(False, description="add FedML's noise")
    dp_solution_type: Literal["ldp", "cdp"] | None = Field(
        None, description="ldp: every client adds noise to its upload; cdp: the server adds noise to the aggregate"
    )
    mechanism_type: Literal["gaussian", "laplace"] | None = Field(None, description="distribution of the noise")
    epsilon: float | None = Field(None, gt=0, description="privacy budget per round; gaussian: at most 1")
    delta: float | None = Field(None, ge=0, lt=1, description="failure probability; gaussian: above 0")
    sensitivity: float | None = Field(None, gt=0, description="L2 (gaussian) or L1 (laplace) sensitivity")
    max_grad_norm: float | None = Field(None, gt=0, description="cdp: scale uploads to this norm; default: never")


class Expected(Params):
    """A paper's number to compare a recipe's runs with; it does not affect a run.

    Accuracies are in per cent: means over the last ``validation_args.last_rounds`` tests, except ``best_accuracy``, the
    highest of all. ``rounds_to`` is the first round, from 1, that reaches ``target``.
    """

    value: float = Field(ge=0, description="the paper's number: per cent, or rounds with rounds_to")
    measure: Literal["accuracy", "best_accuracy", "personalised_accuracy", "balanced_accuracy", "rounds_to"] = Field(
        "accuracy", description="the quantity"
    )
    target: float | None = Field(None, ge=0, le=100, description="rounds_to: the accuracy to reach, in per cent")
    tolerance: float = Field(2.0, ge=0, description="largest difference that counts as reproduced, in the same unit")
    paper: str = Field(description="the paper")
    table: str = Field(description="place in the paper, such as Table 1")

    @model_validator(mode="after")
    def _target_goes_with_rounds(self) -> Expected:
        if (self.measure == "rounds_to") != (self.target is not None):
            raise ValueError("target is needed with measure: rounds_to, and not allowed with other measures")
        return self


ACCOUNT = "account.json"
Sent = Literal["weights", "prototypes", "counts", "moments", "measures", "optimizer", "other"]


class LeastNoise(Params):
    """Noise of one distribution: Laplace and Gaussian noise of the same scale protect differently."""

    kind: Literal["laplace", "gaussian"] = Field(description="distribution of the noise")
    scale: float = Field(gt=0, description="minimum scale (laplace) or standard deviation (gaussian)")


class NoiseAtLeast(Params):
    """Minimum noise that a recipe must have, by kind; a missing key sets no minimum."""

    count_noise: PositiveFloat | LeastNoise | None = Field(None, description="scale, on class counts")
    upload_sigma: PositiveFloat | LeastNoise | None = Field(None, description="standard deviation, on weights")
    dp: PositiveFloat | LeastNoise | None = Field(None, description="scale of FedML's noise on weights (dp_args)")
    noise_multiplier: PositiveFloat | LeastNoise | None = Field(
        None, description="noise_multiplier of sums (privacy_args)"
    )


class Policy(Params):
    """A silo's limits on the runs that it joins; a missing key sets no limit."""

    methods: list[str] | None = Field(None, description="allowed methods; a combination needs all of its parts")
    max_rounds: Positive | None = Field(None, description="maximum of rounds that this silo answers, over all runs")
    max_answers_per_round: Positive | None = Field(
        None,
        description="maximum of different answers to one round of a run; repeated requests get the same answer, which"
        " counts once",
    )
    min_clients: Positive | None = Field(
        None, description="minimum of uploads per round, by the recipe's comm_args.min_clients and the server's report"
    )
    require_secure_aggregation: bool = Field(
        False, description="join only recipes with comm_args.secure_aggregation: true, and no surveys"
    )
    several_runs: bool = Field(
        False,
        description="with comm_args.secure_aggregation: let one process of this silo answer several runs, although the"
        " server can compare their sums",
    )
    send: list[Sent] | None = Field(
        None,
        description="data that may leave: weights; prototypes (features or outputs per class); counts (per class);"
        " moments (sums of samples and of their squares, per channel); measures; optimizer (tensors of the optimiser in"
        " addition to weights); other (data of methods that do not declare their kind)",
    )
    server_fingerprint: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 of the server's certificate: labelskew certs show"
    )
    noise_at_least: NoiseAtLeast | None = Field(
        None, description="minimum noise of each kind: a number, or {kind: laplace or gaussian, scale: number}"
    )
    account: Annotated[str | None, IS_PATH] = Field(
        None, description=f"file that records the silo's answers; default: {ACCOUNT} in the silo's folder"
    )

    def least_noise(self, name: str) -> tuple[float, str]:
        """Scale (0: no minimum) and kind (``""``: any) of the noise."""
        least = getattr(self.noise_at_least, name, None)
        return (least.scale, least.kind) if isinstance(least, LeastNoise) else (least or 0.0, "")
