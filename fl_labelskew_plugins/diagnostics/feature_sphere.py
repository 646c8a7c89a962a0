"""Features on the unit sphere, as in FedMR (figure 1c; simulation in appendix B)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.points import Points


def principal_shares(points: Tensor) -> list[float]:
    """Shares of the variance of points ``(n, d)`` along the principal directions; 0 if all points are equal.

    >>> principal_shares(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, -0.5, 0.0]]))
    [0.8, 0.2, 0.0]
    """
    centred = points.double() - points.double().mean(dim=0)
    variances = torch.linalg.svdvals(centred).square()
    shares: list[float] = (variances / variances.sum().clamp_min(1e-12)).tolist()
    return shares


class FeatureSphere(Points):
    """Test features on the unit sphere, of the round's first client and of the global model; ``d = 3``."""

    num_features = 3
    stages = ("local", "global")
    width = 5.2
    three_d = True

    def place(self, features: Tensor) -> Tensor:
        """Project features on the unit sphere."""
        return normalize(features, dim=1)

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        """Shares of the variance along the three principal directions."""
        return {"principal_shares": principal_shares(points)}

    @staticmethod
    def panel(axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float) -> None:
        """Draw the sphere and the points; missing classes are hollow."""
        plots.sphere(axes)
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies), solid=held, scale=scale)
