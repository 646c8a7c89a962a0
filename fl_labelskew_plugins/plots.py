"""Pictures of a run, as PNG files. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def heat_map(
    counts: np.ndarray[Any, np.dtype[np.int64]], class_names: Sequence[str], path: Path, *, title: str
) -> None:
    """Heat map of samples: classes down, clients across; a missing class stays white.

    Args:
        counts: ``(K, C)`` training samples.
        class_names: ``C`` names.
        path: where the PNG goes.
        title: above the picture.
    """
    figure, axes = _figure(min(16, 2.6 + 0.5 * len(counts)), min(12, 1.6 + 0.38 * len(class_names)))
    table = np.where(counts.T == 0, np.nan, counts.T)
    image = axes.imshow(table, aspect="auto", cmap="viridis_r", vmin=0)
    axes.set(xlabel="client", ylabel="class", title=title)
    if len(class_names) <= 40:
        axes.set_yticks(range(len(class_names)), class_names)
    if len(counts) <= 40:
        axes.set_xticks(range(len(counts)))
    if counts.shape[0] <= 20 and counts.shape[1] <= 20:
        middle = counts.max() / 2
        for (client, label), value in np.ndenumerate(counts):
            if value:
                color = "white" if value > middle else "black"
                axes.text(client, label, int(value), ha="center", va="center", fontsize=7, color=color)
    figure.colorbar(image, label="training samples")
    _save(figure, path)


def curves(lines: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Accuracy and loss over the rounds, from a run's metrics."""
    tests = [line for line in lines if "accuracy" in line]
    figure, (left, right) = _figure(11, 4, columns=2)
    for key, label in (
        ("accuracy", "global test set"),
        ("personalised_accuracy", "personalised, own test split"),
    ):
        points = [(line["round"] + 1, 100 * line[key]) for line in tests if line.get(key) is not None]
        if points:
            left.plot(*zip(*points, strict=True), marker="." if len(points) < 40 else None, label=label)
    left.set(xlabel="round", ylabel="accuracy in %", title=title, ylim=(0, 100))
    left.legend(loc="lower right")
    right.plot([t["round"] + 1 for t in tests], [t["loss"] for t in tests], label="test cross-entropy")
    for term in lines[-1]["loss_terms"] if lines else ():
        values = [(line["round"] + 1, line["loss_terms"].get(term)) for line in lines]
        right.plot(*zip(*values, strict=True), linestyle="--", label=f"training: {term}")
    right.set(xlabel="round", ylabel="mean loss", title="loss")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    _save(figure, path)


def compare(groups: Mapping[str, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Global accuracy over the rounds: a line for the mean over seeds, a band from the lowest to the highest.

    Args:
        groups: label to round to the accuracy of each seed.
        path: where the PNG goes.
    """
    figure, axes = _figure(8, 4.8)
    for label, rounds in groups.items():
        xs = sorted(rounds)
        values = [[100 * value for value in rounds[x]] for x in xs]
        (line,) = axes.plot(xs, [float(np.mean(v)) for v in values], label=label)
        axes.fill_between(xs, [min(v) for v in values], [max(v) for v in values], color=line.get_color(), alpha=0.15)
    axes.set(xlabel="round", ylabel="accuracy on the global test set in %")
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="lower right", fontsize=8)
    _save(figure, path)


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    # The object interface alone: pyplot would pick a screen and keep figures alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns)


def _save(figure: Any, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    figure.savefig(part, dpi=110, format="png")
    part.replace(path)
