"""Somebody's own data, small and real: pictures of three hospitals, an archive and a table."""

import csv

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = ("benign", "malign", "unclear")
SHARES = {"St. Mary's": (12, 0, 8), "north": (8, 8, 4), "south": (4, 12, 4)}
"""Pictures of each class; a fifth of them are for tests."""


def picture(path, pixels, size=(45, 40), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * 15).astype(np.uint8)).resize(size).convert(mode).save(path)


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """``tree`` (hospitals), ``flat`` (only classes), ``grouped.npz``, ``table.csv``."""
    folder, digits = tmp_path_factory.mktemp("own"), load_digits()
    x, y = digits.images, digits.target
    for hospital, shares in SHARES.items():
        for label, share in enumerate(shares):
            for number, i in enumerate(np.flatnonzero(y == label)[:share]):
                part = "test" if number % 4 == 0 else "train"
                picture(folder / "tree" / hospital / part / CLASSES[label] / f"{i}.png", x[i])
                picture(folder / "flat" / CLASSES[label] / f"{hospital[0]}{i}.png", x[i])
    some = np.flatnonzero(y < 3)[:90]
    groups = np.array(["north", "south", "coast"])[np.arange(90) % 3]
    np.savez(folder / "grouped.npz", x=x[some].astype(np.float32), y=y[some], groups=groups)
    rng = np.random.default_rng(0)
    with (folder / "table.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["patient_id", "age", "sex", "pressure", "hospital", "diagnosis"])
        for i in range(120):
            label = int(rng.integers(3))
            age, pressure = 40 + 10 * label + 5 * rng.standard_normal(), 120 - 20 * label + 9 * rng.standard_normal()
            hospital = ("north", "south", "coast")[i % 3]
            lines.writerow(
                [f"p{i}", round(age, 1), "mf"[i % 2], round(pressure, 1) if i % 17 else "", hospital, CLASSES[label]]
            )
    return folder


@pytest.fixture
def table(own):
    return own / "table.csv"
