"""``fl.report``: compare runs from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, MistakesError
from pandas import DataFrame

from fl_labelskew_plugins.front.run import Run
from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.studies import finished, printed
from fl_labelskew_plugins.studies import report as reports


def report(runs: Sequence[Run | str | Path], *, last: int = 5, baseline: str = "fedavg") -> Report:
    """Compare runs; those that differ only in their seed share a row, as mean and std over the seeds.

    Args:
        runs: runs or folders; a folder may contain several run folders.
        last: number of last tests to average.
        baseline: the method, or the name of a row, with which the others are compared.
    """
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    read, mistakes = finished.read_all(folders)
    if mistakes:
        raise MistakesError(mistakes)
    if not read:
        raise LabelSkewError("no runs to report; give at least one run or folder of runs")
    return Report(reports.rows(finished.grouped(read), last, baseline), last, baseline)


class Report:
    """A comparison of runs; made by :func:`report`."""

    def __init__(self, rows: DataFrame, last: int, baseline: str) -> None:
        self._rows, self._last, self._baseline = rows, last, baseline

    @property
    def table(self) -> DataFrame:
        """The rows and columns of ``labelskew report``; accuracies in per cent."""
        return printed.numbers(self._rows)

    def save(self, path: str | Path) -> Path:
        """Write the self-contained page of ``labelskew report --html``."""
        from fl_labelskew_plugins.studies.page import page

        write_text(Path(path), page(self._rows, last=self._last, baseline=self._baseline))
        return Path(path)

    def __repr__(self) -> str:
        return str(printed.texts(self._rows).to_string(index=False))

    def _repr_html_(self) -> Any:
        """Format the table for notebooks, with values escaped."""
        return printed.texts(self._rows).to_html(index=False, border=0)
