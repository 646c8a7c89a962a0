"""Effective rank of the features: how many dimensions they use, before and after aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Diagnostic, Rounds, by_round, some_test_samples, test_features
from fl_labelskew_plugins.tensors import Weights

SAMPLES = 1000
"""Test samples whose features are taken, at most."""
RANK = "effective rank"
CLIENTS, GLOBAL = f"{RANK}, clients' models", f"{RANK}, global model"


def effective_rank(features: Tensor) -> float | None:
    r"""Effective rank of centred features (Roy and Vetterli, EUSIPCO 2007, definition 1); None if all are the same.

    .. math:: \operatorname{erank} = \exp\Bigl(-\sum_i p_i \ln p_i\Bigr), \quad p_i = \sigma_i / \sum_j \sigma_j

    with the singular values sigma of the features minus their mean. It lies between 1, all features on a line, and
    ``min(n - 1, d)``, the same spread in all directions. Under label skew features collapse to few dimensions (Shi et
    al., FedDecorr, ICLR 2023, https://arxiv.org/abs/2210.00226, who plot the singular values of their covariance).

    Args:
        features: ``(n, d)``.

    >>> round(effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 6)  # sigma: 1, 1
    2.0
    >>> round(effective_rank(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])), 6)  # one direction
    1.0
    """
    whole = features.double()
    values = torch.linalg.svdvals(whole - whole.mean(dim=0))
    if values.max() <= torch.finfo(torch.float32).eps * torch.linalg.vector_norm(whole):
        return None
    return float(torch.special.entr(values / values.sum()).sum().exp())


class EffectiveRank(Diagnostic):
    """Features of test samples under each upload and under the round's global model."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        """A client's line, before aggregation."""
        self.lines.append({"client": client, "rank": self._rank(upload)})

    def aggregated(self, round: int, weights: Weights) -> None:
        """The global model's line, after aggregation."""
        self.lines.append({"client": None, "rank": self._rank(weights)})

    def _rank(self, weights: Weights) -> float | None:
        trainer = self.scene.trainer
        return effective_rank(test_features(trainer, weights, some_test_samples(trainer, SAMPLES)))

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> dict[str, Rounds]:
        """The rank of the clients' models and of the global one."""
        clients, of_global = ([line for line in lines if (line["client"] is None) == kind] for kind in (False, True))
        return {CLIENTS: by_round(clients, "rank"), GLOBAL: by_round(of_global, "rank")}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """Both over the rounds."""
        figure, axes = plots.figure(6.4, 4)
        for title, rounds in self.curves(lines).items():
            plots.band(axes, rounds, title.removeprefix(f"{RANK}, "))
        d = self.scene.trainer.federation.num_features
        axes.set(xlabel="round", ylabel=f"{RANK} of {d} features", title=self.scene.title)
        plots.finish_rounds(axes)
        plots.save(figure, self.picture)
