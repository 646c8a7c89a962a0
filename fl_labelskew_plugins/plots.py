"""Plots of one or several runs. matplotlib is imported only for drawing."""

import math
import os
import statistics
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import FULL, replacing
from fl_labelskew_plugins.machine.text import TERMS, clean

Lines = Mapping[str, Mapping[int, Sequence[float]]]  # label to round to the value of each seed or client
PICTURES = "FL_LABELSKEW_PICTURES"  # environment variable; `no` disables a run's plots


def heat_map(
    counts: NDArray[np.int64], class_names: Sequence[str], path: Path, *, title: str, clients: Sequence[str] = ()
) -> None:
    """Write a heat map of sample counts ``(K, C)``: classes down, clients across."""
    picture, axes = figure(min(16, 2.6 + 0.5 * len(counts)), min(12, 1.6 + 0.38 * len(class_names)))
    image = heat(axes, counts)
    axes.set(ylabel="class", title=title)
    names = clients or [str(k) for k in range(len(counts))]
    _finish_table(axes, counts.T, counts.T / max(counts.max(), 1), class_names, names)
    picture.colorbar(image, label="training samples")
    save(picture, path)


def heat(axes: Any, counts: NDArray[np.int64], max_samples: int | None = None) -> Any:
    """Draw the image of :func:`heat_map`; ``max_samples``: samples of the darkest colour."""
    table = np.where(counts == 0, np.nan, counts).T
    axes.set_xlabel("client")
    return axes.imshow(table, aspect="auto", cmap="viridis_r", vmin=0, vmax=max_samples)


def confusion(counts: Sequence[Sequence[int]], class_names: Sequence[str], path: Path, *, title: str) -> None:
    """Write a confusion matrix ``(C, C)``, classes down and predictions across, coloured by share of the class."""
    table, side = np.asarray(counts), len(class_names)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    picture, axes = figure(min(16, 3.2 + 0.5 * side), min(14, 2.2 + 0.42 * side))
    image = axes.imshow(np.where(table == 0, np.nan, 100 * shares), cmap="viridis_r", vmin=0, vmax=100)
    axes.set(xlabel="predicted", ylabel="class", title=title)
    _finish_table(axes, table, shares, class_names, class_names)
    picture.colorbar(image, label="% of the class")
    save(picture, path)


def _finish_table(
    axes: Any, counts: NDArray[Any], shades: NDArray[Any], rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Name up to 40 rows and columns, and write the numbers of small tables; ``shades``: 0 (light) to 1."""
    if len(rows) <= 40:
        axes.set_yticks(range(len(rows)), rows)
    if len(columns) <= 40:
        upright = max(map(len, columns)) <= 3
        angle = {"rotation": 0, "ha": "center"} if upright else {"rotation": 30, "ha": "right"}
        axes.set_xticks(range(len(columns)), columns, **angle)
    for (y, x), value in np.ndenumerate(counts if max(counts.shape) <= 20 else np.zeros((0, 0))):
        if value:
            color = "white" if shades[y, x] > 0.5 else "black"
            axes.text(x, y, int(value), ha="center", va="center", fontsize=7, color=color)


def curves(
    lines: Sequence[dict[str, Any]], path: Path, *, title: str, client_models: str, tests: str = "global test set"
) -> None:
    """Plot a run's accuracy and loss; ``client_models``, ``tests``: names of the clients' models and the test set."""
    picture, (left, right) = figure(11, 4, columns=2)
    for key, label in (
        ("accuracy", f"global model, {tests}"),
        ("client_accuracy_mean", "global model, mean of clients' own test splits"),
        ("client_accuracy_worst", "global model, worst of them"),
        ("client_accuracy_pooled", "global model, clients' own test splits together"),
        ("personalised_accuracy", f"{client_models}, own test splits"),
    ):
        points = [(line["round"] + 1, 100 * line[key]) for line in lines if line.get(key) is not None]
        if points:
            left.plot(*zip(*points, strict=True), marker="." if len(points) < 40 else None, label=label)
    left.set(xlabel="round", ylabel="accuracy in %", title=title, ylim=PERCENT)
    if left.lines:
        left.legend()
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
        finish_rounds(axes)
    save(picture, path)


class LineStyle(NamedTuple):
    """Indices of :data:`COLOURS` and :data:`DASHES`."""

    colour: int
    dash: int

    @property
    def mark(self) -> str:
        """Mark of the points."""
        return MARKS[(self.colour + 3 * self.dash) % len(MARKS)]


def looks(methods: Mapping[str, str]) -> dict[str, LineStyle]:
    """Style of each label's line; ``methods``: label to its method or optimiser.

    A method's colour is the same in every plot, by :data:`PLACES` or a hash of its name. Labels with equal style get
    the next free dash, or colour if all have the same method.

    >>> looks({"fedavg": "fedavg", "fedrs": "fedrs", "fedrs, alpha=0.1": "fedrs"})["fedrs, alpha=0.1"]
    LineStyle(colour=1, dash=1)
    """
    hues, dashes = len(COLOURS), len(DASHES)
    firsts = {method: label for label, method in sorted(methods.items(), reverse=True)}
    taken: dict[str, LineStyle] = {}
    # methods in PLACES come first, each with one label, so that no other label takes their style
    for label in sorted(
        methods, key=lambda label: (methods[label] not in PLACES, firsts[methods[label]] != label, label)
    ):
        name = methods[label]
        place = PLACES.index(name) if name in PLACES else zlib.crc32(name.encode()) % hues
        steps = list(product(range(hues), range(dashes)))
        if len(firsts) == 1:
            steps.sort(key=lambda step: step[1])
        wanted = [LineStyle((place + hue) % hues, (place // hues + dash) % dashes) for hue, dash in steps]
        taken[label] = next((look for look in wanted if look not in taken.values()), wanted[0])
    return taken


def compare(
    settings: Mapping[str, Lines],
    path: Path,
    *,
    methods: Mapping[str, str] | None = None,
    width: float | None = None,
    tested: str = "",
) -> None:
    """Plot the accuracies (0 to 1) of each setting; ``tested``: name of the test samples."""
    percent: dict[str, dict[str, dict[int, list[float]]]] = {}
    for setting, groups in settings.items():
        percent[setting] = {}
        for label, rounds in groups.items():
            percent[setting][label] = {r: [100 * value for value in values] for r, values in rounds.items()}
    measure = f"accuracy in % ({tested})" if tested else "accuracy in %"
    charts({measure: percent}, path, methods=methods, width=width, limits=(0, 100))


def charts(
    measures: Mapping[str, Mapping[str, Lines]],
    path: Path,
    *,
    methods: Mapping[str, str] | None = None,
    width: float | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
    log: bool = False,
    over: str = "seeds",
) -> None:
    """Plot means over the rounds in bands of one sample standard deviation, one chart per measure and setting.

    ``measures``: axis label to setting to its lines; ``methods``: of labels, see :func:`looks`; ``limits``: of a band;
    ``log``: of the value axis; ``over``: name of the averaged items.
    """
    every = [groups for settings in measures.values() for groups in settings.values()]
    labels = list(dict.fromkeys(label for groups in every for label in groups))
    look = looks({label: (methods or {}).get(label, label) for label in labels})
    settings = list(dict.fromkeys(setting for settings in measures.values() for setting in settings))
    stacked = len(settings) == 1 and len(measures) > 1
    chart, height = (2.2, 0.45) if stacked else (1.5, 0.62)
    with panels(list(measures), settings, width, chart=chart, height=height) as grid:
        lines: dict[str, Any] = {}
        for (measure, setting), axes in grid.axes.items():
            for label, rounds in measures[measure].get(setting, {}).items():
                xs = sorted(rounds)
                means = [statistics.fmean(rounds[x]) for x in xs]
                stds = [statistics.stdev(rounds[x]) if len(rounds[x]) > 1 else 0.0 for x in xs]
                step = math.ceil(len(xs) / 8) or 1
                first = int(labels.index(label) / len(labels) * step)  # the marks of several lines alternate
                hue, dash = COLOURS[look[label].colour], DASHES[look[label].dash]
                style = {"color": hue, "linestyle": (0, dash) if dash else "-", "linewidth": grid.line}
                marks = {"marker": look[label].mark, "markersize": 3.2 * grid.line, "markevery": (first, step)}
                (lines[label],) = axes.plot(xs, means, **style, **marks)
                if any(stds):
                    ends = np.subtract(means, stds).clip(limits[0]), np.add(means, stds).clip(max=limits[1])
                    axes.fill_between(xs, *ends, color=hue, alpha=0.15, linewidth=0)
            if log:
                axes.set_yscale("log")
        for axes in grid.picture.axes:  # after drawing, since they share the range of rounds
            finish_rounds(axes)
        several = any(len(values) > 1 for groups in every for r in groups.values() for values in r.values())
        grid.picture.supxlabel("round" + f"; bands: ± standard deviation over {over}" * several, fontsize="medium")
        legend_above(grid.picture, [lines[label] for label in labels], labels)
        save(grid.picture, path, grid.dpi)


@dataclass(frozen=True)
class Panels:
    """Charts by row and column; ``line``: width in points; ``side``: width of a chart in inches."""

    picture: Any
    axes: Mapping[tuple[str, str], Any]
    line: float
    dpi: int
    side: float


@contextmanager
def panels(
    rows: Sequence[str],
    columns: Sequence[str],
    width: float | None,
    *,
    chart: float = 1.5,
    height: float = 0.62,
    share: bool = True,
    **more: Any,
) -> Iterator[Panels]:
    """A chart for each row and column; a row wraps if it does not fit the width. A single column is not labelled.

    ``width``: of a paper's column in inches; default: of a screen; ``chart``: minimum width of a chart in a paper;
    ``height``: relative to a chart's width; ``share``: whether charts share their axes.
    """
    import matplotlib

    letters, line, dpi = (SMALL, 1.0, 300) if width else ({"legend.fontsize": 8.0}, 1.5, 110)
    least = chart if width else 4.4 / 1.5 * chart
    several = len(columns) > 1
    across = len(columns if several else rows)
    width = width or max(8.0, min(across, 3) * least)
    deep = math.ceil(across / max(1, int(width / least + 1e-9)))
    wide = math.ceil(across / deep)  # balances the rows
    deep *= len(rows) if several else 1
    side = width / wide
    with matplotlib.rc_context(letters):
        picture, grid = figure(width, 0.3 + deep * (0.3 + height * side), wide, nrows=deep, squeeze=False, **more)
        letter = 72 / (0.6 * matplotlib.rcParams["font.size"])  # letters per inch
        free = list(grid.flat)
        axes: dict[tuple[str, str], Any] = {}
        for row in rows:
            for number, column in enumerate(columns):
                one = axes[row, column] = free.pop(0)
                if number % wide == 0:
                    one.set_ylabel(textwrap.fill(clean(row), int(height * side * letter)))
                if several and (row == rows[0] or wide < len(columns)):
                    one.set_title(textwrap.fill(clean(column), int(side * letter)), fontsize="medium")
            for _ in range(-len(columns) % wide if several else 0):
                free.pop(0).remove()
        for one in free:
            one.remove()
        if share:
            for (row, column), one in axes.items():
                if (row, column) != (rows[0], columns[0]):
                    one.sharex(axes[rows[0], columns[0]])
                if column != columns[0]:
                    one.sharey(axes[row, columns[0]])
        yield Panels(picture, axes, line, dpi, side)


def legend_above(picture: Any, lines: Sequence[Any], labels: Sequence[str], **more: Any) -> None:
    """Add a legend above the charts, and enlarge the figure for it."""
    width, height = picture.get_size_inches()
    labels = [textwrap.fill(clean(label), MAX_LETTERS) for label in labels]
    for rows in range(math.ceil(len(labels) / MAX_COLUMNS), len(labels) + 1):
        columns = math.ceil(len(labels) / rows)
        style = {"ncols": columns, "handlelength": 2.6, "columnspacing": 1.2, "frameon": False, **more}
        legend = picture.legend(lines, labels, loc="outside upper center", **style)
        _literal(picture)
        taken = legend.get_window_extent(picture.canvas.get_renderer())
        if taken.width / picture.dpi <= width or columns == 1:
            break
        legend.remove()
    picture.set_size_inches(width, height + taken.height / picture.dpi)


def finish_rounds(axes: Any) -> None:
    """Draw a grid, and label whole rounds."""
    axes.grid(alpha=0.3)
    low, high = axes.get_xlim()
    if high - low < 1:  # a single round
        axes.set_xticks([round((low + high) / 2)])
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)


def bare(axes: Any, label: str) -> None:
    """Remove the scales of points without absolute positions."""
    if axes.name == "3d":
        axes.set_axis_off()
        axes.set_box_aspect((1, 1, 1), zoom=1.5)
        axes.text2D(-0.05, 0.5, label, rotation=90, ha="center", va="center", transform=axes.transAxes)
    else:
        axes.set(xticks=[], yticks=[], xlabel="", ylabel=label)


def colour(label: int, classes: int) -> Any:
    """A class's colour: one of ten, or for more classes of a continuous scale."""
    import matplotlib

    return COLOURS[label] if classes <= len(COLOURS) else matplotlib.colormaps["viridis"](label / (classes - 1))


def scatter(
    axes: Any,
    points: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    classes: int,
    solid: Sequence[int] | None = None,
    scale: float = 1.0,
) -> None:
    """Plot points ``(n, 2)`` or ``(n, 3)``; ``solid``: classes with small filled marks, before large hollow ones."""
    for label in np.unique(labels).tolist():
        members, hue = points[labels == label], colour(label, classes)
        filled = solid is None or label in solid
        style = {"facecolors": [hue], "zorder": 3} if filled else {"facecolors": "none", "zorder": 2}
        style |= {"s": (10 if filled else 34) * scale**2, "linewidths": 0.7 * scale}
        mark = MARKS[label % len(MARKS)]
        axes.scatter(*members.T, marker=mark, edgecolors=[hue], label=str(label), **style)


def arrow(axes: Any, x: float, y: float, face: Any, scale: float = 1.0) -> None:
    """Draw an arrow from the origin with a black edge."""
    widths = {"width": 3 * scale, "headwidth": 9 * scale, "headlength": 12 * scale, "linewidth": scale}
    axes.annotate("", xy=(x, y), xytext=(0, 0), arrowprops={"facecolor": face, "edgecolor": "black", **widths})
    axes.update_datalim([(0, 0), (x, y)])  # annotations do not extend the data limits
    axes.autoscale_view()


def sphere(axes: Any) -> None:
    """Draw the unit sphere on 3-D axes."""
    around, down = np.mgrid[0 : 2 * np.pi : 25j, 0 : np.pi : 13j]
    x, y, z = np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)
    axes.plot_wireframe(x, y, z, color="0.8", linewidth=0.4, zorder=0)
    axes.computed_zorder = False  # keep the order of the points


COLOURS = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)  # fmt: skip
"""Petroff, "Accessible Color Sequences for Data Visualization", https://arxiv.org/abs/2107.02270, 10 colours."""
MARKS = "os^vDP*X<>"
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.6), (1, 1.6), (6, 1.6, 1, 1.6), (9, 2), (6, 1.6, 1, 1.6, 1, 1.6))
"""Strokes and gaps, in line widths; the first is solid."""
PLACES = (
    *("fedavg", "fedrs", "map", "FedProx", "fedlc", "fedshift", "fedmr", "fedphp", "SCAFFOLD", "moon"),
    *("fedrod", "fedaws", "fedproc", "FedOpt", "flda", "fd", "fedmmd", "reweighting", "FedNova", "FedDyn"),
    *("FedDC", "Mime", "fedntd", "fedlmd", "feddecorr", "fedvls", "fedetf", "fedgela"),
    *("feddisco", "FedSAM", "FedLESAM", "ccvr"),
)
"""Our methods and optimisers: the first ten have a colour each, the next ten the next dash; append new ones."""
SMALL = {
    **{"font.size": 8.0, "xtick.labelsize": 7.0, "ytick.labelsize": 7.0, "legend.fontsize": 7.0, "axes.titlepad": 3.0},
    **{"axes.linewidth": 0.6, "grid.linewidth": 0.5, "xtick.major.size": 2.0, "ytick.major.size": 2.0},
}
SUFFIXES = (".png", ".pdf", ".svg")
MAX_LETTERS, MAX_COLUMNS = 40, 6  # letters per line, and columns of a legend
PERCENT = (-2, 102)  # limits of an axis; the frame does not cut lines at 0 and 100


def figure(width: float, height: float, columns: int = 1, **more: Any) -> tuple[Any, Any]:
    """Create a figure in inches, and its axes."""
    # pyplot would choose a GUI backend and keep figures in memory
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots(ncols=columns, **more)
    for chart in picture.axes:
        chart.set_prop_cycle(color=COLOURS)
    return picture, axes


def of_run(path: Path, draw: Callable[[], None]) -> None:
    """Draw a run's plot, unless :data:`PICTURES` forbids it; an error is a warning, except for a full disk."""
    if os.environ.get(PICTURES) == "no":
        return
    try:
        draw()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        log.warn(f"{path} cannot be drawn: {clean(f'{type(error).__name__}: {error}')}")


def _literal(picture: Any) -> None:
    """Show ``$`` literally, except in powers of ten at a logarithmic axis."""
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


def save(picture: Any, path: Path, dpi: int = 110) -> None:
    """Write a file atomically: PDF or SVG by suffix, else PNG; the same plot gives an identical file."""
    import matplotlib

    form = suffix[1:] if (suffix := path.suffix.lower()) in SUFFIXES else "png"
    no_date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form)
    _literal(picture)
    # conferences reject fonts of Type 3 in a PDF
    as_text = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": form}
    with replacing(path) as part, matplotlib.rc_context(as_text):
        picture.savefig(part, dpi=dpi, format=form, metadata=no_date)
