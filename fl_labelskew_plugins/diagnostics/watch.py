"""The diagnostics of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fl_labelskew_registry import Batch, ClientView

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Diagnostic, RunInfo
from fl_labelskew_plugins.diagnostics.points import TSNE, Features2D, FeatureSphere
from fl_labelskew_plugins.diagnostics.training import DeviationBound, IntraLoss, ObservedProbability, ProxyGradients
from fl_labelskew_plugins.diagnostics.uploads import ClassAccuracy, ClientDrift, EigenvalueVariance, LabelHeatmap
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.machine.files import open_regular, read_lines
from fl_labelskew_plugins.recipe.sections import IN_TRAINING, DiagnosticName
from fl_labelskew_plugins.tensors import Weights

KINDS: dict[DiagnosticName, type[Diagnostic]] = {
    "class_accuracy": ClassAccuracy,
    "client_drift": ClientDrift,
    "deviation_bound": DeviationBound,
    "eigenvalue_variance": EigenvalueVariance,
    "feature_sphere": FeatureSphere,
    "features_2d": Features2D,
    "intra_loss": IntraLoss,
    "label_heatmap": LabelHeatmap,
    "observed_probability": ObservedProbability,
    "proxy_gradients": ProxyGradients,
    "tsne": TSNE,
}


class Watch:
    """Call a run's diagnostics and write their results; raises LabelSkewError for an unsuitable run."""

    def __init__(self, names: list[DiagnosticName], every: int, run: RunInfo, folder: Path) -> None:
        self.every, self.run, self.folder = every, run, folder
        self.all: dict[DiagnosticName, Diagnostic] = {
            name: KINDS[name](name, run, folder) for name in dict.fromkeys(names)
        }
        self._in_training = [self.all[name] for name in self.all if name in IN_TRAINING]

    def is_due(self, round: int) -> bool:
        """Whether this round has diagnostics."""
        return round % self.every == 0 or round == self.run.trainer.federation.rounds - 1

    def uploads(
        self, round: int, start: Weights, uploads: Iterator[tuple[int, LocalResult]]
    ) -> Iterator[tuple[int, LocalResult]]:
        """Yield the round's uploads after the diagnostics."""
        diagnostics = self.all.values() if self.is_due(round) else ()
        for client, result in uploads:
            for diagnostic in diagnostics:
                diagnostic.uploaded(round, client, start, result.upload)
            yield client, result
            del result

    def observer(self, round: int) -> Watch | None:
        """Observer of this round's local training, if any."""
        return self if self._in_training and self.is_due(round) else None

    def before(self, view: ClientView) -> None:
        for diagnostic in self._in_training:
            diagnostic.before(view)

    def step(self, batch: Batch, view: ClientView) -> None:
        for diagnostic in self._in_training:
            diagnostic.step(batch, view)

    def aggregated(self, round: int, weights: Weights) -> None:
        if self.is_due(round):
            for diagnostic in self.all.values():
                diagnostic.aggregated(round, weights)

    def write(self, round: int) -> None:
        """Append a complete round's lines to the files."""
        for diagnostic in self.all.values():
            if diagnostic.lines:
                self.folder.mkdir(exist_ok=True)
                text = "".join(json.dumps({"round": round, **line}) + "\n" for line in diagnostic.lines)
                with open(diagnostic.numbers, "a", encoding="utf-8", opener=open_regular) as stream:
                    stream.write(text)
                diagnostic.lines.clear()

    def draw(self) -> None:
        for diagnostic in self.all.values():
            lines = read_lines(diagnostic.numbers)
            if lines or diagnostic.tensors.exists():
                plots.of_run(diagnostic.picture, partial(diagnostic.draw, lines))
