"""Pictures of a run, as PNG files. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import FULL, replacing
from fl_labelskew_plugins.machine.text import TERMS, clean


def heat_map(
    counts: np.ndarray[Any, np.dtype[np.int64]],
    class_names: Sequence[str],
    path: Path,
    *,
    title: str,
    clients: Sequence[str] | None = None,
) -> None:
    """Heat map of ``(K, C)`` samples, as PNG: classes down, clients across; a missing class stays white.

    Of more clients than a picture has dots across, it shows some, evenly spaced. ``clients``: their names; default:
    their numbers.
    """
    names = clients or [str(k) for k in range(len(counts))]
    picture, axes = figure(min(16, 2.6 + 0.5 * len(counts)), min(12, 1.6 + 0.38 * len(class_names)))
    every, ends = math.ceil(len(counts) / ACROSS), (-0.5, len(counts) - 0.5, len(class_names) - 0.5, -0.5)
    table = counts[::every].T
    image = axes.imshow(np.where(table == 0, np.nan, table), aspect="auto", cmap="viridis_r", vmin=0, extent=ends)
    axes.set(xlabel="client" if every == 1 else f"client, 1 of {every} shown", ylabel="class", title=title)
    if len(class_names) <= 40:
        axes.set_yticks(range(len(class_names)), class_names)
    if len(counts) <= 40:
        upright = max(map(len, names)) <= 3
        axes.set_xticks(range(len(counts)), names, rotation=0 if upright else 30, ha="center" if upright else "right")
    if counts.shape[0] <= 20 and counts.shape[1] <= 20:
        middle = counts.max() / 2
        for (client, label), value in np.ndenumerate(counts):
            if value:
                color = "white" if value > middle else "black"
                axes.text(client, label, int(value), ha="center", va="center", fontsize=7, color=color)
    picture.colorbar(image, label="training samples")
    save(picture, path)


def confusion(counts: Sequence[Sequence[int]], class_names: Sequence[str], path: Path, *, title: str) -> None:
    """Confusion matrix ``(C, C)`` as PNG: classes down, predictions across; coloured by the share of each class."""
    table, side = np.asarray(counts), len(class_names)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    picture, axes = figure(min(16, 3.2 + 0.5 * side), min(14, 2.2 + 0.42 * side))
    image = axes.imshow(np.where(table == 0, np.nan, 100 * shares), cmap="viridis_r", vmin=0, vmax=100)
    axes.set(xlabel="predicted", ylabel="class", title=title)
    if side <= 40:
        axes.set_yticks(range(side), class_names)
        axes.set_xticks(range(side), class_names, rotation=30, ha="right")
    if side <= 20:
        for (label, prediction), value in np.ndenumerate(table):
            if value:
                color = "white" if shares[label, prediction] > 0.5 else "black"
                axes.text(prediction, label, int(value), ha="center", va="center", fontsize=7, color=color)
    picture.colorbar(image, label="% of the class")
    save(picture, path)


def curves(
    lines: Sequence[dict[str, Any]], path: Path, *, title: str, own_models: str, tests: str = "global test set"
) -> None:
    """Accuracy and loss over the rounds, from a run's metrics.

    ``own_models``: those of the clients' own tests; ``tests``: what the global model was tested on.
    """
    picture, (left, right) = figure(11, 4, columns=2)
    for key, label in (
        ("accuracy", f"global model, {tests}"),
        ("client_accuracy_mean", "global model, mean of clients' own test splits"),
        ("client_accuracy_worst", "global model, worst of them"),
        ("personalised_accuracy", f"{own_models}, own test splits"),
    ):
        points = [(line["round"] + 1, 100 * line[key]) for line in lines if line.get(key) is not None]
        if points:
            left.plot(*zip(*points, strict=True), marker="." if len(points) < 40 else None, label=label)
    left.set(xlabel="round", ylabel="accuracy in %", title=title, ylim=PERCENT)
    if left.lines:
        left.legend(loc="lower right")
    tested = [line for line in lines if line.get("loss") is not None]
    if tested:
        right.plot([t["round"] + 1 for t in tested], [t["loss"] for t in tested], label="test cross-entropy")
    trained = [line for line in lines if "loss_terms" in line]
    for term in list(trained[-1]["loss_terms"])[:TERMS] if trained else ():
        values = [(line["round"] + 1, line["loss_terms"].get(term)) for line in trained]
        right.plot(*zip(*values, strict=True), linestyle="--", label=f"training: {term}")
    right.set(xlabel="round", ylabel="mean loss", title="loss")
    if right.lines:
        right.legend()
    for axes in (left, right):
        finish_rounds(axes, loc=None)
    save(picture, path)


def compare(settings: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], path: Path) -> None:
    """Global accuracy over the rounds: a line for the mean over seeds, a band from the lowest to the highest.

    Each setting has a chart; a label has the same colour and dash in all of them. ``settings``: setting to label to
    round to the accuracy of each seed.
    """
    labels = list(dict.fromkeys(label for groups in settings.values() for label in groups))
    columns = min(len(settings), CHARTS)
    rows = math.ceil(len(settings) / columns)
    picture, grid = figure(8 if columns == 1 else 6 * columns, 4.8 * rows, columns, nrows=rows, squeeze=False)
    lines: dict[str, Any] = {}
    for axes in grid.flat[len(settings) :]:
        axes.remove()
    for axes, (setting, groups) in zip(grid.flat, settings.items(), strict=False):
        for label, rounds in groups.items():
            number = labels.index(label)
            style = {"color": COLOURS[number % len(COLOURS)], "ls": STYLES[number // len(COLOURS) % len(STYLES)]}
            percent = {x: [100 * value for value in values] for x, values in rounds.items()}
            lines[label] = band(axes, percent, label, **style)
        axes.set(xlabel="round", ylabel="accuracy on the global test set in %")
        axes.set_title(setting if len(settings) > 1 else "")
        finish_rounds(axes, loc=None)
    if len(settings) == 1 and len(labels) <= len(COLOURS) and all(len(label) <= WIDEST for label in labels):
        picture.axes[0].legend(loc="lower right", fontsize=8)
    else:
        _legend_beside(picture, [lines[label] for label in labels], labels)
    save(picture, path)


def _legend_beside(picture: Any, lines: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend at the right of the charts, for which the picture grows, with as many columns as make it no higher."""
    labels = [textwrap.fill(label, WIDEST) for label in labels]
    columns = math.ceil(sum(label.count("\n") + 1 for label in labels) / HIGHEST)
    legend = picture.legend(lines, labels, loc="outside right upper", ncols=columns, fontsize=8, handlelength=3)
    _literal(picture)
    taken = legend.get_window_extent(picture.canvas.get_renderer())
    width, height = picture.get_size_inches()
    picture.set_size_inches(width + taken.width / picture.dpi, max(height, taken.height / picture.dpi + 0.2))


def band(axes: Any, rounds: Mapping[int, Sequence[float]], label: str, **style: Any) -> Any:
    """A line, which is returned, for the mean of each round's values, and a band from the lowest to the highest."""
    xs = sorted(rounds)
    few = "." if len(xs) < 40 else None
    (line,) = axes.plot(xs, [float(np.mean(rounds[x])) for x in xs], label=label, marker=few, **style)
    lows, highs = [min(rounds[x]) for x in xs], [max(rounds[x]) for x in xs]
    axes.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.15)
    return line


def finish_rounds(axes: Any, loc: str | None = "best") -> None:
    """Grid, whole rounds and a legend; None: no legend."""
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    low, high = axes.get_xlim()
    if high - low < 1:  # a single round
        axes.set_xticks([round((low + high) / 2)])
    if loc is not None:
        axes.legend(loc=loc, fontsize=8)


def colour(label: int, classes: int) -> Any:
    """A class's colour: one of ten that the colour-blind can tell apart, or of a scale where there are more classes."""
    import matplotlib

    return COLOURS[label] if classes <= len(COLOURS) else matplotlib.colormaps["viridis"](label / (classes - 1))


def scatter(
    axes: Any,
    points: np.ndarray[Any, np.dtype[np.float32]],
    labels: np.ndarray[Any, np.dtype[np.int64]],
    *,
    classes: int,
    solid: Sequence[int] | None = None,
) -> None:
    """Points ``(n, 2)`` or ``(n, 3)``, a colour and a mark for each class, whose number is its label in the legend.

    ``labels``: ``(n,)``; ``solid``: classes whose marks are small and filled, before large hollow ones; default: all.
    """
    for label in np.unique(labels).tolist():
        members, hue = points[labels == label], colour(label, classes)
        filled = solid is None or label in solid
        style = {"facecolors": [hue], "s": 10, "zorder": 3} if filled else {"facecolors": "none", "s": 34, "zorder": 2}
        mark = MARKS[label % len(MARKS)]
        axes.scatter(*members.T, marker=mark, edgecolors=[hue], linewidths=0.7, label=str(label), **style)


def arrow(axes: Any, x: float, y: float, face: Any) -> None:
    """An arrow from the origin, with a black edge."""
    axes.annotate(
        "", xy=(x, y), xytext=(0, 0), arrowprops={"facecolor": face, "edgecolor": "black", "width": 3, "headwidth": 9}
    )
    axes.update_datalim([(0, 0), (x, y)])  # an annotation alone does not count
    axes.autoscale_view()


def sphere(axes: Any) -> None:
    """The unit sphere as a grid, on axes in 3-D."""
    around, down = np.mgrid[0 : 2 * np.pi : 25j, 0 : np.pi : 13j]
    x, y, z = np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)
    axes.plot_wireframe(x, y, z, color="0.8", linewidth=0.4, zorder=0)
    ticks = {f"{axis}ticks": (-1, 0, 1) for axis in "xyz"}
    axes.set(**ticks, xlabel="feature 1", ylabel="feature 2", zlabel="feature 3")
    axes.grid(False)
    axes.computed_zorder = False  # the points' order is theirs to say
    axes.set_box_aspect((1, 1, 1), zoom=0.9)


COLOURS = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip
"""Petroff, "Accessible Color Sequences for Data Visualization", https://arxiv.org/abs/2107.02270, 10 colours."""
MARKS = "os^vDP*X<>"
STYLES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (6, 2, 1, 1, 1, 2)))
"""Of lines beyond ten: the colours again, with the next style."""
WIDEST, HIGHEST = 40, 28
"""Letters of a legend's line, and lines of its columns."""
ACROSS = 1500
"""Clients of a heat map."""
CHARTS = 2
"""Charts of a picture beside each other."""
PERCENT = (-2, 102)
"""Ends of an axis in per cent, so that the frame cuts neither a line at 0 nor one at 100."""


def figure(width: float, height: float, columns: int = 1, **more: Any) -> tuple[Any, Any]:
    """A figure and its axes, one or ``columns`` of them; inches."""
    # The object interface alone: pyplot would pick a screen and keep figures alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots(ncols=columns, **more)
    for chart in made.axes:
        chart.set_prop_cycle(color=COLOURS)
    return made, axes


@contextmanager
def forgiving(path: Path) -> Iterator[None]:
    """No run ends for a picture, whatever its labels and numbers are: one that cannot be drawn is a warning.

    Raises:
        OSError: the disk is full, as the run has to say.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        log.warn(f"{path} cannot be drawn: {clean(f'{type(error).__name__}: {error}')}")


def _literal(picture: Any) -> None:
    """Take what labels say as it stands, ``$`` and all; matplotlib reads formulas in them."""
    from matplotlib.text import Text

    powers_of_ten = {
        text
        for axes in picture.axes
        for axis in (axes.xaxis, axes.yaxis)
        if axis.get_scale() == "log"
        for text in axis.get_ticklabels(which="both")
    }
    for text in picture.findobj(Text):
        text.set_parse_math(text in powers_of_ten)


def save(picture: Any, path: Path) -> None:
    """Write a PNG file as a whole or not at all."""
    _literal(picture)
    with replacing(path) as part:
        picture.savefig(part, dpi=110, format="png")
