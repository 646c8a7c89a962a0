"""Write one table of all rounds, for a spreadsheet."""

import csv
import io
from collections.abc import Mapping

from fl_labelskew_registry import TrackedRun, Tracker

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine.files import write_text


class CSV(Tracker):
    """A row per round in rounds.csv of the run's folder; rounds count from 1, missing values are empty."""

    class Params(params.Params):
        """None."""

    def begin(self, run: TrackedRun) -> None:
        self._lines = [*run.earlier]
        self._write(run)

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        self._lines.append(line)
        self._write(run)

    def _write(self, run: TrackedRun) -> None:
        text = io.StringIO(newline="")
        names = list(dict.fromkeys(name for line in self._lines for name in line))
        table = csv.DictWriter(text, names)
        table.writeheader()
        table.writerows({**line, "round": line["round"] + 1} for line in self._lines)
        write_text(run.folder / "rounds.csv", text.getvalue())
