"""What the diagnostics of several runs have recorded, in one picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np
from fl_labelskew_registry import LabelSkewError, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.mistakes import unknown
from fl_labelskew_plugins.recipe.sections import DiagnosticName
from fl_labelskew_plugins.studies import report

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from fl_labelskew_plugins.diagnostics.base import Rounds
    from fl_labelskew_plugins.diagnostics.points import Points
    from fl_labelskew_plugins.studies.finished import Run

HEATMAP = "label_heatmap"
"""The one that needs no recording: every run keeps its partition."""
STAGES = {"start": "client before training", "local": "client after training", "global": "global model"}
"""Of a round, and what a row of panels calls them."""
LABELLED = 20
"""Classes of a heat map that have room for their names."""
SOME = 4
"""Runs that an error names."""
Read = TypeVar("Read")


def check(name: str) -> None:
    """Raise LabelSkewError unless this is the name of a diagnostic."""
    if name not in get_args(DiagnosticName):
        raise LabelSkewError(f"--diagnostic: {unknown(name, get_args(DiagnosticName))}")


def plot(frame: DataFrame, name: str, path: Path, *, width: float | None = None) -> None:
    """Draw a diagnostic of a report's rows.

    Numbers over the rounds are curves, one for each row: the mean over a run's clients, then mean and standard
    deviation over the seeds. Points of features are panels, those of the first run of each row, and so are partitions,
    those of the first run of each setting.

    Args:
        frame: from :func:`.report.rows`.
        name: of the diagnostic.
        path: a .png, .pdf or .svg file.
        width: of a paper's column, in inches.

    Raises:
        LabelSkewError: a run has not recorded it.
    """
    from fl_labelskew_plugins.diagnostics.points import Points
    from fl_labelskew_plugins.diagnostics.watch import KINDS

    kind = KINDS[name]  # type: ignore[index]
    if name == HEATMAP:
        _partitions(frame, path, width)
    elif issubclass(kind, Points):
        _check_recorded(frame, name, ".safetensors")
        _points(frame, name, kind, path, width)
    else:
        _check_recorded(frame, name, ".jsonl")
        measures: dict[str, dict[str, dict[str, report.Curve]]] = {}
        for setting, label, runs in zip(frame["setting"], frame["label"], frame["runs"], strict=True):
            for run in runs:
                file = _file(run, f"diagnostics/{name}.jsonl")
                for title, means in _read(file, lambda file: _means(kind.curves(read_lines(file)))).items():
                    curve = measures.setdefault(title, {}).setdefault(setting, {}).setdefault(label, {})
                    for at, mean in means.items():
                        curve.setdefault(at, []).append(mean)
        measures = {title: settings for title, settings in measures.items() if any(map(len, _curves(settings)))}
        if not measures:
            raise mistake(f"--diagnostic {name}", "its files hold no numbers", "other runs")
        plots.charts(measures, path, methods=report.methods(frame), width=width, log=kind.log)


def _means(measures: Mapping[str, Rounds]) -> dict[str, dict[int, float]]:
    """Of each number the mean in each round; a diverged run's may be infinite."""
    for at, values in (item for rounds in measures.values() for item in rounds.items()):
        if not isinstance(at, int) or not all(isinstance(value, int | float) for value in values):
            raise ValueError("a round or a value is not a number")
    return {
        title: {at: statistics.fmean(map(float, values)) for at, values in rounds.items()}
        for title, rounds in measures.items()
    }


def _curves(settings: dict[str, dict[str, report.Curve]]) -> list[report.Curve]:
    return [curve for labels in settings.values() for curve in labels.values()]


def _file(run: Run, name: str) -> Path:
    return Path(run.name) / name


def _check_recorded(frame: DataFrame, name: str, suffix: str) -> None:
    """Raise LabelSkewError if a run lacks the diagnostic's file; names the runs that have it, and how to record it."""
    runs = [run for runs in frame["runs"] for run in runs]
    having = [run.name for run in runs if _file(run, f"diagnostics/{name}{suffix}").is_file()]
    lacking = [run.name for run in runs if run.name not in having]
    if lacking:
        others = f"recorded by {_some(having)}" if having else "no run has it"
        use = f"runs of a recipe with tracking_args.diagnostics: [{name}]"
        raise mistake(f"--diagnostic {name}", f"not recorded by {_some(lacking)}; {others}", use)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SOME} more" if len(names) > SOME else ""
    return ", ".join(map(clean, names[:SOME])) + more


def _read(file: Path, read: Callable[[Path], Read]) -> Read:
    """What is in a file.

    Raises:
        LabelSkewError: it cannot be read, or does not hold what a run writes.
    """
    from safetensors import SafetensorError

    try:
        return read(file)
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, SafetensorError
    ) as error:  # fmt: skip
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise LabelSkewError(f"{clean(file)}: cannot be read: {clean(reason)}") from None


def _partition(run: Run) -> NDArray[np.int64]:
    """Training samples ``(K, C)`` of a run's clients."""

    def read(file: Path) -> NDArray[np.int64]:
        counts = np.array(json.loads(file.read_text(encoding="utf-8"))["counts"], np.int64)
        if counts.ndim != 2 or not counts.size or (counts < 0).any():
            raise ValueError("counts is not a table of numbers of samples")
        return counts

    return _read(_file(run, "partition.json"), read)


def _class_names(run: Run, classes: int) -> list[str]:
    known = run.class_names if len(run.class_names) == classes else range(classes)
    return [clean(name, 40) for name in known]


def _stages(run: Run, name: str, kind: type[Points]) -> dict[str, tuple[Any, ...]]:
    """Of each stage of a run's last recorded round what :meth:`.Points.panel` draws."""
    from safetensors.torch import load_file

    counts = _partition(run)

    def read(file: Path) -> dict[str, tuple[Any, ...]]:
        kept = load_file(file)
        for stage in kind.stages:
            _check_points(kept[f"{stage}.points"], kept[f"{stage}.proxies"], kept["labels"], 3 if kind.three_d else 2)
        if kept["client"].numel() != 1 or kept["client"] < 0:
            raise ValueError("client is not a number of a client")
        held = np.flatnonzero(counts[int(kept["client"])]).tolist()
        of_client = {"start": held, "local": held}
        return {
            stage: (kept[f"{stage}.points"], kept[f"{stage}.proxies"], kept["labels"], of_client.get(stage))
            for stage in kind.stages
        }

    return _read(_file(run, f"diagnostics/{name}.safetensors"), read)


def _check_points(points: Tensor, proxies: Tensor, labels: Tensor, dimensions: int) -> None:
    """Raise ValueError unless they are points ``(n, dimensions)``, proxies ``(C, d)`` and ``n`` labels below C."""
    if points.shape != (len(points), dimensions) or proxies.ndim != 2 or labels.shape != (len(points),):
        raise ValueError("points, proxies or labels of another shape")
    if not len(labels) or labels.is_floating_point() or labels.min() < 0 or labels.max() >= len(proxies):
        raise ValueError(f"labels that are not classes from 0 to {len(proxies) - 1}")


def _points(frame: DataFrame, name: str, kind: type[Points], path: Path, width: float | None) -> None:
    frame = frame.drop_duplicates(["label", "setting"])
    several = frame["setting"].nunique() > 1
    columns = (frame["label"] + (", " + frame["setting"] if several else "")).tolist()
    runs = [runs[0] for runs in frame["runs"]]
    rows, space = {STAGES[stage]: stage for stage in kind.stages}, {"projection": "3d" if kind.three_d else None}
    legend: dict[int, tuple[Any, str]] = {}
    with plots.panels(list(rows), columns, width, height=0.9, share=False, subplot_kw=space) as made:
        scale = made.side / kind.width
        for column, run in zip(columns, runs, strict=True):
            stages = _stages(run, name, kind)
            for row, stage in rows.items():
                axes = made.axes[row, column]
                said = axes.get_ylabel()
                points, proxies, labels, held = stages[stage]
                kind.panel(axes, points, proxies, labels, held, scale)
                plots.bare(axes, said)
                names = _class_names(run, len(proxies))
                for handle, number in zip(*axes.get_legend_handles_labels(), strict=True):
                    legend[int(number)] = handle, names[int(number)]  # the last one is solid, as of the global model
        handles, texts = zip(*(legend[number] for number in sorted(legend)), strict=True)
        plots.legend_above(made.picture, handles, texts, handlelength=1.0, markerscale=1 / scale)
        plots.save(made.picture, path, made.dpi)


def _partitions(frame: DataFrame, path: Path, width: float | None) -> None:
    first = frame.drop_duplicates("setting")
    runs = {setting: runs[0] for setting, runs in zip(first["setting"], first["runs"], strict=True)}
    tables = {setting: _partition(run) for setting, run in runs.items()}
    most = max(int(table.max()) for table in tables.values())
    with plots.panels(["class"], list(tables), width, height=0.8, share=False) as made:
        for (_, setting), axes in made.axes.items():
            image = plots.heat(axes, tables[setting], most)
            classes = tables[setting].shape[1]
            if classes <= LABELLED:
                axes.set_yticks(range(classes), _class_names(runs[setting], classes))
        made.picture.colorbar(image, ax=list(made.axes.values()), label="training samples")
        plots.save(made.picture, path, made.dpi)
