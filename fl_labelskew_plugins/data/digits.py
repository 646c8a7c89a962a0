"""Digits: 1,797 grey images of 8x8 in 10 classes, from scikit-learn."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from fl_labelskew_registry import Arrays, Data, Dataset
from pydantic import Field

from fl_labelskew_plugins import params
from fl_labelskew_plugins.data.fingerprint import NO_FILES
from fl_labelskew_plugins.partition.stratified import stratified


class Digits(Dataset):
    """Scikit-learn's digits; pixels 0..16 are scaled to 0..1, samples are ``(1, 8, 8)`` float32."""

    class Params(params.Params):
        test_fraction: float = Field(0.2, gt=0, lt=1, description="Share of each class in the test part.")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        table = _table()
        x = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        y = table[:, -1].astype(np.int64)
        split = stratified(y, test_fraction=self.params.test_fraction, seed=seed, where="data set digits")
        names = [str(c) for c in range(10)]
        train, test = (Arrays(x[rows], y[rows]) for rows in split)
        return Data(train, test, names, mean=(0.3053,), std=(0.3761,), fingerprint=NO_FILES)


@cache
def _table() -> npt.NDArray[np.float64]:
    """Rows of 64 pixels and a label. Reading the text takes a tenth of a short run."""
    spec = find_spec("sklearn")  # an import would take seconds
    assert spec is not None
    assert spec.submodule_search_locations
    return np.loadtxt(Path(spec.submodule_search_locations[0], "datasets/data/digits.csv.gz"), delimiter=",")
