"""Base of all diagnostics."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from fl_labelskew_registry import Batch, ClientView, mistake
from torch import Tensor

from fl_labelskew_plugins import plots, seeds
from fl_labelskew_plugins.engine.local import LocalTrainer
from fl_labelskew_plugins.tensors import Weights

RoundValues = dict[int, list[float]]  # round, from 1, to values, such as one per client
Curves = dict[str, dict[str, RoundValues]]  # axis label to line label to values


@dataclass(frozen=True)
class RunInfo:
    """The observed run; ``counts``: ``(K, C)`` int64 training samples. Turns may overwrite the trainer's network."""

    title: str
    trainer: LocalTrainer
    counts: Tensor
    class_names: Sequence[str]

    def held(self, client: int) -> list[int]:
        """Classes with training samples at this client."""
        return [c for c, n in enumerate(self.counts[client].tolist()) if n]


class Diagnostic:
    """One diagnostic, called every ``diagnostics_every`` rounds; must not change the run. ``lines``: of the round."""

    num_features: ClassVar[int | None] = None  # required of the network
    log: ClassVar[bool] = False  # of the value axis

    def __init__(self, name: str, run: RunInfo, folder: Path) -> None:
        self.name, self.run = name, run
        self.numbers, self.tensors = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
        self.picture = folder / f"{name}.png"
        self.lines: list[dict[str, Any]] = []
        self.check()

    def check(self) -> None:
        """Raise LabelSkewError for an unsuitable run."""
        d, wanted = self.run.trainer.federation.num_features, self.num_features
        if wanted is not None and d != wanted:
            needs = f"{self.name} needs a network of {wanted} features, this one has {d}"
            networks = f"{{model: lenet, features: {wanted}}} or {{model: mlp, hidden: [128, {wanted}]}}"
            raise mistake("tracking_args.diagnostics", needs, f"model_args: {networks}")

    def before(self, view: ClientView) -> None:
        """Called before a client's training."""

    def step(self, batch: Batch, view: ClientView) -> None:
        """Called with a batch's gradients, before the step."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """Called after a client's upload; ``start``: its start weights."""

    def aggregated(self, round: int, weights: Weights) -> None:
        """Called with the round's new global model."""

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        return {}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """Draw mean and standard deviation over a round's clients."""
        curves = self.curves(lines)
        settings = {title: {"": labels} for title, labels in curves.items()}
        one_colour_each = {label: self.name for labels in curves.values() for label in labels}
        plots.charts(settings, self.picture, methods=one_colour_each, log=self.log, over="clients")


def by_round(lines: Sequence[dict[str, Any]], name: str) -> RoundValues:
    """All values of a number."""
    rounds: RoundValues = {}
    for line in lines:
        if line.get(name) is not None:
            rounds.setdefault(line["round"] + 1, []).append(line[name])
    return rounds


def test_features(trainer: LocalTrainer, weights: Weights, index: Tensor) -> Tensor:
    """Features ``(n, d)`` float32 of test samples, on the CPU."""
    kept: list[Tensor] = []
    handle = trainer.model.classifier.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda module, inputs: kept.append(inputs[0].float().cpu())
    )
    try:
        trainer.predict(index, weights)
    finally:
        handle.remove()
    return torch.cat(kept)


def some_test_samples(trainer: LocalTrainer, most: int) -> Tensor:
    """Indices of at most ``most`` test samples."""
    rng = seeds.numpy_generator(trainer.federation.seed, "diagnostics")
    order = rng.permutation(len(trainer.test.y))[:most]
    return torch.from_numpy(order).to(trainer.device)
