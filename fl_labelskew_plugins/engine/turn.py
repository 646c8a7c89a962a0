"""A client's turn in a round, with the only local training loop."""

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fl_labelskew_registry import Batch, ClientView, LocalWork, RunError, shareable
from torch import Tensor, nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.checked import backward, hook_name
from fl_labelskew_plugins.engine.aggregate import check_form, check_terms
from fl_labelskew_plugins.engine.isolation import WITHOUT_CLIENT
from fl_labelskew_plugins.engine.local import (
    LocalResult,
    LocalTrainer,
    TrainingObserver,
    closes,
    frozen,
    learning_rate,
    load,
    snapshot,
)
from fl_labelskew_plugins.engine.samples import Samples, Streamed
from fl_labelskew_plugins.engine.sgd import SGD
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, group, joined, rest

Draws = tuple[Tensor, Tensor, Tensor | None]
"""Generator states: the client's, torch's on the CPU, and torch's on the GPU in use."""


class Turn:
    """A client's part of a round, or of the opening exchange if ``times_selected`` is 0.

    ``samples`` replace the client's, for FedML's data poisoning; ``noise_seed`` replaces the trainer's; ``exact``:
    protected weights are float64: in float32, rounding of large weights could increase a clipped change.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        client: int,
        round: int = 0,
        *,
        shared: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Tensor] | None = None,
        times_selected: int = 0,
        samples: Samples | None = None,
        noise_seed: int | None = None,
        exact: bool = False,
    ) -> None:
        self.trainer, self.model, self.method = trainer, trainer.model, trainer.method
        self.shared, self.state, self.exact = shared or {}, state or {}, exact
        self.samples = trainer.train if samples is None else samples
        self.index = trainer.indices[client] if samples is None else torch.arange(len(samples.y), device=trainer.device)
        federation = trainer.federation
        # not the noise of round 0: the same noise in two answers would cancel in their difference
        purpose = "noise" if times_selected else "opening noise"
        self.noise_seed = secret = trainer.noise_seed if noise_seed is None else noise_seed
        spare_networks = trainer.spare_networks()
        self.view = ClientView(
            id=client,
            round=round,
            counts=torch.bincount(self.samples.y[self.index], minlength=federation.num_classes),
            # clones: clients may modify them
            shared={name: value.clone() for name, value in rest(self.shared, OPTIMIZER).items()},
            state=rest(self.state, OPTIMIZER),
            generator=seeds.torch_generator(federation.seed, "method", round, client),
            noise=seeds.noise_generator(secret, purpose, round, client),
            times_selected=times_selected,
            federation=federation,
            model=self.model,
            frozen=lambda state: frozen(next(spare_networks), state),  # without self, which it would keep alive
            fresh=trainer.fresh,
            features=partial(_features, trainer, self.samples, self.index),
            sends=trainer.sends,
        )

    def fit(
        self, weights: Weights, *, personalised: bool = False, observer: TrainingObserver | None = None
    ) -> LocalResult:
        """Train locally from ``weights``; ``personalised``: also test on the client's own test split.

        Raise RunError if memory is exhausted, or if a loss term is not finite although all weights are.
        """
        trainer, method, view = self.trainer, self.method, self.view
        method_hooks, optimizer_hooks = trainer.hook_checks
        with self.isolated():
            with self.seeded(), self.explained_memory_errors():
                view.stage = method.stages(trainer.settings.epochs)[0].name  # for optimisers that ask for the gradient
                method_hooks.check(*WITHOUT_CLIENT)
                optimizer_hooks.check(*WITHOUT_CLIENT)
                work = self.work(weights)
                load(self.model, weights)
                method.before_round(view)
                method_hooks.check("before_round")
                self._check_network(self.model.state_dict(), weights, "before_round")
                trainer.optimizer.before_round(work)  # may request the method's gradient, so the method comes first
                optimizer_hooks.check("before_round")
                if observer is not None:
                    observer.before(view)
                upload, sent, terms = self._train(work, weights, observer)
                check_terms(terms, upload, method, where=f"round {view.round + 1}: {trainer.name(view.id)}")
                added = method.contribute(view) if view.sends else {}
                method_hooks.check("contribute")
                contributions = {k: v.detach() for k, v in {**added, **sent}.items()}
                method.after_round(view)
                method_hooks.check("after_round")
            if view.times_selected == 1 and (model := method.personalised(view.state)) is not None:
                what = f"{hook_name(method, 'personalised')} returned a state dict"
                use = "return all tensors of client.model.state_dict(), or None for no model"
                check_form(model, weights, what, use)
            self._protect(upload, weights)
            state = view.state | joined(**{OPTIMIZER: work.client.state})
            result = LocalResult(upload, contributions, state, terms, noise_seed=self.noise_seed)
            test = trainer.test_indices[view.id]
            if personalised and len(test):
                logits, labels = trainer.predict(test, view=view)
                method_hooks.check("private_logits")
                result.personalised = (int((logits.argmax(1) == labels).sum()), len(labels))
            return result

    def unchanged(self, weights: Weights) -> LocalResult:
        """The result without training: the weights, protected by the method."""
        upload = dict(weights)
        self._protect(upload, weights)
        return LocalResult(upload, {}, dict(self.state), {}, noise_seed=self.noise_seed)

    def closing(self, weights: Weights) -> LocalResult:
        """The client's part of the closing exchange."""
        with self.isolated(), self.seeded():
            load(self.model, weights)
            added = self.method.contribute(self.view) if self.view.sends else {}
            self.trainer.hook_checks[0].check("contribute")
        return LocalResult(dict(weights), dict(added), dict(self.state), {}, noise_seed=self.noise_seed)

    def opening(self) -> Mapping[str, Tensor]:
        """The client's tensors before round 0."""
        weights = snapshot(self.model)  # restored below: the next client's opening loads no weights
        try:
            with self.isolated(), self.seeded():
                tensors = self.method.opening(self.view)
                self.trainer.hook_checks[0].check("opening")
                return tensors
        finally:
            load(self.model, weights)

    @contextlib.contextmanager
    def isolated(self) -> Iterator[None]:
        """Undo the hooks' changes to the network on exit."""
        baseline = self.trainer.baseline
        try:
            yield
        finally:
            baseline.restore()

    def work(self, weights: Weights) -> LocalWork:
        """The turn as the optimiser sees it."""
        trainer, view = self.trainer, self.view
        settings, federation = trainer.settings, trainer.federation
        client = replace(
            view,
            shared=group(self.shared, OPTIMIZER),
            state=group(self.state, OPTIMIZER),
            scratch={},
            generator=seeds.torch_generator(federation.seed, "optimizer", view.round, view.id),
        )
        start = {name: weights[name] for name, p in self.model.named_parameters() if p.requires_grad}
        return LocalWork(
            client=client,
            start=start,
            learning_rate=learning_rate(settings, view.round),
            momentum=settings.momentum if settings.client_optimizer == "sgd" else 0.0,
            weight_decay=settings.weight_decay,
            loss=_no_batch,
            gradient=partial(self._gradient, list(start)),
        )

    def batches(self) -> tuple[Iterator[tuple[Tensor, Tensor]], int]:
        """The round's batches, inputs ``(B, ...)`` and labels ``(B,)``, and their number."""
        trainer, view = self.trainer, self.view
        epochs, per_epoch = self._epochs()
        total = trainer.settings.steps or per_epoch * trainer.settings.epochs
        indices = itertools.islice(itertools.chain.from_iterable(epochs), total)
        augment = seeds.torch_seed(trainer.federation.seed, "augment", view.round, view.id)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for index, inputs in self.samples.stream(indices, seed=augment):
                for call in trainer.before_batch:
                    call(True)
                yield trainer.formatted(inputs), self.samples.y[index]

        return batches(), total

    @contextlib.contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed torch's global generator for this turn (dropout); restore it afterwards."""
        device, view = self.trainer.device, self.view
        seed = seeds.torch_seed(self.trainer.federation.seed, "torch", view.round, view.id)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if device.type == "cuda":
                torch.manual_seed(seed)
            else:  # same values as torch.manual_seed, which also visits GPUs; that takes 1/7 of a small client's time
                torch.default_generator.manual_seed(seed)
            yield

    @contextlib.contextmanager
    def explained_memory_errors(self) -> Iterator[None]:
        """Turn out-of-memory errors into a RunError with advice."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, torch.cuda.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            trainer, view = self.trainer, self.view
            what = f"round {view.round + 1}: {trainer.name(view.id)}: out of memory ({trainer.device})"
            use = f"use a train_args.batch_size below {trainer.settings.batch_size}, or a smaller network"
            raise shareable(RunError(f"{what}; {use}")) from error

    def _check_network(self, state: Weights, weights: Weights, *hooks: str) -> None:
        """Raise HookError if the server cannot average the network."""
        use = (
            "keep names and shapes of client.model; keep a client-specific head in client.scratch and return its "
            "parameters from private_parameters"
        )
        check_form(state, weights, f"{hook_name(self.method, *hooks)} left a network", use)

    def _train(
        self, work: LocalWork, weights: Weights, observer: TrainingObserver | None
    ) -> tuple[Weights, dict[str, Tensor], dict[str, float]]:
        """The upload, the optimiser's tensors, and the mean of each loss term."""
        trainer, model, method, view = self.trainer, self.model, self.method, self.view
        settings = trainer.settings
        private = list(method.private_parameters(view))
        method_hooks, optimizer_hooks = trainer.hook_checks
        method_hooks.check("private_parameters")
        optimizer = _optimizer(trainer, work.learning_rate, private)
        stream, total = self.batches()
        sums: dict[str, Tensor] = {}
        upload: Weights | None = None
        sent: dict[str, Tensor] = {}
        step, planned = 0, 0.0
        per_epoch = total / settings.epochs
        model.train()
        for stage in method.stages(settings.epochs):
            view.stage = stage.name
            planned += stage.epochs
            stop = min(total, math.ceil(planned * per_epoch))
            while step < stop:
                inputs, labels = next(stream)
                drawn = self._generator_states()
                single = len(labels) == 1 and trainer.has_batch_norm
                if single:  # the variance of one sample is undefined: use the running statistics
                    _batch_norm_training(model, False)
                features, logits = trainer.forward(model, inputs)
                batch = Batch(inputs, features, logits, labels, last_epoch=step >= total - per_epoch)
                terms = method.loss(batch, view)
                optimizer.zero_grad()
                backward(_total(terms), method)
                if upload is None:  # steps after the upload are neither observed nor corrected
                    if observer is not None:
                        observer.step(batch, view)
                    work.loss = partial(self._loss_under, batch, drawn)
                    trainer.optimizer.correct(work)
                    work.steps += 1
                if settings.gradient_clip_norm is not None:
                    for parameters in (model.parameters(), private):  # separately: private ones are never uploaded
                        nn.utils.clip_grad_norm_(parameters, settings.gradient_clip_norm)
                optimizer.step()
                if single:
                    _batch_norm_training(model, True)
                for name, term in terms.items():
                    sums[name] = sums[name] + term.detach() if name in sums else term.detach()
                step += 1
            if stage.upload:
                optimizer.zero_grad()  # frees memory for the snapshot
                upload = snapshot(model)
                self._check_network(upload, weights, "private_parameters", "calibrate", "terms", "loss")
                sent = joined(**{OPTIMIZER: trainer.optimizer.finish(work, upload)})
        assert upload is not None  # the recipe's checks guarantee a stage that uploads
        method_hooks.check("calibrate", "terms", "loss")
        optimizer_hooks.check("correct", "finish")
        model.eval()
        return upload, sent, {name: float(value) / total for name, value in sums.items()}

    def _epochs(self) -> tuple[Iterator[Sequence[Tensor]], int]:
        """Endless epochs of batches of sample indices ``(B,)``, and the number of batches per epoch."""
        trainer, index = self.trainer, self.index
        size = trainer.settings.batch_size
        cuts = list(range(size, len(index), size))
        if trainer.has_batch_norm and cuts and len(index) - cuts[-1] == 1:
            cuts.pop()  # batch norm cannot train on one sample: add a last batch of one sample to the previous batch
        generator = seeds.torch_generator(trainer.federation.seed, "batches", self.view.round, self.view.id)
        orders = (torch.randperm(len(index), generator=generator).to(index.device) for _ in itertools.count())
        return (index[order].tensor_split(cuts) for order in orders), len(cuts) + 1

    @torch.no_grad()
    def _protect(self, upload: Weights, weights: Weights) -> None:
        """Protect the change. Integers get their old values: batch norm's counts would show a failed training."""
        if not self.method.protects():
            return
        update = {k: v - weights[k] for k, v in upload.items() if v.is_floating_point()}
        protected = self.method.protect(update, self.view)
        check_form(protected, update, f"{hook_name(self.method, 'protect')} returned an update")
        upload |= {name: value for name, value in weights.items() if not value.is_floating_point()}
        for key, value in protected.items():
            upload[key] = weights[key].double() + value.double() if self.exact else weights[key] + value
            if key.endswith("running_var"):  # noise could make a variance negative
                upload[key].clamp_(min=0)
        self.trainer.hook_checks[0].check("protect")

    def _generator_states(self) -> Draws:
        device = self.trainer.device
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return self.view.generator.get_state(), torch.get_rng_state(), cuda

    def _loss_under(self, batch: Batch, drawn: Draws, model: nn.Module) -> Tensor:
        """The method's loss of a batch on a copy of the network, with the same draws and modes."""
        (methods, cpu, cuda), view, device = drawn, self.view, self.trainer.device
        for module, other in zip(self.model.modules(), model.modules(), strict=True):
            other.training = module.training
        generator = torch.Generator(view.generator.device).set_state(methods)
        scratch = {name: _detached(value) for name, value in view.scratch.items()}
        view_copy = replace(view, model=model, generator=generator, scratch=scratch, state=dict(view.state))
        with torch.random.fork_rng([] if cuda is None else [device]):
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, device)
            features, logits = self.trainer.forward(model, batch.inputs)
            return _total(self.method.loss(replace(batch, features=features, logits=logits), view_copy))

    def _gradient(self, names: Sequence[str]) -> dict[str, Tensor]:
        """See ``LocalWork.gradient``; 0 for frozen parameters. A loss may need a whole batch (FedMR)."""
        model, decay = self.model, self.trainer.settings.weight_decay
        epochs, _ = self._epochs()
        was_training = model.training
        model.eval()
        model.zero_grad(set_to_none=True)
        for index, inputs in self.samples.stream(next(epochs)):
            empty = torch.empty(0)
            batch = Batch(self.trainer.formatted(inputs), empty, empty, self.samples.y[index])
            loss = self._loss_under(batch, self._generator_states(), model) * (len(batch.labels) / len(self.index))
            backward(loss, self.method)
        parameters = {name: p for name, p in model.named_parameters() if name in names}
        gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        if decay:
            trained = [name for name, p in parameters.items() if p.requires_grad]
            weights: list[Tensor] = [parameters[name].detach() for name in trained]
            torch._foreach_add_([gradients[name] for name in trained], weights, alpha=decay)
        model.zero_grad(set_to_none=True)
        model.train(was_training)
        return gradients


def fit(
    trainer: LocalTrainer,
    client: int,
    round: int,
    weights: Weights,
    *,
    personalised: bool = False,
    observer: TrainingObserver | None = None,
    trains: bool = True,
    **turn: Any,
) -> LocalResult:
    """A client's whole turn: :meth:`Turn.fit`, :meth:`Turn.closing`, or if not ``trains`` :meth:`Turn.unchanged`."""
    part = Turn(trainer, client, round, **turn)
    if trains and closes(trainer.method, trainer.federation, round):
        return part.closing(weights)
    return part.fit(weights, personalised=personalised, observer=observer) if trains else part.unchanged(weights)


def _optimizer(trainer: LocalTrainer, rate: float, more: Sequence[nn.Parameter]) -> SGD | torch.optim.Adam:
    settings = trainer.settings
    parameters = [p for p in trainer.model.parameters() if p.requires_grad] + list(more)
    if settings.client_optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=settings.weight_decay, fused=True)
    return SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay)


@torch.no_grad()
def _features(trainer: LocalTrainer, samples: Samples | Streamed, index: Tensor) -> tuple[Tensor, Tensor]:
    model, was_training = trainer.model, trainer.model.training
    model.eval()
    features = []
    for inputs in trainer.inputs(samples, index):
        with trainer.autocast():
            features.append(model.features(inputs).float())  # type: ignore[operator]
    model.train(was_training)
    return torch.cat(features), samples.y[index]


def _no_batch(model: nn.Module) -> Tensor:
    raise RuntimeError("LocalWork.loss is defined only during training, after the first batch")


def _total(terms: Mapping[str, Tensor]) -> Tensor:
    first, *others = terms.values()
    return sum(others, first)


def _detached(value: Any) -> Any:
    """Copy dictionaries and modules; a module's copy has separate buffers and modes, but the same parameters."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value, {id(p): p for p in value.parameters()})
    return {name: _detached(kept) for name, kept in value.items()} if isinstance(value, dict) else value


def _batch_norm_training(model: nn.Module, mode: bool) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(mode)
