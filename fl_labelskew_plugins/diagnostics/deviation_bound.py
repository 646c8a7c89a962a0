"""FedLC's deviation bound (definition 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fl_labelskew_registry import ClientView
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import Curves, Diagnostic, by_round, calibrated
from fl_labelskew_plugins.ops import class_means


def deviation_bound(probabilities: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    r"""``(C, C)`` float64; entry ``[j, r]``: bound of majority class j and minority class r (FedLC, definition 3).

    .. math:: D_{jr} = \frac{(1 - \overline{p_r^{(r)}}) \lVert \overline{h^{(r)}} \rVert_2^2}
        {\overline{p_r^{(j)}} \, \overline{h^{(r)}} \cdot \overline{h^{(j)}}}

    with means over the samples of the class in parentheses; NaN for classes without samples and for j = r.

    Args:
        probabilities: ``(N, C)``, of the method's softmax.
        features: ``(N, d)``.
        labels: ``(N,)`` int64.

    >>> p = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    >>> h = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    >>> deviation_bound(p, h, torch.tensor([0, 1]))  # D_01 = 0.5 * 4 / (0.25 * 2), D_10 = 0.25 * 2 / (0.5 * 2)
    tensor([[   nan, 4.0000],
            [0.5000,    nan]], dtype=torch.float64)
    """
    classes = probabilities.shape[1]
    p, counts = class_means(probabilities.double(), labels, classes)
    h, _ = class_means(features.double(), labels, classes)
    dots = h @ h.T
    bound = (1 - p.diag()) * dots.diag() / (p * dots)
    held = counts > 0
    valid = held[:, None] & held & ~torch.eye(classes, dtype=torch.bool, device=held.device)
    return bound.masked_fill(~valid, float("nan"))


def pairs(bound: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """``n_j / n_r`` and ``D_jr``, ``(P,)`` each, of all pairs of held classes with ``n_j >= n_r`` and ``D_jr > 0``."""
    n = counts.to(bound)
    wanted = (n[:, None] >= n) & (bound > 0) & bound.isfinite()
    return (n[:, None] / n)[wanted], bound[wanted]


class DeviationBound(Diagnostic):
    """Bounds over each client's training samples, with the round's start weights."""

    def before(self, view: ClientView) -> None:
        """Add the client's line: number of pairs, share with ``n_j / n_r`` above the bound, median bound."""
        assert view.features is not None  # set by the local trainer
        features, labels = view.features()
        with torch.no_grad():
            logits = self.run.trainer.model.classifier(features)  # type: ignore[operator]
        bound = deviation_bound(calibrated(view, logits, self.run), features, labels)
        ratio, bounds = (values.cpu() for values in pairs(bound, view.counts))
        numbers: dict[str, float | None] = {"exceeded": None, "median": None}
        if len(ratio):
            numbers = {"exceeded": float((ratio > bounds).double().mean()), "median": float(bounds.median())}
        self.lines.append({"client": view.id, "pairs": len(ratio), **numbers})

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        """Share of pairs above the bound, and the median bound."""
        shares = by_round(lines, "exceeded")
        return {
            "n_j / n_r above D_jr, in % of the pairs": {
                "pairs of classes of a client": {at: [100 * value for value in values] for at, values in shares.items()}
            },
            "median of D_jr": {"pairs of classes of a client": by_round(lines, "median")},
        }
