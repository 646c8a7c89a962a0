"""Each hospital's own data and the server's test data, from scikit-learn's digits: no sample is in two files."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TENTHS = {  # of the training samples of class 0, 1, ... 9
    "north": [10, 10, 8, 6, 2, 0, 0, 0, 0, 0],
    "south": [0, 0, 0, 2, 6, 8, 10, 10, 0, 0],
    "coast": [0, 0, 2, 2, 2, 2, 0, 0, 10, 10],
}


def main() -> None:
    """Write ``data/``."""
    digits = load_digits()
    x, y = digits.images.astype(np.float32), digits.target
    order = np.random.default_rng(0).permutation(len(y))
    parts = {name: [] for name in ("server", *TENTHS)}
    for c in range(10):
        samples = order[y[order] == c]
        test = len(samples) // 5
        cuts = np.cumsum([tenths[c] for tenths in TENTHS.values()]) * (len(samples) - test) // 10
        for name, part in zip(parts, np.split(samples, [test, *(test + cuts[:-1])]), strict=True):
            parts[name].append(part)
    folder = Path(__file__).with_name("data")
    folder.mkdir(exist_ok=True)
    for name, chosen in parts.items():
        index = np.concatenate(chosen)
        keys = ("x_test", "y_test") if name == "server" else ("x", "y")
        np.savez(folder / f"{name}.npz", **dict(zip(keys, (x[index], y[index]), strict=True)))
        counts = np.bincount(y[index], minlength=10)
        print(f"data/{name}.npz: {len(index)} samples, of classes 0 to 9: {' '.join(map(str, counts))}")


main()
