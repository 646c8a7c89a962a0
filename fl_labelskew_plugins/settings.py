"""The sections of a recipe and their keys: a FedML configuration with the host's own names, plus two of ours.

Every section is a frozen pydantic model. The sections that choose a plugin (``data_args``, ``partition_args``,
``model_args``, ``method_args``) hold here only the keys that are common to all plugins of the kind; the rest belongs
to the plugin's own ``Params``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fl_labelskew_plugins.params import Params

Positive = Annotated[int, Field(ge=1)]


class CommonArgs(Params):
    """What kind of run this is."""

    training_type: Literal["simulation"] = Field("simulation", description="the host's kind of run")
    random_seed: int = Field(0, ge=0, lt=2**31, description="seed of everything random in this run")


class DataArgs(Params):
    """Which data set, and where it lies."""

    dataset: str = Field(description="name of a data set: labelskew datasets")
    data_cache_dir: str | None = Field(None, description="folder of the data set's files; default: the data set's own")
    download: bool = Field(False, description="whether missing files may be fetched from the network")


class PartitionArgs(Params):
    """How samples are dealt to clients."""

    partition_method: str = Field("iid", description="name of a partition: labelskew partitions")


class ModelArgs(Params):
    """Which network."""

    model: str = Field(description="name of a network: labelskew models")


class TrainArgs(Params):
    """The federation and its local training."""

    federated_optimizer: Literal["FedAvg"] = Field("FedAvg", description="the host's optimiser")
    client_num_in_total: Positive = Field(10, description="clients K")
    client_num_per_round: Positive | None = Field(None, description="clients that join a round; default: all")
    comm_round: Positive = Field(10, description="rounds T")
    epochs: Positive = Field(1, description="local epochs E")
    batch_size: Positive = Field(64, description="samples of a batch")
    client_optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser")
    learning_rate: float = Field(0.01, gt=0, description="local learning rate in round 0")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum")
    nesterov: bool = Field(False, description="Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="weight decay (L2)")
    lr_schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="learning rate over the rounds; step multiplies by lr_decay every lr_decay_every rounds"
    )
    lr_decay: float = Field(0.95, gt=0, le=1, description="factor of the step schedule (FedShift: 0.95)")
    lr_decay_every: Positive = Field(10, description="rounds between two steps (FedShift: 10)")
    gradient_clip_norm: float | None = Field(None, gt=0, description="clip the gradient's norm; default: never")
    proxy_aggregation: Literal["model", "class"] = Field(
        "model", description="weights of the classifier's rows: as the model's, or per class (FedRS section 4.4)"
    )
    proxy_smoothing: float = Field(0.0, ge=0, description="lambda of proxy_aggregation: class, in samples")

    @property
    def clients_per_round(self) -> int:
        """``client_num_per_round``, or all clients where it is null."""
        return self.client_num_in_total if self.client_num_per_round is None else self.client_num_per_round


class MethodArgs(Params):
    """Which label-skew method."""

    method: str = Field(description="name of a method: labelskew methods")


class ValidationArgs(Params):
    """When and what is measured."""

    frequency_of_the_test: int = Field(1, ge=0, description="rounds between two tests; 0: after the last round alone")
    personalised: bool = Field(True, description="also test each client's own model on its own test split")
    last_rounds: Positive = Field(5, description="tests that the summary's mean and std are taken over")


class DeviceArgs(Params):
    """Where and how tensors are computed."""

    using_gpu: bool = Field(False, description="train on GPUs")
    gpu_ids: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1, description="GPUs in use; sp uses the first")
    threads: Positive | None = Field(None, description="torch threads of a process; default: the cores it may use")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: mixed precision, weights stay fp32")
    channels_last: bool = Field(True, description="memory format of images and convolutions")


class CommArgs(Params):
    """How clients and server talk."""

    backend: str = Field("sp", description="name of a runtime; sp: all in one process")


class TrackingArgs(Params):
    """What is kept of a run."""

    run_dir: str = Field("runs", description="folder in which each run makes its own folder")
    checkpoint_every: Positive = Field(10, description="rounds between two checkpoints")
    state_memory_mb: int = Field(256, ge=0, description="clients' private state held in memory; the rest is on disk")


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


PLAIN: dict[str, type[Params]] = {
    "common_args": CommonArgs,
    "train_args": TrainArgs,
    "validation_args": ValidationArgs,
    "device_args": DeviceArgs,
    "comm_args": CommArgs,
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
    kind: Literal["methods", "partitioners", "datasets", "models"]


PLUGGED: dict[str, PluginSection] = {
    "data_args": PluginSection(DataArgs, "dataset", "datasets"),
    "partition_args": PluginSection(PartitionArgs, "partition_method", "partitioners"),
    "model_args": PluginSection(ModelArgs, "model", "models"),
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
    "tracking_args",
    "security_args",
    "dp_args",
)
"""All sections, in the order in which a recipe is written."""

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


def conflicts(train: TrainArgs, security: SecurityArgs, dp: DpArgs) -> Iterator[Conflict]:
    """Everything that no section's own model can see."""
    yield from _train_conflicts(train)
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
