"""The sections of a recipe and their keys: a FedML configuration with the host's own names, plus two of ours.

Every section is a frozen pydantic model. The sections that choose a plugin (``data_args``, ``partition_args``,
``model_args``, ``method_args``) hold here only the keys that are common to all plugins of the kind; the rest belongs
to the plugin's own ``Params``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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
