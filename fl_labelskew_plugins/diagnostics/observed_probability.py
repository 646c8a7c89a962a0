"""Probability of observed classes in local training, as in FedRS (figure 6, third column)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fl_labelskew_registry import Batch, ClientView
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import TrainingMeans, calibrated


def observed_probability(probabilities: Tensor, labels: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Mean probability of a sample's own class, ``own``, and of all observed classes together, ``observed``.

    Args:
        probabilities: ``(B, C)``, of the method's own softmax (FedRS, eq. 8).
        labels: ``(B,)`` int64.
        observed: ``(C,)`` bool, classes that the client holds.

    >>> p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.75, 0.0]])
    >>> observed_probability(p, torch.tensor([0, 1]), torch.tensor([True, True, False]))
    {'own': tensor(0.6250), 'observed': tensor(0.8750)}
    """
    target = probabilities.gather(1, labels[:, None]).mean()
    return {"own": target, "observed": probabilities[:, observed].sum(dim=1).mean()}


class ObservedProbability(TrainingMeans):
    """Probabilities in training batches, before each step."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "mean probability in training": {"own": "the sample's own class", "observed": "all observed classes together"}
    }

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        """Probabilities of this batch."""
        return observed_probability(calibrated(view, batch.logits, self.run), batch.labels, view.counts > 0)
