"""Format the rows of a report for readers and for machines, and mark the best values; ``fl.report``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from fl_labelskew_registry import LabelSkewError, MistakesError
from pandas import DataFrame

from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.runs.measure import GLOBAL, NAMED
from fl_labelskew_plugins.studies import finished
from fl_labelskew_plugins.studies.report import DIFFERENCE, NAMES, PLAIN_OPTIMIZER, rows

if TYPE_CHECKING:
    from fl_labelskew_plugins.front.run import Run

WORDS = (*NAMES, "differs in", "label", "setting", "test")
FORMS = {
    **dict.fromkeys((*WORDS, "seeds", "unfinished", "rounds"), ""),
    **{f"{name}{part}": ".2f" for name in ("accuracy", "best") for part in ("", "_std")},
    **dict(zip(DIFFERENCE, ("+.2f", ".2f", ".2f", ".0f"), strict=True)),
    **{f"{name}{part}": ".2f" for name in ("personalised", "local model") for part in ("", "_std")},
    **{f"{name}{part}": ".2f" for name in ("own tests", "worst client", "spread") for part in ("", "_std")},
    **{"rank": ".0f", "rounds to baseline": ".0f", "speedup": ".2f", "MB up": ".3f", "MB down": ".3f"},
    **{"s/round": ".2f", "peak MB": ".0f", "peak GPU MB": ".0f"},
}
"""Columns in order, and the formats of their numbers."""
PARTS = {
    **{"unfinished": "seeds", "difference_low": "difference", "difference_high": "difference"},
    **{"speedup": "rounds to baseline", **{name: name.removesuffix("_std") for name in FORMS if "_std" in name}},
}
"""Columns only for machines, and the column that contains them for readers."""
MEASURES = [name for name in FORMS if name not in WORDS and name not in PARTS]
BETTER = {"accuracy": 1, "personalised": 1, "best": 1, "worst client": 1, "rounds to baseline": -1}
"""Columns with marks: 1 if higher is better, -1 if lower is better."""


def numbers(frame: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """Select the informative columns, or given :data:`MEASURES` with text columns and :data:`PARTS`."""
    if columns:
        parts = [[column, *(part for part in PARTS if PARTS[part] == column)] for column in columns]
        words = [name for name in WORDS if name != "test" or not _all_global(frame)]
        return frame[[*words, *itertools.chain(*parts)]]
    nothing = {
        "pairs": frame["pairs"].isna().all() or (frame["pairs"].fillna(frame["seeds"]) == frame["seeds"]).all(),
        **dict.fromkeys(DIFFERENCE[:3], frame["difference"].isna().all()),
        "optimizer": (frame["optimizer"] == PLAIN_OPTIMIZER).all(),
        "test": _all_global(frame),
        "personalised": not frame["personal"].any(),
        "local model": frame["personal"].all(),
        **{name: frame[name].isna().all() for name in ("peak GPU MB", "own tests", "worst client", "spread")},
    }
    nothing["own tests"] |= (frame["test"] == NAMED["client_accuracy_mean"].name).all()  # equal to the accuracy
    return frame[[name for name in FORMS if not nothing.get(name.removesuffix("_std"))]]


def _all_global(frame: DataFrame) -> bool:
    return bool((frame["test"] == NAMED[GLOBAL].name).all())


def texts(frame: DataFrame, columns: Sequence[str] = (), *, split: bool = False) -> DataFrame:
    """Format a table from :func:`.report.rows`, with accuracies in per cent.

    ``columns``: some of :data:`MEASURES`; default: all informative ones. ``split``: separate columns for mean and std,
    and for each part of a name.
    """
    cells = numbers(frame, columns)
    text = pd.DataFrame({name: _formatted(column, FORMS[name]) for name, column in cells.items()}, dtype=object)
    if split:
        return text
    names = pd.DataFrame({"method": frame["label"], "data": frame["data"], "partition": frame["partition setting"]})
    if not _all_global(frame):
        names["test"] = frame["test"]
    for name in [name for name in text if f"{name}_std" in text]:
        std = text[f"{name}_std"]
        text[name] = text[name].where(std == "", text[name] + " ± " + std)
    if "best" in text:
        text["best"] += frame["falls"].map({True: " !", False: ""})
    if "seeds" in text:
        both = (cells["seeds"] + cells["unfinished"]).astype(str)
        text["seeds"] = text["seeds"].where(cells["unfinished"] == 0, text["seeds"] + " of " + both)
    if "rounds to baseline" in text:
        rounds, unreached = text["rounds to baseline"], _formatted(frame["rounds without reaching"], ".0f")
        reached = rounds + " (" + text["speedup"] + "x)"
        text["rounds to baseline"] = reached.where(rounds != "", ("> " + unreached).where(unreached != "", ""))
    if "difference" in text:
        low, high = cells["difference_low"], cells["difference_high"]
        around = " [" + text["difference_low"] + ", " + text["difference_high"] + "]"
        text["difference"] += around.where(low.notna(), "")
        text["difference"] += (low > 0).map({True: " better", False: ""}) + (high < 0).map({True: " worse", False: ""})
    measures = text[[name for name in text if name in MEASURES]].replace("", "-")
    return pd.concat([names, measures], axis="columns")


def _formatted(column: Any, form: str) -> Any:
    return column.map(lambda value: "" if value != value else format(value, form)).astype(object)  # noqa: PLR0124  # NaN


def marks(frame: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """Mark each cell of :func:`texts`: 1 for the best of its setting, 2 for the second best, 0 for others.

    Values are compared as printed; a single value has no mark.
    """
    printed, split = texts(frame, columns), texts(frame, columns, split=True)
    marked = pd.DataFrame(0, printed.index, printed.columns)
    for name in printed.columns.intersection(list(BETTER)):
        values = BETTER[name] * pd.to_numeric(split[name]).where(frame["complete"])
        of_setting = values.groupby(frame["setting"])
        place = of_setting.rank(method="dense", ascending=False)
        marked[name] = place.where((place <= 2) & (of_setting.transform("count") > 1), 0).astype(int)
    return marked


def pivoted(frame: DataFrame, table: DataFrame, empty: Any) -> DataFrame:
    """Rearrange complete rows of :func:`texts` or :func:`marks` to a row per label; ``empty``: missing cells."""
    frame, table = frame[frame["complete"]], table[frame["complete"]]
    measures = [name for name in table if name not in WORDS]
    labels, settings = frame["label"].unique(), frame["setting"].unique()
    wide = table[measures].set_index([frame["label"], frame["setting"]])
    wide = wide[~wide.index.duplicated(keep="last")].unstack(fill_value=empty)
    order = [(measure, setting) for setting in settings for measure in measures]
    wide = wide.reindex(index=labels)[order]
    wide.columns = [setting if len(measures) == 1 else f"{setting} {measure}" for measure, setting in order]
    return wide.reset_index(names="method")


def report(runs: Sequence[Run | str | Path], *, last: int = 5, baseline: str = "fedavg") -> Report:
    """Compare runs; those that differ only in their seed share a row, as mean and std over the seeds.

    Args:
        runs: runs or folders; a folder may contain several run folders.
        last: number of last tests to average.
        baseline: the method, or the name of a row, with which the others are compared.
    """
    folders = [Path(run) if isinstance(run, str | Path) else run.folder for run in runs]
    read, mistakes = finished.read_all(folders)
    if mistakes:
        raise MistakesError(mistakes)
    if not read:
        raise LabelSkewError("no runs to report; give at least one run or folder of runs")
    return Report(rows(finished.grouped(read), last, baseline), last, baseline)


class Report:
    """A comparison of runs; made by :func:`report`."""

    def __init__(self, frame: DataFrame, last: int, baseline: str) -> None:
        self._rows, self._last, self._baseline = frame, last, baseline

    @property
    def table(self) -> DataFrame:
        """The rows and columns of ``labelskew report``; accuracies in per cent."""
        return numbers(self._rows)

    def save(self, path: str | Path) -> Path:
        """Write the self-contained page of ``labelskew report --html``."""
        from fl_labelskew_plugins.studies.page import page

        write_text(Path(path), page(self._rows, last=self._last, baseline=self._baseline))
        return Path(path)

    def __repr__(self) -> str:
        return str(texts(self._rows).to_string(index=False))

    def _repr_html_(self) -> Any:
        """Format the table for notebooks, with values escaped."""
        return texts(self._rows).to_html(index=False, border=0)
