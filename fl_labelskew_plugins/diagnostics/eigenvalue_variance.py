"""Spread of features over their dimensions (FedMR, table 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import Curves, Diagnostic, by_round, some_test_samples, test_features
from fl_labelskew_plugins.tensors import Weights

TOP, BATCH, BATCHES = 50, 128, 8
"""Number of eigenvalues and batch size of the paper, and number of averaged batches."""


def eigenvalue_variance(features: Tensor, labels: Tensor, *, top: int = TOP, eps: float = 1e-5) -> Tensor:
    r"""Variance of the largest eigenvalues of the classes' covariance matrices in a batch (FedMR, table 7).

    .. math:: \frac{1}{|C|} \sum_c \frac{1}{B} \sum_{i=1}^{m}
        \Bigl(\lambda_i - \frac{1}{m} \sum_{j=1}^{m} \lambda_j\Bigr)^2, \quad m = \min(\mathrm{top}, d)

    over the eigenvalues of each class's ``M`` (eq. 2): the covariance of its features, standardised per dimension. With
    ``m = d`` and every dimension varying, ``B`` times the value is the mean of ``||M||_F^2 - d`` (lemma 1). The paper
    prints the formula for one ``M``; classes with one sample are excluded.

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64.
        top: number of eigenvalues.
        eps: lower bound of the variance.

    >>> features = torch.tensor([[0.0, 0.0], [1.0, 2.0], [5.0, 5.0]])
    >>> eigenvalue_variance(features, torch.tensor([0, 0, 1]))  # eigenvalues 2 and 0: (1 + 1) / 3
    tensor(0.6667, dtype=torch.float64)
    """
    m = min(top, features.shape[1])
    variances = []
    for c in torch.unique(labels).tolist():
        z = features[labels == c].double()
        if len(z) < 2:
            continue
        z = (z - z.mean(dim=0)) * z.var(dim=0).clamp(min=eps).rsqrt()
        values = torch.linalg.svdvals(z).square() / (len(z) - 1)  # non-zero eigenvalues of M
        values = torch.nn.functional.pad(values, (0, max(m - len(values), 0)))[:m]
        variances.append((values - values.mean()).square().sum() / len(features))
    return torch.stack(variances).mean() if variances else torch.tensor(float("nan"), dtype=torch.float64)


class EigenvalueVariance(Diagnostic):
    """Variance for the global model, averaged over batches of 128 test samples."""

    def aggregated(self, round: int, weights: Weights) -> None:
        """Add the round's value."""
        trainer = self.run.trainer
        index = some_test_samples(trainer, BATCH * BATCHES)
        features, labels = test_features(trainer, weights, index), trainer.test.y[index].cpu()
        parts = [slice(start, start + BATCH) for start in range(0, max(len(index) - BATCH, 0) + 1, BATCH)]
        values = torch.stack([eigenvalue_variance(features[part], labels[part]) for part in parts])
        values = values[~values.isnan()]
        self.lines.append({"variance": float(values.mean()) if len(values) else None})

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        """Curve of the value."""
        return {f"variance of the top {TOP} eigenvalues": {"global model, test samples": by_round(lines, "variance")}}
