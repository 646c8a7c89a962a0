"""FedMR's four circles."""

import functools

import datasets
import numpy as np
import pytest

from fl_labelskew_plugins.data.circles import CENTRES, Circles

load = functools.partial(datasets.load, Circles)


def test_every_sample_lies_on_its_own_circle():
    data = load(per_class=400, test_per_class=30)
    for part, number in ((data.train, 400), (data.test, 30)):
        assert part.x.dtype == np.float32
        assert part.x.shape == (4 * number, 2)
        assert np.bincount(part.y).tolist() == [number] * 4
        np.testing.assert_allclose(np.linalg.norm(part.x - np.asarray(CENTRES)[part.y], axis=1), 0.5, rtol=1e-5)
    assert data.class_names == ["(1, 1)", "(1, -1)", "(-1, 1)", "(-1, -1)"]
    means = [data.train.x[data.train.y == c].mean(axis=0) for c in range(4)]
    assert np.abs(np.asarray(means) - CENTRES).max() < 0.1
    assert (data.mean, data.std) == ((0.0,), (1.0,))  # the network gets the positions themselves
    assert len(load().train.y) == 20000  # 5000 a class, as in the paper


def test_a_filled_circle_is_even_over_its_area():
    data = load(per_class=4000, filled=True)
    radius = np.linalg.norm(data.train.x - np.asarray(CENTRES)[data.train.y], axis=1)
    assert radius.max() <= 0.5 + 1e-6
    assert (radius < 0.25).mean() == pytest.approx(0.25, abs=0.02)  # a quarter of the area


def test_the_seed_decides_and_parts_differ():
    one, two = load(per_class=50), load(seed=1, per_class=50)
    assert np.array_equal(one.train.x, load(per_class=50).train.x)
    assert not np.array_equal(one.train.x, two.train.x)
    assert not np.isin(one.test.x[:, 0], one.train.x[:, 0]).any()
