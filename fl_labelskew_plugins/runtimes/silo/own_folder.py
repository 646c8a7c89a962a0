"""What a silo keeps of a run for itself: its measures round by round, and at the end a summary and curves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runs.folder import RunFolder, summary
from fl_labelskew_plugins.runs.session import Session


class OwnFolder(RunFolder):
    """A run's folder in a silo's: named after the recipe and the time when the silo first joined, and found again.

    ``run``: 16 hexadecimal digits, which end the folder's name.
    """

    def __init__(self, folder: Path, name: str, run: str) -> None:
        earlier = sorted(folder.glob(f"*{run}"))
        super().__init__(earlier[0] if earlier else folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{run}")

    def trained(self, round: int, result: LocalResult, **sizes: int) -> None:
        """Write down a round's training, and the ``sizes`` of messages; later rounds are of the past from here on."""
        line: dict[str, Any] = {"round": round, "loss_terms": result.loss_terms}
        if result.personalised is not None:
            line["personalised_accuracy"] = result.personalised[0] / result.personalised[1]
        self.truncate(round)
        self.append(self.metrics, line | sizes)

    def tested(self, round: int, measures: Mapping[str, Any]) -> None:
        """Write down a test of the global model, beside the round's training if this silo took part in that."""
        line = next((line for line in read_lines(self.metrics) if line["round"] == round), {"round": round})
        self.truncate(round)
        self.append(self.metrics, {**line, **measures})

    def finish(self, session: Session, **facts: Any) -> dict[str, Any]:
        """Write ``summary.json``, with these facts before all else, and ``curves.png``; returns the summary."""
        lines, file, recipe = read_lines(self.metrics), self.path / "curves.png", session.recipe
        result = summary(lines, recipe.validation.last_rounds)
        result["rounds"] = sum("loss_terms" in line for line in lines)  # that this silo trained in
        title = f"{recipe.method_name} on {recipe.data.dataset}, silo {facts['silo']}"
        with plots.forgiving(file):
            plots.curves(lines, file, title=title, own_models=session.own_models, tests="own test part")
        self.write_json("summary.json", facts | result)
        return result
