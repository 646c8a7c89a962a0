"""Write one table of all rounds, for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from fl_labelskew_registry import TrackedRun, Tracker

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine.files import open_regular, write_text


class CSV(Tracker):
    """A row per round in rounds.csv of the run's folder; rounds count from 1, missing values are empty."""

    class Params(params.Params):
        """None."""

    def begin(self, run: TrackedRun) -> None:
        self._rows: list[dict[str, float]] = []
        self._columns: dict[str, None] = {}
        self._file = run.folder / "rounds.csv"
        for line in run.earlier:
            self._add(line)
        self._write()

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        """Add a row; the file is rewritten only if there is a new column."""
        columns = len(self._columns)
        self._add(line)
        if len(self._columns) > columns:
            self._write()
            return
        with open(self._file, "a", newline="", encoding="utf-8", opener=open_regular) as stream:
            csv.DictWriter(stream, [*self._columns]).writerow(self._rows[-1])

    def _add(self, line: Mapping[str, float]) -> None:
        self._rows.append({**line, "round": line["round"] + 1})
        self._columns |= dict.fromkeys(line)

    def _write(self) -> None:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, [*self._columns])
        table.writeheader()
        table.writerows(self._rows)
        write_text(self._file, text.getvalue())
