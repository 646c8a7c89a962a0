"""SVHN: 73,257 + 26,032 colour images of 32x32, house numbers' digits, in MATLAB files as torchvision keeps them.

Netzer et al., "Reading digits in natural images with unsupervised feature learning", 2011. The files have label 10 for
digit 0.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, LabelSkewError, mistake

from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.files import Files, Key, one_line


class SVHN(Files):
    """SVHN, cropped digits; samples are ``(3, 32, 32)`` uint8."""

    kind = "SVHN"
    source = "torchvision.datasets.SVHN or http://ufldl.stanford.edu/housenumbers/, 182 and 64 MB, or download: true"
    class_names = tuple("0123456789")
    moments = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))  # of the training part, in wide use

    def files(self) -> Mapping[Key, str]:
        """A file for each part."""
        return {(part, "x"): f"{part}_32x32.mat" for part in ("train", "test")}

    def expected(self) -> Mapping[Key, str]:
        """The files' sizes."""
        return {("train", "x"): "182.0 MB", ("test", "x"): "64.3 MB"}

    def fetch(self, root: str) -> None:
        """Let torchvision download both files."""
        from torchvision import datasets

        for part in ("train", "test"):
            datasets.SVHN(root, split=part, download=True)

    def part(self, files: Mapping[Key, Path], part: str) -> Arrays:
        """One part, checked."""
        from scipy.io import loadmat

        path = files[part, "x"]
        try:
            content = loadmat(path, variable_names=("X", "y"))
        except Exception as error:  # scipy lets errors of many types through
            raise LabelSkewError(f"{path}: is not a sound MATLAB file ({one_line(error)}); get it again") from error
        x, y = content.get("X"), content.get("y")
        if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or not x.size:
            got = "X or y is missing" if x is None or y is None else f"X is {x.dtype} of shape {x.shape}"
            raise mistake(path, got, "X of uint8 and shape (32, 32, 3, N), and its labels y")
        if y.dtype.kind not in "iuf" or y.size != x.shape[3]:
            raise LabelSkewError(f"{path}: {y.size} labels for {x.shape[3]} images; get it again")
        labels = y.reshape(-1).astype(np.int64)
        if not 0 <= labels.min() <= labels.max() <= 10:
            bad = labels.min() if labels.min() < 0 else labels.max()
            raise mistake(path, f"has label {bad}", "labels from 1 to 10")
        return Arrays(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels % 10)

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write both files; 300 samples by default."""
        from scipy.io import savemat

        fakes.fresh_folder(out)
        for part, arrays in fakes.parts(samples, classes=10, shape=(3, 32, 32), seed=seed).items():
            labels = np.where(arrays.y == 0, 10, arrays.y).astype(np.uint8)[:, None]
            content = {"X": arrays.x.transpose(2, 3, 1, 0), "y": labels}
            savemat(out / self.files()[part, "x"], content, do_compression=True)
