"""Draw recorded diagnostics of several runs in one picture."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fl_labelskew_registry import mistake
from numpy.typing import NDArray
from pandas import DataFrame

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.data.files import valid_file
from fl_labelskew_plugins.machine.files import read_lines, read_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.studies import report
from fl_labelskew_plugins.studies.finished import FinishedRun

if TYPE_CHECKING:
    from fl_labelskew_plugins.diagnostics.points import Points

HEATMAP = "label_heatmap"  # from the partition, which every run saves
MAX_NAMES = 20
VALID_FILE = ("file of a run", "the folder as the run has written it")


def plot(frame: DataFrame, name: str, path: Path, *, width: float | None = None) -> None:
    """Draw a diagnostic of the rows from :func:`.report.rows`. Raise LabelSkewError if a run has not recorded it."""
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
            for file in (Path(run.name) / f"diagnostics/{name}.jsonl" for run in runs):
                with valid_file(file, *VALID_FILE):
                    for measure, lines in kind.curves(read_lines(file)).items():
                        for line, rounds in lines.items():
                            title = measure if len(lines) == 1 else f"{measure}: {line}"
                            for at, values in rounds.items():
                                curve = measures.setdefault(title, {}).setdefault(setting, {}).setdefault(label, {})
                                curve.setdefault(int(at), []).append(statistics.fmean(map(float, values)))
        if not measures:
            raise mistake(f"--diagnostic {name}", "its files contain no metrics", "other runs")
        plots.charts(measures, path, methods=report.methods(frame), width=width, log=kind.log)


def _check_recorded(frame: DataFrame, name: str, suffix: str) -> None:
    runs = [run.name for runs in frame["runs"] for run in runs]
    having = [run for run in runs if (Path(run) / f"diagnostics/{name}{suffix}").is_file()]
    if lacking := [clean(run) for run in runs if run not in having]:
        others = f"recorded by {', '.join(map(clean, having[:4]))}" if having else "no run has it"
        use = f"runs of a recipe with tracking_args.diagnostics: [{name}]"
        raise mistake(f"--diagnostic {name}", f"not recorded by {', '.join(lacking[:4])}; {others}", use)


def _partition(run: FinishedRun) -> NDArray[np.int64]:
    """Read the training samples ``(K, C)`` of a run's clients."""
    with valid_file(file := Path(run.name) / "partition.json", *VALID_FILE):
        counts = np.array(json.loads(read_text(file))["counts"], np.int64)
        if counts.ndim != 2 or not counts.size or (counts < 0).any():
            raise ValueError("counts is not a table of numbers of samples")
    return counts


def _class_names(run: FinishedRun, classes: int) -> list[str]:
    known = run.class_names if len(run.class_names) == classes else range(classes)
    return [clean(name, 40) for name in known]


def _points(frame: DataFrame, name: str, kind: type[Points], path: Path, width: float | None) -> None:
    from safetensors.torch import load_file

    from fl_labelskew_plugins.diagnostics.points import ClientPoints, draw_points

    frame = frame.drop_duplicates(["label", "setting"])
    titles = frame["label"] + (", " + frame["setting"] if frame["setting"].nunique() > 1 else "")
    columns = {}
    for title, runs in zip(titles, frame["runs"], strict=True):
        counts = _partition(runs[0])
        with valid_file(file := Path(runs[0].name) / f"diagnostics/{name}.safetensors", *VALID_FILE):
            kept = load_file(file)
            held = np.flatnonzero(counts[int(kept["client"])]).tolist()
            columns[title] = ClientPoints(kept, held, _class_names(runs[0], counts.shape[1]))
            columns[title].check(kind)
    draw_points(kind, columns, path, width)


def _partitions(frame: DataFrame, path: Path, width: float | None) -> None:
    first = frame.drop_duplicates("setting")
    runs = {setting: runs[0] for setting, runs in zip(first["setting"], first["runs"], strict=True)}
    tables = {setting: _partition(run) for setting, run in runs.items()}
    most = max(int(table.max()) for table in tables.values())
    with plots.panels(["class"], list(tables), width, height=0.8, share=False) as made:
        for (_, setting), axes in made.axes.items():
            image = plots.heat(axes, tables[setting], most)
            classes = tables[setting].shape[1]
            if classes <= MAX_NAMES:
                axes.set_yticks(range(classes), _class_names(runs[setting], classes))
        made.picture.colorbar(image, ax=list(made.axes.values()), label="training samples")
        plots.save(made.picture, path, made.dpi)
