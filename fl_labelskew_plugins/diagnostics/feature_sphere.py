"""Features on the unit sphere, as FedMR draws collapse and invasion (figure 1c; appendix B has the simulation)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.points import Points


def spread(units: Tensor) -> float:
    r"""How far unit vectors ``(n, d)`` reach: 0 where all are one, 1 where they cancel out.

    .. math:: 1 - \Bigl\lVert \frac{1}{n} \sum_i u_i \Bigr\rVert

    >>> spread(torch.tensor([[1.0, 0.0], [1.0, 0.0]])), spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    (0.0, 1.0)
    """
    return float(1 - torch.linalg.vector_norm(units.double().mean(dim=0)))


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
        """The spread of all samples, and of each class."""
        of_class = [
            spread(points[labels == c]) if bool((labels == c).any()) else None
            for c in range(len(self.scene.class_names))
        ]
        return {"spread": spread(points), "class_spread": of_class}

    def panel(self, axes: Any, points: Tensor, proxies: Tensor, labels: Tensor, held: list[int] | None) -> None:
        """The sphere and the points on it."""
        plots.sphere(axes)
        plots.scatter(axes, points.numpy(), labels.numpy(), classes=len(proxies))
