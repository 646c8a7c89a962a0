"""Diagnostics of local training: FedRS (figure 6), FedLC (definition 3) and FedMR (figure 7)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from fl_labelskew_registry import Batch, ClientView
from torch import Tensor

from fl_labelskew_plugins.diagnostics.base import Curves, Diagnostic, RunInfo, by_round
from fl_labelskew_plugins.methods.fedmr import Scale, intra_class_loss
from fl_labelskew_plugins.ops import class_means
from fl_labelskew_plugins.tensors import Weights


class TrainingMeans(Diagnostic):
    """Means over the batches of a client's training; ``panels``: axis label to names and labels of numbers."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]]

    def __init__(self, name: str, run: RunInfo, folder: Path) -> None:
        super().__init__(name, run, folder)
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        """Defined scalars of a batch, by name."""
        raise NotImplementedError

    def before(self, view: ClientView) -> None:
        self._sums.clear()

    def step(self, batch: Batch, view: ClientView) -> None:
        for name, value in self.measure(batch, view).items():
            total, number = self._sums.get(name, (torch.zeros_like(value), 0))
            self._sums[name] = total + value, number + 1

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        names = [name for labels in self.panels.values() for name in labels]
        means = {name: float(total) / number for name, (total, number) in self._sums.items()}
        self.lines.append({"client": client, **{name: means.get(name) for name in names}})

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        return {
            title: {label: by_round(lines, name) for name, label in labels.items()}
            for title, labels in cls.panels.items()
        }


def proxy_gradient_norms(gradient: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Mean norms of the proxies' gradients ``(C, d)`` (FedRS, eq. 9), of ``observed`` ``(C,)`` and missing classes.

    >>> proxy_gradient_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([True, False, False]))
    {'observed': tensor(5.), 'missing': tensor(1.5000)}
    """
    norms = torch.linalg.vector_norm(gradient, dim=1)
    return {name: norms[mask].mean() for name, mask in (("observed", observed), ("missing", ~observed)) if mask.any()}


class ProxyGradients(TrainingMeans):
    """Gradients of a batch's mean loss with all terms, before clipping (FedRS, figure 6, columns 1 and 2)."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "gradient norm of a proxy": {"missing": "missing classes", "observed": "observed classes"}
    }
    log = True

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        gradient = self.run.trainer.model.classifier.weight.grad  # type: ignore[union-attr]
        if not isinstance(gradient, Tensor):  # the method has frozen the classifier
            return {}
        return proxy_gradient_norms(gradient, view.counts > 0)


def observed_probability(probabilities: Tensor, labels: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Mean probability of a sample's own class, and of all observed classes together.

    Args:
        probabilities: ``(B, C)``, of the method's own softmax (FedRS, eq. 8).
        labels: ``(B,)`` int64.
        observed: ``(C,)`` bool, classes of the client.

    >>> p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.75, 0.0]])
    >>> observed_probability(p, torch.tensor([0, 1]), torch.tensor([True, True, False]))
    {'own': tensor(0.6250), 'observed': tensor(0.8750)}
    """
    target = probabilities.gather(1, labels[:, None]).mean()
    return {"own": target, "observed": probabilities[:, observed].sum(dim=1).mean()}


class ObservedProbability(TrainingMeans):
    """Probabilities in training batches, before each step (FedRS, figure 6, column 3)."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "mean probability in training": {"own": "the sample's own class", "observed": "all observed classes together"}
    }

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        return observed_probability(calibrated(view, batch.logits, self.run), batch.labels, view.counts > 0)


class IntraLoss(TrainingMeans):
    """FedMR's intra-class loss (figure 7) of any method, as printed (eq. 3) and as in the authors' code."""

    panels: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "intra-class loss as printed (eq. 3)": {"paper": "training batches"},
        "intra-class loss of the authors' code": {"code": "training batches"},
    }

    def measure(self, batch: Batch, view: ClientView) -> Mapping[str, Tensor]:
        features, y, classes = batch.features.detach(), batch.labels, len(view.counts)
        scales: tuple[Scale, Scale] = ("paper", "code")
        return {scale: intra_class_loss(features, y, scale=scale, num_classes=classes) for scale in scales}


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
        """Add number of pairs, share with ``n_j / n_r`` above the bound, and median bound."""
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
        shares = by_round(lines, "exceeded")
        return {
            "n_j / n_r above D_jr, in % of the pairs": {
                "pairs of classes of a client": {at: [100 * value for value in values] for at, values in shares.items()}
            },
            "median of D_jr": {"pairs of classes of a client": by_round(lines, "median")},
        }


def calibrated(view: ClientView, logits: Tensor, run: RunInfo) -> Tensor:
    """Probabilities ``(B, C)`` float64 in the method's cross-entropy; draws no random numbers."""
    state = view.generator.get_state()
    try:
        with torch.no_grad():
            return run.trainer.method.calibrate(logits.detach(), view).double().softmax(dim=1)
    finally:
        view.generator.set_state(state)
