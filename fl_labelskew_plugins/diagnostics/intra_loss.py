"""FedMR's intra-class loss over the rounds, for any method (FedMR, figure 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fl_labelskew_registry import Batch, ClientView
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import TrainingMeans
from fl_labelskew_plugins.methods.fedmr import Scale, intra_class_loss


class IntraLoss(TrainingMeans):
    """Mean over training batches, before each step; as printed (eq. 3) and as in the authors' code."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "intra-class loss as printed (eq. 3)": {"paper": "training batches"},
        "intra-class loss of the authors' code": {"code": "training batches"},
    }

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        """Both versions for this batch."""
        features, y, classes = batch.features.detach(), batch.labels, len(view.counts)
        scales: tuple[Scale, Scale] = ("paper", "code")
        return {scale: intra_class_loss(features, y, scale=scale, num_classes=classes) for scale in scales}
