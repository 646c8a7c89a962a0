"""FedMR's intra-class loss over the rounds, under any method (FedMR, figure 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fl_labelskew_registry import Batch, ClientView
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import TrainingMeans
from fl_labelskew_plugins.methods.fedmr import intra_class_loss


class IntraLoss(TrainingMeans):
    """Mean over the training batches, before each step; as printed (eq. 3) and as the authors' code computes it."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "intra-class loss as printed (eq. 3)": {"paper": "training batches"},
        "intra-class loss of the authors' code": {"code": "training batches"},
    }

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        """Both scales for this batch."""
        features, classes = batch.features.detach(), len(view.counts)
        return {
            "paper": intra_class_loss(features, batch.labels, scale="paper", num_classes=classes),
            "code": intra_class_loss(features, batch.labels, scale="code", num_classes=classes),
        }
