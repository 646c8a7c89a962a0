"""The only local training loop: stages, epochs, batches, optimiser and schedule. Knows no host framework."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

import torch
from fl_labelskew_registry import Batch, ClientView, Federation, LocalWork, Method, Optimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.checked import backward
from fl_labelskew_plugins.engine.aggregate import check_terms
from fl_labelskew_plugins.engine.samples import Samples, Streamed
from fl_labelskew_plugins.optimizers.fedavg import FedAvg
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, evict, group, joined, rest

TEST_BATCH = {"cpu": 128, "cuda": 1024}
"""Samples of a batch where no gradient is needed: few enough that activations stay in a core's cache, or fill a GPU."""

Draws = tuple[Tensor, Tensor, Tensor | None]
"""States of generators: a client's, torch's of the CPU, and torch's of the GPU in use."""


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains; the fields are those of a recipe's ``train_args`` and ``device_args``."""

    epochs: int = 1
    batch_size: int = 64
    client_optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    lr_schedule: Literal["constant", "step", "cosine"] = "constant"
    lr_decay: float = 0.95
    lr_decay_every: int = 10
    gradient_clip_norm: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = True


def learning_rate(settings: LocalSettings, round: int, rounds: int) -> float:
    """Learning rate of a round: constant, times ``lr_decay`` every ``lr_decay_every`` rounds, or half a cosine."""
    if settings.lr_schedule == "step":
        return settings.learning_rate * settings.lr_decay ** (round // settings.lr_decay_every)
    if settings.lr_schedule == "cosine":
        return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * round / rounds))
    return settings.learning_rate


@dataclass
class LocalResult:
    """What a client's local training leaves behind.

    Args:
        upload: state dict for the server.
        contributions: tensors that ride with it.
        state: the client's private state from now on.
        loss_terms: mean of each term of the loss over the round's batches.
        personalised: right answers and samples of the client's own test split under its final weights, or None.
    """

    upload: Weights
    contributions: Mapping[str, Tensor]
    state: dict[str, Tensor]
    loss_terms: dict[str, float]
    personalised: tuple[int, int] | None = None


class Observer(Protocol):
    """Watches local training as far as it is uploaded; it changes nothing of it and draws from no generator."""

    def before(self, view: ClientView) -> None:
        """The client has its start weights, and nothing is trained yet."""

    def step(self, batch: Batch, view: ClientView) -> None:
        """A batch's gradients are there, not clipped; the weights are not changed yet."""


@dataclass
class LocalTrainer:
    """Trains any client of a federation in this process, one after the other.

    Args:
        model: the network in use, with ``features`` and ``classifier``; its weights are scratch.
        method: the label-skew method.
        settings: how clients train.
        federation: the run as a whole.
        train: training samples of every client in this process.
        indices: ``(N_k,)`` int64 sample indices of each client that trains here, by its number.
        test: the global test samples.
        test_indices: test samples of each such client's own split.
        replaced: samples that stand in for a client's own, such as what the host's data poisoning made of them.
        secret: seed of a silo's privacy noise, up to 128 bits that nobody else knows; None: the recipe's seed.
        observer: who watches training, if anybody.
        optimizer: how the federation optimises; its local part.
        fresh: state dict of another network, freshly initialised: the same one at each call and in each process.
    """

    model: nn.Module
    method: Method
    settings: LocalSettings
    federation: Federation
    train: Samples | Streamed
    indices: Mapping[int, Tensor]
    test: Samples | Streamed
    test_indices: Mapping[int, Tensor]
    replaced: dict[int, Samples] = field(default_factory=dict)
    secret: int | None = None
    observer: Observer | None = None
    optimizer: Optimizer = field(default_factory=FedAvg)
    fresh: Callable[[], Weights] | None = None
    _spares: list[nn.Module] = field(default_factory=list, repr=False)
    _in_use: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.settings.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self._has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())

    @property
    def device(self) -> torch.device:
        """Where this trainer computes."""
        return self.train.y.device

    @property
    def noise_seed(self) -> int:
        """Seed of all privacy noise; not the recipe's where that would let the server subtract the noise."""
        return self.federation.seed if self.secret is None else self.secret

    def data(self, client: int) -> tuple[Samples | Streamed, Tensor]:
        """The samples that this client trains on and their indices ``(N_k,)``."""
        if client in self.replaced:
            return self.replaced[client], torch.arange(len(self.replaced[client].y), device=self.device)
        return self.train, self.indices[client]

    def counts(self, client: int) -> Tensor:
        """Training samples of each class, ``(C,)`` int64 on the device."""
        samples, own = self.data(client)
        return torch.bincount(samples.y[own], minlength=self.federation.num_classes)

    def view(
        self,
        client: int,
        round: int = 0,
        shared: Mapping[str, Tensor] | None = None,
        state: dict[str, Tensor] | None = None,
        times_selected: int = 0,
    ) -> ClientView:
        """The client as the method sees it; ``times_selected`` is 0 in the opening exchange alone."""
        # the opening has a stream apart from round 0: noise that is used twice cancels out
        purpose = "noise" if times_selected else "opening noise"
        return ClientView(
            id=client,
            round=round,
            counts=self.counts(client),
            shared=shared or {},
            state=state or {},
            generator=seeds.torch_generator(self.federation.seed, "method", round, client),
            noise=seeds.noise_generator(self.noise_seed, purpose, round, client),
            times_selected=times_selected,
            federation=self.federation,
            model=self.model,
            frozen=self._frozen,
            fresh=self.fresh,
            features=lambda: self._features(client),
        )

    def fit(
        self,
        client: int,
        round: int,
        weights: Weights,
        *,
        shared: Mapping[str, Tensor],
        state: dict[str, Tensor],
        times_selected: int,
        personalised: bool = False,
    ) -> LocalResult:
        """One client's part of a round: local training from ``weights``, then what the server gets.

        Args:
            client: whose turn it is.
            round: number of the round.
            weights: the server's state dict; not changed.
            shared: the server's shared tensors.
            state: the client's private tensors.
            times_selected: how often the client was selected, this round included.
            personalised: also test the final weights on the client's own test split.

        Raises:
            RunError: a term of the loss is not finite, though the upload is.
        """
        view = self.view(client, round, rest(shared, OPTIMIZER), rest(state, OPTIMIZER), times_selected)
        view.stage = self.method.stages(self.settings.epochs)[0].name  # whose gradient an optimiser may ask for
        work = self.work(view, weights, group(shared, OPTIMIZER), group(state, OPTIMIZER))
        self._in_use = 0
        load(self.model, weights)
        with self.seeded(round, client):
            self.method.before_round(view)
            self.optimizer.before_round(work)  # may ask for the method's gradient, so the method goes first
            if self.observer is not None:
                self.observer.before(view)
            upload, terms = self._train(view, work)
            check_terms(terms, upload, self.method, where=f"round {round + 1}: client {client}")
            own = {k: v.detach() for k, v in self.optimizer.finish(work, upload).items()}
            contributions = {k: v.detach() for k, v in self.method.contribute(view).items()}
            self.method.after_round(view)
        upload = self._protect(upload, weights, view)
        state = view.state | joined(**{OPTIMIZER: work.client.state})
        result = LocalResult(upload, contributions | joined(**{OPTIMIZER: own}), state, terms)
        if personalised and len(self.test_indices[client]):
            logits, labels = self.predict(self.test_indices[client], view=view)
            result.personalised = (int((logits.argmax(1) == labels).sum()), len(labels))
        return result

    def work(
        self, view: ClientView, weights: Weights, shared: Mapping[str, Tensor], state: dict[str, Tensor]
    ) -> LocalWork:
        """The client's local training as the optimiser sees it, with what is the optimiser's own."""
        settings, client, round = self.settings, view.id, view.round
        generator = seeds.torch_generator(self.federation.seed, "optimizer", round, client)
        own = replace(view, shared=shared, state=state, scratch={}, generator=generator)
        return LocalWork(
            client=own,
            start={name: weights[name] for name, p in self.model.named_parameters() if p.requires_grad},
            learning_rate=learning_rate(settings, round, self.federation.rounds),
            momentum=settings.momentum if settings.client_optimizer == "sgd" else 0.0,
            dampening=settings.dampening,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            loss=_no_batch,
            gradient=partial(self._gradient, view),
        )

    @torch.inference_mode()
    def predict(
        self, index: Tensor | None = None, weights: Weights | None = None, *, view: ClientView | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits ``(N, C)`` and labels ``(N,)`` of test samples, all by default, under the current or given weights.

        With ``view``, those of that client's own model, whatever the method makes of it.
        """
        if weights is not None and self.indices:
            load(self.model, weights)
        elif weights is not None:
            lend(self.model, {name: self._formatted(value) for name, value in weights.items()})
        labels = self.test.y if index is None else self.test.y[index]
        self.model.eval()
        parts = []
        for _, inputs in self.test.stream(self._parts(self.test, index)):
            with self._autocast():
                x = self._formatted(inputs)
                parts.append((self.model(x) if view is None else self.method.private_logits(x, view)).float())
        if not self.indices:
            self.hand_back()
        return torch.cat(parts), labels

    def hand_back(self) -> Weights:
        """Take the model's weights out of it and return them; who trains no client needs them for tests alone."""
        weights = {name: value.detach() for name, value in self.model.state_dict().items()}
        lend(self.model, forms(weights))
        return weights

    def _train(self, view: ClientView, work: LocalWork) -> tuple[Weights, dict[str, float]]:
        settings, model, method = self.settings, self.model, self.method
        private = list(self.method.private_parameters(view))
        optimizer = self._optimizer(work.learning_rate, private)
        stream, total = self.batches(view)
        sums: dict[str, Tensor] = {}
        upload: Weights | None = None
        step, planned = 0, 0.0
        per_epoch = total // settings.epochs
        model.train()
        for stage in method.stages(settings.epochs):
            view.stage = stage.name
            planned += stage.epochs
            stop = min(total, math.ceil(planned * per_epoch))
            while step < stop:
                inputs, labels = next(stream)
                last_epoch = step >= total - per_epoch
                drawn = self._drawn(view)
                single = len(labels) == 1 and self._has_batch_norm
                if single:  # one sample has no variance: normalise it with the running statistics
                    _batch_norm_training(model, False)
                with self._autocast():
                    features = model.features(inputs)  # type: ignore[operator]
                    logits = model.classifier(features)  # type: ignore[operator]
                batch = Batch(inputs, features, logits.float(), labels, last_epoch)
                terms = method.loss(batch, view)
                optimizer.zero_grad(set_to_none=True)
                backward(_total(terms), method)
                if self.observer is not None and upload is None:
                    self.observer.step(batch, view)
                if upload is None:  # what a client trains on for itself is corrected by nobody
                    work.loss = partial(self._loss_under, batch, view, drawn)
                    self.optimizer.correct(work)
                    work.steps += 1
                if settings.gradient_clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip_norm)
                    nn.utils.clip_grad_norm_(private, settings.gradient_clip_norm)  # apart: the upload knows none
                optimizer.step()
                if single:
                    _batch_norm_training(model, True)
                for name, term in terms.items():
                    sums[name] = sums[name] + term.detach() if name in sums else term.detach()
                step += 1
            if stage.upload:
                optimizer.zero_grad(set_to_none=True)  # the gradients make room for it
                upload = snapshot(model)
        assert upload is not None  # the recipe's check has looked at the stages
        model.eval()
        return upload, {name: float(value) / total for name, value in sums.items()}

    def batches(self, view: ClientView) -> tuple[Iterator[tuple[Tensor, Tensor]], int]:
        """Inputs ``(B, ...)`` and labels ``(B,)`` of every batch of a client's round, all epochs, and their number."""
        samples, _ = self.data(view.id)
        epochs, per_epoch = self._epochs(view)
        indices = itertools.chain.from_iterable(itertools.islice(epochs, self.settings.epochs))
        augment = seeds.torch_seed(self.federation.seed, "augment", view.round, view.id)
        stream = samples.stream(indices, seed=augment)
        batches = ((self._formatted(inputs), samples.y[index]) for index, inputs in stream)
        return batches, per_epoch * self.settings.epochs

    def _epochs(self, view: ClientView) -> tuple[Iterator[Sequence[Tensor]], int]:
        """Sample indices ``(B,)`` of an epoch's batches, one epoch after the other, and how many batches it has."""
        _, own = self.data(view.id)
        size = self.settings.batch_size
        cuts = list(range(size, len(own), size))
        if self._has_batch_norm and cuts and len(own) - cuts[-1] == 1:
            cuts.pop()  # a last batch of one sample joins the one before it: batch norm cannot train on one
        generator = seeds.torch_generator(self.federation.seed, "batches", view.round, view.id)
        orders = (torch.randperm(len(own), generator=generator).to(own.device) for _ in itertools.count())
        return (own[order].tensor_split(cuts) for order in orders), len(cuts) + 1

    def _drawn(self, view: ClientView) -> Draws:
        """Where the generators stand that a step may draw from: the view's, and torch's own."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return view.generator.get_state(), torch.get_rng_state(), cuda

    def _loss_under(self, batch: Batch, view: ClientView, drawn: Draws, model: nn.Module) -> Tensor:
        """The method's loss of a batch in a copy of the network, with the draws and in the modes of the network's own.

        The client's view, the buffers of networks in its scratch and all generators stay as they are.
        """
        own, cpu, cuda = drawn
        for module, other in zip(self.model.modules(), model.modules(), strict=True):
            other.training = module.training
        generator = torch.Generator(view.generator.device).set_state(own)
        scratch = {name: _twin(kept) if isinstance(kept, nn.Module) else kept for name, kept in view.scratch.items()}
        apart = replace(view, model=model, generator=generator, scratch=scratch, state=dict(view.state))
        with torch.random.fork_rng([] if cuda is None else [self.device]):
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, self.device)
            with self._autocast():
                features = model.features(batch.inputs)  # type: ignore[operator]
                logits = model.classifier(features)  # type: ignore[operator]
            return _total(self.method.loss(replace(batch, features=features, logits=logits.float()), apart))

    def _gradient(self, view: ClientView) -> dict[str, Tensor]:
        """See ``LocalWork.gradient``; eval mode is without dropout and with batch norm's running values.

        A loss need not be additive over samples (FedMR's compares those of a batch), so the batches are those that
        training draws in its first epoch, without augmentation, whatever fits a device.
        """
        model, (samples, own) = self.model, self.data(view.id)
        epochs, _ = self._epochs(view)
        was_training = model.training
        model.eval()
        model.zero_grad(set_to_none=True)
        for index, inputs in samples.stream(next(epochs)):
            empty = torch.empty(0)
            batch = Batch(self._formatted(inputs), empty, empty, samples.y[index])
            loss = self._loss_under(batch, view, self._drawn(view), model) * (len(batch.labels) / len(own))
            backward(loss, self.method)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trained.items()}
        if self.settings.weight_decay:
            weights: list[Tensor] = [p.detach() for p in trained.values()]
            torch._foreach_add_(list(found.values()), weights, alpha=self.settings.weight_decay)
        model.zero_grad(set_to_none=True)
        model.train(was_training)
        return found

    def _optimizer(self, rate: float, more: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        settings = self.settings
        parameters = [p for p in self.model.parameters() if p.requires_grad] + list(more)
        if settings.client_optimizer == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=settings.weight_decay, fused=True)
        return torch.optim.SGD(
            parameters,
            lr=rate,
            momentum=settings.momentum,
            dampening=settings.dampening,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def _protect(self, upload: Weights, weights: Weights, view: ClientView) -> Weights:
        if not self.method.protects():
            return upload
        update = {k: v - weights[k] for k, v in upload.items() if v.is_floating_point()}
        with torch.no_grad():
            for key, value in self.method.protect(update, view).items():
                upload[key] = weights[key] + value
                if key.endswith("running_var"):  # noise must not leave a negative variance behind
                    upload[key].clamp_(min=0)
        return upload

    def _frozen(self, state: Mapping[str, Tensor]) -> nn.Module:
        if self._in_use == len(self._spares):
            self._spares.append(copy.deepcopy(self.model).requires_grad_(False))
        spare = self._spares[self._in_use].requires_grad_(False)
        self._in_use += 1
        load(spare, state)
        return spare.eval()

    @torch.no_grad()
    def _features(self, client: int) -> tuple[Tensor, Tensor]:
        was_training = self.model.training
        self.model.eval()
        samples, own = self.data(client)
        features = []
        for _, inputs in samples.stream(self._parts(samples, own)):
            with self._autocast():
                features.append(self.model.features(self._formatted(inputs)).float())  # type: ignore[operator]
        self.model.train(was_training)
        return torch.cat(features), samples.y[own]

    def _formatted(self, inputs: Tensor) -> Tensor:
        if self.settings.channels_last and inputs.dim() == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    @staticmethod
    def _parts(samples: Samples | Streamed, index: Tensor | None) -> Iterator[Tensor | slice]:
        size = TEST_BATCH.get(samples.y.device.type, 1024)
        if index is not None:
            yield from index.split(size)  # type: ignore[no-untyped-call]
            return
        for start in range(0, len(samples.y), size):
            yield slice(start, start + size)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def seeded(self, round: int, client: int) -> Iterator[None]:
        """Seed what draws from torch's global generator (dropout) for this client and round; restore it afterwards."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seeds.torch_seed(self.federation.seed, "torch", round, client))
            yield


def snapshot(model: nn.Module) -> Weights:
    """A copy of the model's state dict."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy a state dict into the model."""
    model.load_state_dict(dict(weights))
    for value in weights.values():
        evict(value)


def lend(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Let the model compute with these very tensors; it must not be trained."""
    model.load_state_dict(dict(weights), assign=True)


def forms(weights: Mapping[str, Tensor]) -> Weights:
    """Shapes and dtypes of a state dict, as tensors that take no memory."""
    return {name: value.to("meta") for name, value in weights.items()}


def mean_loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy of logits ``(N, C)``."""
    return float(cross_entropy(logits, labels))


def _no_batch(model: nn.Module) -> Tensor:
    raise RuntimeError("LocalWork.loss is that of a batch in training, and there is none yet")


def _total(terms: Mapping[str, Tensor]) -> Tensor:
    first, *rest = terms.values()
    for term in rest:
        first = first + term
    return first


def _twin(module: nn.Module) -> nn.Module:
    """A copy with buffers and modes of its own, of the same parameters."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters()})


def _batch_norm_training(model: nn.Module, mode: bool) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(mode)
