"""FedLC's deviation bound: where majority classes overwhelm minority ones in a client's first steps (definition 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fl_labelskew_registry import ClientView
from safetensors.torch import load_file
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import Diagnostic, Rounds, Scene, by_round, calibrated
from fl_labelskew_plugins.ops import class_means
from fl_labelskew_plugins.tensors import Weights

SHARE = "n_j / n_r above D_jr, in % of the pairs"


def deviation_bound(probabilities: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    r"""``(C, C)`` float64; entry ``[j, r]``: bound of majority class j and minority class r (FedLC, definition 3).

    .. math:: D_{jr} = \frac{(1 - \overline{p_r^{(r)}}) \lVert \overline{h^{(r)}} \rVert_2^2}
        {\overline{p_r^{(j)}} \, \overline{h^{(r)}} \cdot \overline{h^{(j)}}}

    with means over the samples of the class in parentheses. Where ``n_j / n_r`` is above ``D_jr > 0`` the update of
    the classifier is likely to go the wrong way for class r (theorem 1). NaN where a class has no sample and for j = r.

    Args:
        probabilities: ``(N, C)``, of the softmax in use.
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
    """Over each client's training samples, under the weights it begins a round with and the method's own softmax."""

    def __init__(self, name: str, scene: Scene, folder: Path) -> None:
        super().__init__(name, scene, folder)
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def before(self, view: ClientView) -> None:
        """The client's line: pairs, the share of them whose ``n_j / n_r`` is above the bound, and the median bound."""
        assert view.features is not None  # the local trainer gives it
        features, labels = view.features()
        with torch.no_grad():
            logits = self.scene.trainer.model.classifier(features)  # type: ignore[operator]
        bound = deviation_bound(calibrated(view, logits, self.scene), features, labels)
        ratio, bounds = (values.cpu() for values in pairs(bound, view.counts))
        self._pairs.append((ratio, bounds))
        numbers: dict[str, float | None] = {"exceeded": None, "median": None}
        if len(ratio):
            numbers = {"exceeded": float((ratio > bounds).double().mean()), "median": float(bounds.median())}
        self.lines.append({"client": view.id, "pairs": len(ratio), **numbers})

    def aggregated(self, round: int, weights: Weights) -> None:
        """Keep the round's pairs."""
        if self._pairs:
            ratios, bounds = (torch.cat(parts) for parts in zip(*self._pairs, strict=True))
            self.keep({"ratio": ratios, "bound": bounds})
        self._pairs.clear()

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> dict[str, Rounds]:
        """The share of the pairs."""
        shares = by_round(lines, "exceeded")
        return {SHARE: {x: [100 * value for value in values] for x, values in shares.items()}}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """The share over the rounds, and the last round's pairs."""
        figure, (left, right) = plots.figure(11, 4.4, columns=2)
        plots.band(left, self.curves(lines)[SHARE], "pairs of classes of a client")
        left.set(xlabel="round", ylabel=SHARE, ylim=plots.PERCENT)
        plots.finish_rounds(left)
        kept = load_file(self.tensors) if self.tensors.exists() else {}
        if len(kept.get("ratio", ())):
            ratio, bound = kept["ratio"], kept["bound"]
            right.scatter(ratio, bound, s=10, alpha=0.5, label="a pair, last round")
            ends = [float(torch.cat([ratio, bound]).min()), float(torch.cat([ratio, bound]).max())]
            right.plot(ends, ends, color="black", linestyle="--", label="n_j / n_r = D_jr; below: wrong way")
            right.set(xscale="log", yscale="log", xlabel="n_j / n_r", ylabel="D_jr")
            right.legend(fontsize=8)
            right.grid(alpha=0.3)
        figure.suptitle(f"{self.scene.title}: deviation bound; mean over the clients, band from lowest to highest")
        plots.save(figure, self.picture)
