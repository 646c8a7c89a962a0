"""Gradient norms of missing and observed classes' proxies, as in FedRS (figure 6, columns 1, 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from fl_labelskew_registry import Batch, ClientView
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import TrainingMeans


def proxy_gradient_norms(gradient: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Mean norm of the proxies' gradients (FedRS, eq. 9), for ``observed`` and for ``missing`` classes, if any.

    ``gradient``: ``(C, d)``, of the classifier's weight; ``observed``: ``(C,)`` bool, classes that the client holds.

    >>> proxy_gradient_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([True, False, False]))
    {'observed': tensor(5.), 'missing': tensor(1.5000)}
    """
    norms = torch.linalg.vector_norm(gradient, dim=1)
    return {name: norms[mask].mean() for name, mask in (("observed", observed), ("missing", ~observed)) if mask.any()}


class ProxyGradients(TrainingMeans):
    """Gradients of a batch's mean loss with all terms, before clipping."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "gradient norm of a proxy": {"missing": "missing classes", "observed": "observed classes"}
    }
    log = True

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        """Norms of this batch."""
        gradient = self.run.trainer.model.classifier.weight.grad  # type: ignore[union-attr]
        if not isinstance(gradient, Tensor):  # the method has frozen the classifier
            return {}
        return proxy_gradient_norms(gradient, view.counts > 0)
