"""Accuracy per class before and after aggregation, as in FedLC (figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Curves, Diagnostic, Rounds
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.tensors import Weights


def class_accuracy(logits: Tensor, labels: Tensor) -> list[float | None]:
    """Accuracy per class from logits ``(N, C)`` and labels ``(N,)``; None for a class without samples.

    >>> import torch
    >>> class_accuracy(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 1]))
    [1.0, 0.0, None]
    """
    matrix = metrics.confusion(logits.argmax(1), labels, logits.shape[1]).cpu()
    recall: list[float | None] = metrics.measures(matrix)["recall"]  # type: ignore[assignment]
    return recall


class ClassAccuracy(Diagnostic):
    """Per-class accuracy of each upload and of the global model on the global test set."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """Add a client's line, before aggregation."""
        self.lines.append({"client": client, "held": self.run.held(client), "recall": self._tested(upload)})

    def aggregated(self, round: int, weights: Weights) -> None:
        """Add the global model's line."""
        self.lines.append({"client": None, "recall": self._tested(weights)})

    def _tested(self, weights: Weights) -> list[float | None]:
        return class_accuracy(*self.run.trainer.predict(weights=weights))

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        """Mean over the classes of each kind, in %."""
        kinds: dict[str, Rounds] = {label: {} for label in KINDS}
        for label, rounds in kinds.items():
            for line in lines:
                if values := list(_percent(line, label).values()):
                    rounds.setdefault(line["round"] + 1, []).append(_mean(values))
        return {"accuracy in %": kinds}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """Draw the last round's classes as bars; before aggregation, means over the clients."""
        figure, axes = plots.figure(8, 5)
        last = [line for line in lines if line["round"] == lines[-1]["round"]]
        names = self.run.class_names
        for position, label in enumerate(KINDS):
            recalls = [_percent(line, label) for line in last]
            heights = [_mean([recall[c] for recall in recalls if c in recall]) for c in range(len(names))]
            axes.bar(np.arange(len(names)) + 0.27 * (position - 1), heights, width=0.27, label=label)
        title = f"{self.run.title}: round {lines[-1]['round'] + 1}, global test set"
        axes.set(xlabel="class", ylabel="accuracy in %", title=title, ylim=(0, plots.PERCENT[1]))
        if len(names) <= 20:
            axes.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 3 else 0, ha="right")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        plots.save(figure, self.picture)


KINDS = (
    *("before aggregation, classes the client holds", "before aggregation, classes it lacks"),
    "after aggregation",
)


def _percent(line: dict[str, Any], label: str) -> dict[int, float]:
    kinds = {c: KINDS[2 if line["client"] is None else c not in line["held"]] for c in range(len(line["recall"]))}
    return {c: 100 * value for c, value in enumerate(line["recall"]) if kinds[c] == label and value is not None}


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
