"""A seeded, stratified split, for data sets that come without a test part."""

import numpy as np
from fl_labelskew_registry import mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds


def stratified(
    labels: NDArray[np.int64], *, test_fraction: float, seed: int, where: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted indices of the training and of the test samples, by their ``labels`` ``(N,)``, ``N > 0``.

    Of each class, ``round(n_c * test_fraction)`` samples go to test, but at least one stays in training.

    Raises:
        LabelSkewError: the test part would be empty.
    """
    rng = seeds.numpy_generator(seed, "test split")
    test = []
    for c in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == c))
        test.append(samples[: min(round(len(samples) * test_fraction), len(samples) - 1)])
    chosen = np.sort(np.concatenate(test)).astype(np.int64)
    if not len(chosen):
        empty = f"test_fraction={test_fraction:g} of {len(labels)} samples leaves no test sample"
        raise mistake(where, empty, "more samples of a class, a larger test_fraction or a separate test part")
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen
