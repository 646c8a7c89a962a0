"""The sections of a recipe and their keys: a FedML configuration with the host's own names, plus two of ours.

Every section is a frozen pydantic model. The sections that choose a plugin (``data_args``, ``partition_args``,
``model_args``, ``train_args``, ``method_args``) hold here only the keys that are common to all plugins of the kind; the
rest belongs to the plugin's own ``Params``. What is the host's own is in :mod:`~fl_labelskew_plugins.recipe.security`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from fl_labelskew_registry import catalog
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fl_labelskew_plugins.params import IS_PATH, LARGEST, Params, absolute
from fl_labelskew_plugins.recipe.diagnostics import Name
from fl_labelskew_plugins.recipe.mistakes import show

Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
AboveZero = Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]
Statistics = Literal["imagenet", "data"]
Level = Literal["silo", "claim"]
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


class ClientSpecificArgs(Params):
    """What differs from silo to silo, under the host's own key."""

    data_silo_config: Annotated[list[str], IS_PATH] = Field(
        [],
        description="cross_silo: a YAML file for each silo, by rank, whose data_args replace the recipe's; the silo"
        " then trains on all of its own data",
    )


class Budget(Params):
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
    budget: Budget | None = Field(
        None,
        description="such as {epsilon: 8, delta: 1e-5}: a silo for which another answer would be more stops"
        " answering; null: no end, the ledger counts all the same",
    )
    level: Level = Field("silo", description="silo: of all that it sends; claim: of one sample, as the paper has it")
    ledger: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: file of the silo's ledger; default: privacy.jsonl in the silo's folder"
    )

    @field_validator("budget", mode="before")
    @classmethod
    def _is_a_budget(cls, value: Any) -> Any:
        if value is None or isinstance(value, Budget):
            return value
        keys = [*Budget.model_fields]
        if (
            not isinstance(value, dict)
            or sorted(value) != sorted(keys)
            or not all(type(number) in (int, float) and number > 0 for number in value.values())
            or value["delta"] >= 1
        ):
            form = "{epsilon: a number above 0, delta: a number above 0 and below 1}"
            raise ValueError(f"{show(value)} is no budget; allowed: {form}, or null")
        return value

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
    "wandb_only_server": "is FedML's own; remove this key: only the server's process has trackers",
    "enable_tracking": "is a setting of FedML's platform; remove this key",
    "log_file_dir": "is a setting of FedML's platform; remove this key: results are in run_dir",
}
"""The host's keys of ``tracking_args``, and what to write instead."""
