"""Digits: 1,797 grey images of 8x8 in 10 classes, part of scikit-learn, so that nothing is downloaded."""

from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset
from pydantic import Field

from fl_labelskew_plugins.data.fingerprint import NO_FILES
from fl_labelskew_plugins.data.split import stratified
from fl_labelskew_plugins.params import Params


class Digits(Dataset):
    """Scikit-learn's digits; pixels 0..16 are scaled to 0..1, samples are ``(1, 8, 8)`` float32."""

    class Params(Params):
        """Parameters of digits."""

        test_fraction: float = Field(0.2, gt=0, lt=1, description="Share of each class that is the test part.")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Load the images; ``seed`` chooses the test part, ``data_dir`` is not used."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        x = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        y = labels.astype(np.int64)
        train, test = stratified(y, test_fraction=self.params.test_fraction, seed=seed, where="data set digits")
        names = [str(c) for c in range(10)]
        parts = [Arrays(x[rows], y[rows]) for rows in (train, test)]
        return Data(parts[0], parts[1], names, mean=(0.3053,), std=(0.3761,), fingerprint=NO_FILES)
