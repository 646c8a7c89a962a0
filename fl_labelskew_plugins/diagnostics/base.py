"""What all diagnostics have in common: when they are called, what they know, where their numbers go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from fl_labelskew_registry import Batch, ClientView, mistake
from torch import Tensor

from fl_labelskew_plugins import plots, seeds
from fl_labelskew_plugins.engine.local import LocalTrainer
from fl_labelskew_plugins.tensors import Weights

Rounds = dict[int, list[float]]
"""Round, from 1, to all values of a number in it, such as those of the clients."""
Curves = dict[str, dict[str, Rounds]]
"""What an axis measures, to the label of a line, to its values."""


@dataclass(frozen=True)
class Scene:
    """The run that is looked at.

    Args:
        title: method and data set, for the pictures.
        trainer: the local trainer, whose network is scratch between two turns.
        counts: ``(K, C)`` int64 training samples of each client.
        class_names: ``C`` names.
        rounds: ``T``.
    """

    title: str
    trainer: LocalTrainer
    counts: Tensor
    class_names: Sequence[str]
    rounds: int

    def held(self, client: int) -> list[int]:
        """Classes that this client has training samples of."""
        return [c for c, n in enumerate(self.counts[client].tolist()) if n]


class Diagnostic:
    """One diagnostic of a run. It is called in the rounds that ``diagnostics_every`` names, and changes nothing.

    In such a round: :meth:`before` and :meth:`step` in each client's training, :meth:`uploaded` once its upload is
    there, :meth:`aggregated` at the end. ``lines`` gathers the round's numbers, a mapping of plain values each; the
    round is filled in.

    Args:
        name: its registered name.
        scene: the run.
        folder: where its files go.
    """

    num_features: ClassVar[int | None] = None
    """``d`` that the network must have."""
    log: ClassVar[bool] = False
    """Whether the curves have a logarithmic axis."""

    def __init__(self, name: str, scene: Scene, folder: Path) -> None:
        self.name, self.scene = name, scene
        self.numbers, self.tensors = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
        self.picture = folder / f"{name}.png"
        self.lines: list[dict[str, Any]] = []
        self.check()

    def check(self) -> None:
        """Raise LabelSkewError where the run has not what this diagnostic needs."""
        d, wanted = self.scene.trainer.federation.num_features, self.num_features
        if wanted is not None and d != wanted:
            needs = f"{self.name} needs a network of {wanted} features, this one has {d}"
            networks = f"{{model: lenet, features: {wanted}}} or {{model: mlp, hidden: [128, {wanted}]}}"
            raise mistake("tracking_args.diagnostics", needs, f"model_args: {networks}")

    def before(self, view: ClientView) -> None:
        """A client has the round's start weights, and nothing is trained yet."""

    def step(self, batch: Batch, view: ClientView) -> None:
        """A batch's gradients are there; the weights are not changed yet."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """A client's upload is there; ``start`` is what it began with."""

    def aggregated(self, round: int, weights: Weights) -> None:
        """The round's global model is there."""

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        """Curves over the rounds, of a run's lines; none for a diagnostic without curves."""
        return {}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """Draw the curves: mean and standard deviation over the clients of a round."""
        curves = self.curves(lines)
        settings = {title: {"": labels} for title, labels in curves.items()}
        one_colour_each = {label: self.name for labels in curves.values() for label in labels}
        plots.charts(settings, self.picture, methods=one_colour_each, log=self.log, over="clients")


class TrainingMeans(Diagnostic):
    """Means over the batches of a client's local training, as far as it is uploaded; a line for each client.

    ``panels`` are what the charts measure, each with its lines: the name of a number, and its label.
    """

    panels: ClassVar[Mapping[str, Mapping[str, str]]]

    def __init__(self, name: str, scene: Scene, folder: Path) -> None:
        super().__init__(name, scene, folder)
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        """Scalars of a batch, by name; one that does not exist for this client is left out."""
        raise NotImplementedError

    def before(self, view: ClientView) -> None:
        """Begin anew."""
        self._sums.clear()

    def step(self, batch: Batch, view: ClientView) -> None:
        """Add a batch."""
        for name, value in self.measure(batch, view).items():
            total, number = self._sums.get(name, (torch.zeros_like(value), 0))
            self._sums[name] = total + value, number + 1

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """The client's line; null for what does not exist for it."""
        names = [name for labels in self.panels.values() for name in labels]
        means = {name: float(total) / number for name, (total, number) in self._sums.items()}
        self.lines.append({"client": client, **{name: means.get(name) for name in names}})
        self._sums.clear()

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        """Every number of every panel."""
        return {
            title: {label: by_round(lines, name) for name, label in labels.items()}
            for title, labels in cls.panels.items()
        }


def by_round(lines: Sequence[dict[str, Any]], name: str) -> Rounds:
    """All clients' values of a number in each round; a round without any is left out."""
    rounds: Rounds = {}
    for line in lines:
        if line.get(name) is not None:
            rounds.setdefault(line["round"] + 1, []).append(line[name])
    return rounds


def calibrated(view: ClientView, logits: Tensor, scene: Scene) -> Tensor:
    """Probabilities ``(B, C)`` float64 as the method's cross-entropy sees them; takes no draw from its generator."""
    state = view.generator.get_state()
    try:
        with torch.no_grad():
            return scene.trainer.method.calibrate(logits.detach(), view).double().softmax(dim=1)
    finally:
        view.generator.set_state(state)


def test_features(trainer: LocalTrainer, weights: Weights, index: Tensor) -> Tensor:
    """Features ``(n, d)`` float32, on the CPU, of test samples under given weights."""
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
    """Indices of at most ``most`` test samples, drawn from the recipe's seed: the same in every round and process."""
    rng = seeds.numpy_generator(trainer.federation.seed, "diagnostics")
    order = rng.permutation(len(trainer.test.y))[:most]
    return torch.from_numpy(order).to(trainer.device)
