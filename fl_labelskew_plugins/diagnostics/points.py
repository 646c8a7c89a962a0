"""Features of test samples at three moments of a round, which three diagnostics draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Diagnostic, Scene, some_test_samples, test_features
from fl_labelskew_plugins.tensors import Weights

MOST = 1000
"""Test samples that are drawn."""


class Points(Diagnostic):
    """Features of test samples under the first client's weights and under the global ones, as in figure 4 of FedRS.

    ``stages`` of a round: ``start``, what its first client begins with; ``local``, that client's upload; ``global``,
    the aggregated model. Kept are ``<stage>.points``, ``<stage>.proxies``, ``labels`` and the number of the ``client``.
    """

    stages: ClassVar[Sequence[str]]
    width: ClassVar[float] = 4.6
    three_d: ClassVar[bool] = False

    def __init__(self, name: str, scene: Scene, folder: Path) -> None:
        super().__init__(name, scene, folder)
        self._index = some_test_samples(scene.trainer, MOST)
        self._kept: dict[str, Tensor] = {}

    def wanted(self, round: int) -> bool:
        """Whether this round's points are computed."""
        return True

    def place(self, features: Tensor) -> Tensor:
        """Features ``(n, d)`` to what is drawn, ``(n, 2)`` or ``(n, 3)``."""
        return features

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        """Numbers of a stage: points as :meth:`place` made them, proxies ``(C, d)``, labels ``(n,)``; none, no line."""
        return {}

    @staticmethod
    def panel(
        axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float = 1.0
    ) -> None:
        """Draw what :meth:`line` counts; ``held``: classes that the client has, None for the global model.

        ``scale``: of the marks.
        """
        raise NotImplementedError

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """The first client's model, before and after its training."""
        if not self._kept and self.wanted(round):
            self._kept["client"] = torch.tensor(client)
            self._add("start", start)
            self._add("local", upload)

    def aggregated(self, round: int, weights: Weights) -> None:
        """The global model; the round is complete."""
        if self._kept:
            self._add("global", weights)
            self.keep({**self._kept, "labels": self._labels()})
        self._kept = {}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """A panel for each stage."""
        if not self.tensors.exists():
            return
        kept = load_file(self.tensors)
        client, labels = int(kept["client"]), kept["labels"]
        name = self.scene.trainer.name(client)
        titles = {
            "start": f"{name}, before its training",
            "local": f"{name}, after its training",
            "global": "global model",
        }
        held = self.scene.held(client)
        projection = {"subplot_kw": {"projection": "3d"}} if self.three_d else {}
        figure, all_axes = plots.figure(self.width * len(self.stages), 5, columns=len(self.stages), **projection)
        for axes, stage in zip(all_axes, self.stages, strict=True):
            solid = None if stage == "global" else held
            self.panel(axes, kept[f"{stage}.points"], kept[f"{stage}.proxies"], labels, solid)
            axes.set_title(titles[stage])
        handles, names = all_axes[0].get_legend_handles_labels()
        names = [self.scene.class_names[int(name)] for name in names]
        if names:
            figure.legend(handles, names, loc="outside right center", title="class", markerscale=1.5)
        classes = ", ".join(self.scene.class_names[c] for c in held)
        figure.suptitle(f"{self.scene.title}: {len(labels)} test samples; {name} holds {classes}"[:160])
        plots.save(figure, self.picture)

    def _labels(self) -> Tensor:
        return self.scene.trainer.test.y[self._index].cpu()

    def _add(self, stage: str, weights: Weights) -> None:
        if stage in self.stages:
            points = self.place(test_features(self.scene.trainer, weights, self._index))
            proxies = weights["classifier.weight"].float().cpu()
            self._kept |= {f"{stage}.points": points, f"{stage}.proxies": proxies}
            if line := self.line(points, proxies, self._labels()):
                who = {} if stage == "global" else {"client": int(self._kept["client"])}
                self.lines.append({"stage": stage, **who, **line})
