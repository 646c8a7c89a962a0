"""Features on the unit sphere, as FedMR draws collapse and invasion (figure 1c; appendix B has the simulation)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.points import Points


def principal_shares(points: Tensor) -> list[float]:
    """Share of the variance of points ``(n, d)`` along each of its principal directions, the largest first.

    Close to 1 and 0s where features have collapsed to a line or an arc; 0s alone where all points are one.

    >>> principal_shares(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, -0.5, 0.0]]))
    [0.8, 0.2, 0.0]
    """
    centred = points.double() - points.double().mean(dim=0)
    variances = torch.linalg.svdvals(centred).square()
    shares: list[float] = (variances / variances.sum().clamp_min(1e-12)).tolist()
    return shares


class FeatureSphere(Points):
    """Test features, projected on the unit sphere, of the round's first client and of the global model; ``d = 3``."""

    num_features = 3
    stages = ("local", "global")
    width = 5.2
    three_d = True

    def place(self, features: Tensor) -> Tensor:
        """Project on the unit sphere; a feature of 0 stays where it is."""
        return normalize(features, dim=1)

    def line(self, points: Tensor, proxies: Tensor, labels: Tensor) -> dict[str, Any]:
        """How the variance of all samples is shared by the three principal directions."""
        return {"principal_shares": principal_shares(points)}

    @staticmethod
    def panel(
        axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None, scale: float = 1.0
    ) -> None:
        """The sphere and the points on it; a missing class's are hollow, so that what they cover is seen."""
        plots.sphere(axes)
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies), solid=held, scale=scale)
