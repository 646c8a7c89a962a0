"""Label distribution of every client (FedRS figure 11, FedMR figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Diagnostic
from fl_labelskew_plugins.tensors import Weights


class LabelHeatmap(Diagnostic):
    """Samples per class of each client; the plot shows all clients of the run."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """Add the client's line."""
        self.lines.append({"client": client, "counts": self.run.counts[client].tolist()})

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """Draw classes down and clients across."""
        counts, names = self.run.counts.cpu().numpy(), list(self.run.trainer.names.values())
        plots.heat_map(counts, self.run.class_names, self.picture, title=self.run.title, clients=names)
