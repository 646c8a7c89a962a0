"""Accuracy of each class before and after aggregation, as FedLC plots it (figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Diagnostic, Rounds
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.tensors import Weights


def class_accuracy(logits: Tensor, labels: Tensor) -> list[float | None]:
    """Share of each class's samples that are right; None for a class without a sample.

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)`` int64.

    >>> import torch
    >>> class_accuracy(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 1]))
    [1.0, 0.0, None]
    """
    matrix = metrics.confusion(logits.argmax(1), labels, logits.shape[1]).cpu()
    recall: list[float | None] = metrics.measures(matrix)["recall"]  # type: ignore[assignment]
    return recall


class ClassAccuracy(Diagnostic):
    """Each upload and the round's global model on the global test set."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """A client's line, before aggregation."""
        self.lines.append({"client": client, "held": self.scene.held(client), "recall": self._tested(upload)})

    def aggregated(self, round: int, weights: Weights) -> None:
        """The global model's line, after aggregation."""
        self.lines.append({"client": None, "recall": self._tested(weights)})

    def _tested(self, weights: Weights) -> list[float | None]:
        return class_accuracy(*self.scene.trainer.predict(weights=weights))

    @staticmethod
    def _over_rounds(lines: Sequence[dict[str, Any]]) -> dict[str, Rounds]:
        """Each kind's mean over the classes, of each model, in %."""
        kinds: dict[str, Rounds] = {label: {} for label in KINDS}
        for label, rounds in kinds.items():
            for line in lines:
                if values := list(_percent(line, label).values()):
                    rounds.setdefault(line["round"] + 1, []).append(_mean(values))
        return kinds

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> dict[str, Rounds]:
        """Mean over the classes of each kind."""
        return {f"accuracy in %, {label}": rounds for label, rounds in cls._over_rounds(lines).items()}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """The last round's classes, and their mean over the rounds."""
        figure, (left, right) = plots.figure(12, 5, columns=2)
        for label, rounds in self._over_rounds(lines).items():
            plots.band(right, rounds, label)
        right.set(xlabel="round", ylabel="accuracy in %, mean over the classes", ylim=plots.PERCENT)
        plots.finish_rounds(right, loc=None)
        last = [line for line in lines if line["round"] == lines[-1]["round"]]
        names = self.scene.class_names
        for position, label in enumerate(KINDS):
            recalls = [_percent(line, label) for line in last]
            heights = [_mean([recall[c] for recall in recalls if c in recall]) for c in range(len(names))]
            left.bar(np.arange(len(names)) + 0.27 * (position - 1), heights, width=0.27, label=label)
        left.set(
            xlabel="class", ylabel="accuracy in %", title=f"round {lines[-1]['round'] + 1}", ylim=(0, plots.PERCENT[1])
        )
        if len(names) <= 20:
            left.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 3 else 0, ha="right")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(f"{self.scene.title}: global test set, before (mean over the clients) and after aggregation")
        plots.save(figure, self.picture)


KINDS = (
    *("before aggregation, classes the client holds", "before aggregation, classes it lacks"),
    "after aggregation",
)


def _percent(line: dict[str, Any], label: str) -> dict[int, float]:
    """Class and accuracy in %, as far as a line has any of this kind."""
    kinds = {c: KINDS[2 if line["client"] is None else c not in line["held"]] for c in range(len(line["recall"]))}
    return {c: 100 * value for c, value in enumerate(line["recall"]) if kinds[c] == label and value is not None}


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
