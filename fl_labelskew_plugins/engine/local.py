"""Parts of local training that all clients share."""

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch
from fl_labelskew_registry import Batch, ClientView, Federation, Method, Optimizer, mistake
from fl_labelskew_registry.contracts import SHARED_MODULES
from torch import Tensor, nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.isolation import Baseline, Unchanged
from fl_labelskew_plugins.engine.samples import Samples, Streamed
from fl_labelskew_plugins.ops import full
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.tensors import Weights, evict

TEST_BATCH = {"cpu": 128, "cuda": 1024}  # fits a CPU core's cache, or fills a GPU


@dataclass(frozen=True)
class LocalSettings:
    """Settings of local training, named as in ``train_args`` and ``device_args``."""

    epochs: int = 1
    batch_size: int = 64
    client_optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: Literal["constant", "step"] = "constant"
    lr_decay: float = 0.95
    lr_decay_every: int = 10
    gradient_clip_norm: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = True
    steps: int | None = None
    """Training steps of a client in a round, instead of ``epochs``."""


def learning_rate(settings: LocalSettings, round: int) -> float:
    """Learning rate of a round."""
    if settings.lr_schedule == "step":
        return settings.learning_rate * settings.lr_decay ** (round // settings.lr_decay_every)
    return settings.learning_rate


@dataclass
class LocalResult:
    """Result of a client's local training."""

    upload: Weights
    contributions: Mapping[str, Tensor]
    state: dict[str, Tensor]
    loss_terms: dict[str, float]  # means over the batches
    personalised: tuple[int, int] | None = None  # correct answers and samples of the client's own test split
    noise_seed: int | None = field(default=None, repr=False)  # never sent to the server


class TrainingObserver(Protocol):
    """Observer of local training up to the upload; must not change training or draw random numbers."""

    def before(self, view: ClientView) -> None:
        """Called with the start weights, before training."""

    def step(self, batch: Batch, view: ClientView) -> None:
        """Called with a batch's gradients, before clipping and the step."""


@dataclass(frozen=True)
class LocalTrainer:
    """State that all clients' training in this process shares."""

    model: nn.Module  # its weights are overwritten
    method: Method
    settings: LocalSettings
    federation: Federation
    train: Samples | Streamed
    indices: Mapping[int, Tensor]  # (N_k,) int64, training samples of each client in this process
    test: Samples | Streamed
    test_indices: Mapping[int, Tensor]  # the same for each client's own test split
    secret: int | None = None  # seed of a silo's privacy noise, up to 128 bits; None: the recipe's seed
    optimizer: Optimizer = field(default_factory=FedAvgOptimizer)
    fresh: Callable[[], Weights] | None = None  # of another initialisation of the network, equal in all processes
    names: Mapping[int, str] = field(default_factory=dict)  # display names of clients, if any
    sends: bool = True  # whether the method's contributions leave a client
    before_batch: list[Callable[[bool], None]] = field(default_factory=list)
    """Called before each batch, with True for training; an exception ends the round."""
    _spares: list[Baseline] = field(default_factory=list, init=False, repr=False)
    hook_checks: tuple[Unchanged, Unchanged] = field(init=False, repr=False)
    """Checks that hooks of the method and the optimiser change no attributes."""

    def __post_init__(self) -> None:
        if self.settings.channels_last:
            self.model.to(memory_format=torch.channels_last)
        object.__setattr__(self, "hook_checks", (Unchanged(self.method), Unchanged(self.optimizer)))

    @cached_property
    def baseline(self) -> Baseline:
        """The network before the first turn, in eval mode."""
        return Baseline(self.model.eval())

    @property
    def device(self) -> torch.device:
        """Device of the samples."""
        return self.train.y.device

    @cached_property
    def has_batch_norm(self) -> bool:
        """Whether the network has batch normalisation, which cannot train on one sample."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())

    @property
    def noise_seed(self) -> int:
        """Seed of privacy noise."""
        return self.federation.seed if self.secret is None else self.secret

    def counts(self, client: int) -> Tensor:
        """``(C,)`` int64 training samples per class of a client."""
        return torch.bincount(self.train.y[self.indices[client]], minlength=self.federation.num_classes)

    def name(self, client: int) -> str:
        """Display name, such as ``client north``, or ``client 3`` without a name."""
        return f"client {self.names.get(client, client)}"

    def spare_networks(self) -> Iterator[nn.Module]:
        """Copies of the network; valid until the next client requests copies."""
        for number in itertools.count():
            if number == len(self._spares):
                self._spares.append(copy.deepcopy(self.baseline))
            spare = self._spares[number]
            spare.restore()  # the copy, or the network before it was copied, may have changed
            yield spare.model

    def forward(self, model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``(B, d)`` and logits ``(B, C)`` of the network or of a copy, both float32."""
        with self.autocast():
            features = model.features(inputs)  # type: ignore[operator]
            logits = model.classifier(features)  # type: ignore[operator]
        return full(features), logits.float()

    @torch.inference_mode()
    def predict(
        self, index: Tensor | None = None, weights: Weights | None = None, *, view: ClientView | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits ``(N, C)`` and labels ``(N,)`` of test samples, by default all; ``view``: from this client's model."""
        if weights is not None and self.indices:
            load(self.model, weights)
        elif weights is not None:
            assign(self.model, {name: self.formatted(value) for name, value in weights.items()})
        labels = self.test.y if index is None else self.test.y[index]
        self.model.eval()
        parts = []
        for inputs in self.inputs(self.test, index):
            with self.autocast():
                parts.append((self.model(inputs) if view is None else self.method.private_logits(inputs, view)).float())
        if not self.indices:
            self.take_weights()
        return torch.cat(parts), labels

    def take_weights(self) -> Weights:
        """Take the weights out of the model and return them; a process without clients needs them only for tests."""
        weights = {name: value.detach() for name, value in self.model.state_dict().items()}
        assign(self.model, meta_tensors(weights))
        return weights

    def inputs(self, samples: Samples | Streamed, index: Tensor | None) -> Iterator[Tensor]:
        """Inputs ``(B, ...)`` of samples, by default all, in batches for use without gradients."""
        size = TEST_BATCH.get(self.device.type, 1024)
        parts: Iterable[Tensor | slice] = (slice(start, start + size) for start in range(0, len(samples.y), size))
        if index is not None:
            parts = index.split(size)  # type: ignore[no-untyped-call]
        for _, inputs in samples.stream(parts):
            for call in self.before_batch:
                call(False)
            yield self.formatted(inputs)

    def formatted(self, inputs: Tensor) -> Tensor:
        """Inputs in the network's memory format."""
        if self.settings.channels_last and inputs.dim() == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Context with the chosen precision."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()


def closes(method: Method, federation: Federation, round: int) -> bool:
    """Whether a round is the method's closing exchange."""
    return method.closing and round == federation.rounds - 1


def snapshot(model: nn.Module) -> Weights:
    """A copy of the model's state dict."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def with_shared(model: nn.Module, method: Method, federation: Federation, purpose: str) -> nn.Module:
    """Add the method's shared modules to the network; ``purpose`` names their random stream."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seeds.torch_seed(federation.seed, f"{purpose}, shared modules"))
        modules = method.shared_modules(federation)
    if modules and hasattr(model, SHARED_MODULES):
        taken = f"has an attribute {SHARED_MODULES}, which is reserved for the method's modules"
        raise mistake(type(model).__name__, taken, "another name for it")
    if modules:
        model.add_module(SHARED_MODULES, nn.ModuleDict(modules))
    return model


def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy a state dict into the model."""
    model.load_state_dict(dict(weights))
    for value in weights.values():
        evict(value)


def frozen(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with these weights, frozen and in eval mode."""
    load(model.requires_grad_(False), weights)
    return model.eval()


def assign(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Let the model, which must not be trained, use these tensors without a copy."""
    model.load_state_dict(dict(weights), assign=True)


def meta_tensors(weights: Mapping[str, Tensor]) -> Weights:
    """Shapes and dtypes of a state dict, as tensors without memory."""
    return {name: value.to("meta") for name, value in weights.items()}
