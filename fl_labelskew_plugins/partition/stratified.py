"""A seeded, stratified split, for data sets without a test part."""

from dataclasses import replace
from typing import Any

import numpy as np
from fl_labelskew_registry import Arrays, Images, mistake

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.partition.base import Indices


def stratified(
    labels: Indices, groups: Indices | None = None, *, test_fraction: float, seed: int, where: str
) -> tuple[Indices, Indices]:
    """Sorted indices of the training and of the test samples, from ``labels`` ``(N,)``, ``N > 0``.

    ``round(n_c * test_fraction)`` samples of each class go to test, but at least one stays in training. With ``groups``
    ``(N,)``, each group is split separately. Raise LabelSkewError for an empty test part.
    """
    chosen = drawn(labels, groups, test_fraction=test_fraction, seed=seed)
    if not len(chosen):
        problem = f"test_fraction={test_fraction:g} of {len(labels)} samples leaves no test sample"
        raise mistake(where, problem, "more samples of a class, a larger test_fraction or a separate test part")
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def drawn(labels: Indices, groups: Indices | None = None, *, test_fraction: float, seed: int) -> Indices:
    """The test samples of :func:`stratified`; may be empty."""
    chosen = [np.zeros(0, np.int64)]
    for group in (None,) if groups is None else np.unique(groups):
        members = np.arange(len(labels)) if groups is None else np.flatnonzero(groups == group)
        rng = seeds.numpy_generator(seed, "test split")
        for c in np.unique(labels[members]):
            samples = rng.permutation(members[labels[members] == c])
            chosen.append(samples[: min(round(len(samples) * test_fraction), len(samples) - 1)])
    return np.sort(np.concatenate(chosen))


def picked(part: Arrays, rows: Indices) -> Arrays:
    """Some samples of a part."""
    return Arrays(part.x[rows], part.y[rows], None if part.groups is None else part.groups[rows])


def joined(*parts: Arrays) -> Arrays:
    """Concatenated parts; with groups if all have them."""
    y, groups = np.concatenate([part.y for part in parts]), [part.groups for part in parts if part.groups is not None]
    if isinstance(first := parts[0].x, Images):
        x: Any = replace(first, files=[file for part in parts for file in part.x.files])
    else:
        x = np.concatenate([part.x for part in parts])
    return Arrays(x, y, np.concatenate(groups) if len(groups) == len(parts) else None)
