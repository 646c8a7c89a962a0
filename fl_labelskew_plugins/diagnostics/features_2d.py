"""2-D features and proxies, as in FedRS (figures 3, 4 and 12) and MAP (figure 5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.points import Points
from fl_labelskew_plugins.ops import class_means


def arrows(points: Tensor, proxies: Tensor, share: float = 0.5) -> Tensor:
    """Proxies ``(C, 2)``, scaled so that the longest is ``share`` of the largest distance of a point (papers: by 10).

    >>> arrows(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.5, 0.0]]))
    tensor([[0.0000, 2.5000],
            [1.2500, 0.0000]])
    """
    reach = torch.linalg.vector_norm(points, dim=1).max()
    longest = torch.linalg.vector_norm(proxies, dim=1).max()
    drawn: Tensor = proxies * (share * reach / longest.clamp_min(torch.finfo(proxies.dtype).tiny))
    return drawn


class Features2D(Points):
    """Test features and proxies of the round's first client before and after training, and of the global model."""

    num_features = 2
    stages = ("start", "local", "global")

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        """Proxies and mean features per class."""
        means, counts = class_means(points, labels, len(proxies))
        rows = [mean if n else None for mean, n in zip(means.tolist(), counts.tolist(), strict=True)]
        return {"proxies": proxies.tolist(), "means": rows}

    @staticmethod
    def panel(axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float) -> None:
        """Draw points and proxies; proxies of missing classes are white arrows, as in the papers."""
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies), scale=scale)
        for label, (x, y) in enumerate(arrows(points, proxies).tolist()):
            missing = held is not None and label not in held
            plots.arrow(axes, x, y, "white" if missing else plots.colour(label, len(proxies)), scale)
        axes.set(xlabel="feature 1", ylabel="feature 2")
        axes.set_aspect("equal", adjustable="datalim")
