"""Classification measures."""

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor


def confusion(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Confusion matrix ``(C, C)`` int64 from ``(N,)`` int64; ``[c, p]``: samples of class c predicted as p."""
    return torch.bincount(labels * num_classes + predicted, minlength=num_classes**2).reshape(num_classes, num_classes)


def measures(matrix: Tensor, observed: Tensor | None = None) -> dict[str, object]:
    """Measures of a confusion matrix ``(C, C)``, over classes with test samples; None without samples.

    ``balanced_accuracy`` is the mean recall. ``observed``: ``(C,)`` bool, classes that some client of the round holds,
    for ``observed_accuracy`` and ``missing_accuracy``.
    """
    matrix = matrix.double()
    right, support, predicted = matrix.diag(), matrix.sum(1), matrix.sum(0)
    occurs = support > 0
    recall = right / support.clamp_min(1)
    f1 = 2 * right / (support + predicted).clamp_min(1)
    result: dict[str, object] = {
        "accuracy": float(right.sum() / support.sum()),
        "balanced_accuracy": float(recall[occurs].mean()),
        "macro_f1": float(f1[occurs].mean()),
        "recall": [float(r) if o else None for r, o in zip(recall, occurs, strict=True)],
    }
    if observed is not None:
        for name, mask in (("observed", observed), ("missing", ~observed)):
            total = float(support[mask].sum())
            result[f"{name}_accuracy"] = float(right[mask].sum()) / total if total else None
    return result


def pooled(right: int, samples: int) -> dict[str, object]:
    """Accuracy over all clients' test samples together; empty without samples."""
    return {"client_accuracy_pooled": right / samples, "client_test_samples": samples} if samples else {}


def over_clients(key: str, values: Sequence[float | None], names: Sequence[str]) -> dict[str, object]:
    """A measure of each client, in order, with mean, std, worst value and worst client of those that have one.

    >>> over_clients("recall", [0.75, None, 0.25], ["north", "south", "coast"])["recall_worst_client"]
    'coast'
    """
    known = [(value, name) for value, name in zip(values, names, strict=True) if value is not None]
    if not known:
        return {key: list(values)}
    numbers, (worst, name) = [value for value, _ in known], min(known, key=lambda pair: pair[0])
    return {
        key: list(values),
        f"{key}_mean": statistics.fmean(numbers),
        f"{key}_std": statistics.pstdev(numbers),
        f"{key}_worst": worst,
        f"{key}_worst_client": name,
    }
