"""Data sets that need no files: digits and synthetic."""

import numpy as np
import pytest
from datasets import assert_alone, load, load_test
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data.digits import Digits
from fl_labelskew_plugins.data.synthetic import Synthetic, sample_client
from fl_labelskew_plugins.partition.clients import divide
from fl_labelskew_plugins.partition.natural import Natural
from fl_labelskew_plugins.partition.stratified import stratified


def test_digits():
    data = load(Digits)
    assert data.train.x.shape[1:] == (1, 8, 8)
    assert data.train.x.dtype == np.float32
    assert (data.train.x.min(), data.train.x.max()) == (0, 1)
    assert len(data.train.y) + len(data.test.y) == 1797
    everything = np.concatenate([data.train.x, data.test.x])
    assert data.mean == (pytest.approx(float(everything.mean()), abs=1e-4),)
    assert data.std == (pytest.approx(float(everything.std()), abs=1e-4),)
    share = np.bincount(data.test.y) / np.bincount(np.concatenate([data.train.y, data.test.y]))
    assert np.abs(share - 0.2).max() < 0.005
    assert np.array_equal(load(Digits).test.x, data.test.x)
    assert not np.array_equal(load(Digits, seed=1).test.x, data.test.x)
    assert len(load(Digits, test_fraction=0.5).test.y) == pytest.approx(898, abs=6)


def test_stratified_keeps_a_training_sample_of_each_class():
    train, test = stratified(np.array([0, 0, 1, 2, 2, 2]), test_fraction=0.99, seed=0, where="x")
    assert len(train) == 3
    assert sorted([*train, *test]) == list(range(6))
    with pytest.raises(
        LabelSkewError, match=r"^here: test_fraction=0.1 of 3 samples leaves no test sample; use more samples"
    ):
        stratified(np.array([0, 1, 2]), test_fraction=0.1, seed=0, where="here")


def test_synthetic():
    data = load(Synthetic, clients=20, lam=1.0, mu=1.0)
    assert data.train.x.shape[1:] == (60,)
    assert data.train.x.dtype == np.float32
    assert data.train.groups.dtype == data.train.y.dtype == np.int64
    train, test = np.bincount(data.train.groups), np.bincount(data.test.groups)
    assert len(train) == len(test) == 20
    assert (train + test).min() >= 50
    assert np.abs(test - 0.1 * (train + test)).max() <= 0.5
    assert np.median(train) < train.mean()  # a heavy tail
    assert set(data.train.y) <= set(range(10))
    assert np.array_equal(load(Synthetic, clients=20, lam=1.0, mu=1.0).train.x, data.train.x)
    assert not np.array_equal(load(Synthetic, seed=1).train.x[:50], load(Synthetic).train.x[:50])
    clients = divide(data, Natural(), clients=20, seed=0)
    assert [len(p) for p in clients.test] == test.tolist()
    with pytest.raises(LabelSkewError, match="has 20 groups; use client_num_in_total=20"):
        divide(data, Natural(), clients=10, seed=0)


def test_synthetic_clients_are_drawn_one_after_the_other():
    data, rng = load(Synthetic, clients=5, test_fraction=0.3, min_samples=2), seeds.numpy_generator(0, "synthetic")
    sizes = [int(size) + 2 for size in rng.lognormal(4, 2, 5)]
    for k, size in enumerate(sizes):
        x, y = sample_client(size, lam=0.5, mu=0.5, common=None, rng=rng)
        cut = min(max(round(size * 0.3), 1), size - 1)
        for part, rows in ((data.test, slice(cut)), (data.train, slice(cut, None))):
            assert np.array_equal(part.x[part.groups == k], x[rows])
            assert np.array_equal(part.y[part.groups == k], y[rows])


def test_synthetic_inputs_have_the_papers_variances():
    data = load(Synthetic, clients=4, iid=True, min_samples=5000)
    assert np.abs(data.train.x.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(data.train.x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.05)
    shares = [
        np.bincount(data.train.y[data.train.groups == k], minlength=10) / (data.train.groups == k).sum()
        for k in range(4)
    ]
    assert np.ptp(shares, axis=0).max() < 0.05  # one distribution for all


def test_synthetic_labels_are_those_of_a_logistic_model():
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((60, 10)), rng.standard_normal(10)
    x, y = sample_client(40, lam=0.0, mu=0.0, common=(weight, bias), rng=rng)
    for sample, label in zip(x.tolist(), y, strict=True):
        scores = [sum(weight[j, c] * sample[j] for j in range(60)) + bias[c] for c in range(10)]
        softmax = np.exp(scores) / np.exp(scores).sum()
        assert int(np.argmax(softmax)) == label


def test_synthetic_sizes_follow_the_power_law():
    data = load(Synthetic, clients=200)
    sizes = np.bincount(data.train.groups) + np.bincount(data.test.groups) - 50
    logs = np.log(sizes + 0.5)  # rounded down
    assert logs.mean() == pytest.approx(4, abs=3 * 2 / 200**0.5)
    assert logs.std() == pytest.approx(2, abs=0.3)
    assert np.sort(sizes)[-20:].sum() > 0.5 * sizes.sum()  # a tenth of the clients has most of the samples


def test_mu_moves_inputs_apart():
    def spread(mu):
        data = load(Synthetic, clients=30, mu=mu, lam=0.0)
        return np.std([data.train.x[data.train.groups == k].mean() for k in range(30)])

    assert spread(3.0) > 3 * spread(0.0)


@pytest.mark.parametrize("kind", [Digits, Synthetic])
def test_the_test_part_alone(kind):
    whole, data = load(kind), load_test(kind)
    assert_alone(data, whole)
    assert data.train.groups is None
