"""Diagnostics of uploads and of the global model."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.diagnostics.base import (
    Curves,
    Diagnostic,
    RoundValues,
    RunInfo,
    by_round,
    some_test_samples,
    test_features,
)
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.tensors import Weights

KINDS = ("before aggregation, classes the client holds", "before aggregation, classes it lacks", "after aggregation")
IN_MEMORY = 2**28  # bytes of a round's updates; more go to a temporary file
TOP, BATCH, BATCHES = 50, 128, 8  # eigenvalues and batch size of the paper, and averaged batches


class LabelHeatmap(Diagnostic):
    """Samples per class of each client (FedRS, figure 11; FedMR, figures 5 and 6); the plot shows all clients."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        self.lines.append({"client": client, "counts": self.run.counts[client].tolist()})

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        counts, names = self.run.counts.cpu().numpy(), list(self.run.trainer.names.values())
        plots.heat_map(counts, self.run.class_names, self.picture, title=self.run.title, clients=names)


def class_accuracy(logits: Tensor, labels: Tensor) -> list[float | None]:
    """Accuracy per class from logits ``(N, C)`` and labels ``(N,)``; None without samples.

    >>> class_accuracy(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 1]))
    [1.0, 0.0, None]
    """
    matrix = metrics.confusion(logits.argmax(1), labels, logits.shape[1]).cpu()
    recall: list[float | None] = metrics.measures(matrix)["recall"]  # type: ignore[assignment]
    return recall


class ClassAccuracy(Diagnostic):
    """Per-class accuracy of uploads and global models on the global test set (FedLC, figure 6)."""

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        self.lines.append({"client": client, "held": self.run.held(client), "recall": self._tested(upload)})

    def aggregated(self, round: int, weights: Weights) -> None:
        self.lines.append({"client": None, "recall": self._tested(weights)})

    def _tested(self, weights: Weights) -> list[float | None]:
        return class_accuracy(*self.run.trainer.predict(weights=weights))

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        kinds: dict[str, RoundValues] = {label: {} for label in KINDS}
        for label, rounds in kinds.items():
            for line in lines:
                recalls = _percent(line, label)
                if not np.isnan(recalls).all():
                    rounds.setdefault(line["round"] + 1, []).append(float(np.nanmean(recalls)))
        return {"accuracy in %": kinds}

    def draw(self, lines: Sequence[dict[str, Any]]) -> None:
        """Draw bars of the last round; before aggregation, means over the clients."""
        figure, axes = plots.figure(8, 5)
        last = [line for line in lines if line["round"] == lines[-1]["round"]]
        names = self.run.class_names
        for position, label in enumerate(KINDS):
            recalls = np.stack([_percent(line, label) for line in last])
            known = (~np.isnan(recalls)).sum(axis=0)
            heights = np.nansum(recalls, axis=0) / np.where(known, known, np.nan)
            axes.bar(np.arange(len(names)) + 0.27 * (position - 1), heights, width=0.27, label=label)
        title = f"{self.run.title}: round {lines[-1]['round'] + 1}, global test set"
        axes.set(xlabel="class", ylabel="accuracy in %", title=title, ylim=(0, plots.PERCENT[1]))
        if len(names) <= 20:
            axes.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 3 else 0, ha="right")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        plots.save(figure, self.picture)


def _percent(line: dict[str, Any], label: str) -> NDArray[np.float64]:
    """Recall ``(C,)`` in % of classes of one kind, NaN for others."""
    kinds = [KINDS[2 if line["client"] is None else c not in line["held"]] for c in range(len(line["recall"]))]
    recall = np.array(line["recall"], np.float64)  # None becomes NaN
    return np.where(np.array(kinds) == label, 100 * recall, np.nan)


def norm_and_cosine(update: Tensor, aggregated: Tensor) -> tuple[float, float | None]:
    """Norm of a client's update ``(D,)``, and its cosine with the aggregated update; None if one of them is 0.

    Client drift: Karimireddy et al., SCAFFOLD, ICML 2020, https://arxiv.org/abs/1910.06378, section 3.

    >>> norm_and_cosine(torch.tensor([3.0, 4.0]), torch.tensor([2.0, 0.0]))  # 3 * 2 / (5 * 2)
    (5.0, 0.6)
    """
    a, b = update.double(), aggregated.double()
    norm, other = float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(b))
    return norm, float(a @ b) / (norm * other) if norm and other else None


class ClientDrift(Diagnostic):
    """Norms and cosines of updates."""

    def __init__(self, name: str, run: RunInfo, folder: Path) -> None:
        super().__init__(name, run, folder)
        self._parameters = [name for name, _ in run.trainer.model.named_parameters()]
        self._start: Weights = {}
        self._clients: list[int] = []
        self._updates = tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder.parent))  # noqa: SIM115

    def uploaded(self, round: int, client: int, start: Weights, upload: Weights) -> None:
        if not self._clients:
            self._updates.seek(0)
        self._start = start
        self._clients.append(client)
        self._updates.write(self._change(upload).numpy().data)

    def aggregated(self, round: int, weights: Weights) -> None:
        if not self._clients:
            return
        whole = self._change(weights)
        self._updates.seek(0)
        for client in self._clients:
            update = torch.frombuffer(bytearray(self._updates.read(4 * len(whole))), dtype=torch.float32)
            norm, cosine = norm_and_cosine(update, whole)
            self.lines.append({"client": client, "norm": norm, "cosine": cosine})
        self.lines.append({"client": None, "norm": norm_and_cosine(whole, whole)[0]})
        self._clients.clear()
        self._start = {}

    def _change(self, weights: Weights) -> Tensor:
        """Change of the parameters since the round's start, ``(D,)`` float32 on the CPU."""
        return torch.cat([(weights[name] - self._start[name]).flatten().float().cpu() for name in self._parameters])

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        clients, of_global = ([line for line in lines if (line["client"] is None) == kind] for kind in (False, True))
        return {
            "norm of the update": {"clients": by_round(clients, "norm"), "global model": by_round(of_global, "norm")},
            "cosine with the global update": {"clients": by_round(clients, "cosine")},
        }


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
        trainer = self.run.trainer
        index = some_test_samples(trainer, BATCH * BATCHES)
        features, labels = test_features(trainer, weights, index), trainer.test.y[index].cpu()
        parts = [slice(start, start + BATCH) for start in range(0, max(len(index) - BATCH, 0) + 1, BATCH)]
        values = torch.stack([eigenvalue_variance(features[part], labels[part]) for part in parts])
        values = values[~values.isnan()]
        self.lines.append({"variance": float(values.mean()) if len(values) else None})

    @classmethod
    def curves(cls, lines: Sequence[dict[str, Any]]) -> Curves:
        return {f"variance of the top {TOP} eigenvalues": {"global model, test samples": by_round(lines, "variance")}}
