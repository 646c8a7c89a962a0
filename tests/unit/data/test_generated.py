import numpy as np
import pytest
from datasets import assert_alone, load, load_test
from error_messages import message

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data.circles import CENTRES, Circles
from fl_labelskew_plugins.data.digits import Digits
from fl_labelskew_plugins.data.synthetic import Synthetic, sample_client
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
    assert len(load(Digits, test_fraction=0.5).test.y) == pytest.approx(898, abs=6)


def test_stratified_keeps_a_training_sample_of_each_class():
    train, test = stratified(np.array([0, 0, 1, 2, 2, 2]), test_fraction=0.99, seed=0, where="x")
    assert len(train) == 3
    assert sorted([*train, *test]) == list(range(6))
    line = message(lambda: stratified(np.array([0, 1, 2]), test_fraction=0.1, seed=0, where="here"))
    assert line.startswith("here: test_fraction=0.1 of 3 samples leaves no test sample; use more samples")


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


def test_synthetic_clients_are_drawn_sequentially():
    data, rng = load(Synthetic, clients=5), seeds.numpy_generator(0, "synthetic")
    sizes = [int(size) + 50 for size in rng.lognormal(4, 2, 5)]
    for k, size in enumerate(sizes):
        x, y = sample_client(size, lam=0.5, mu=0.5, rng=rng)
        for part, rows in ((data.test, slice(round(size * 0.1))), (data.train, slice(round(size * 0.1), None))):
            assert np.array_equal(part.x[part.groups == k], x[rows])
            assert np.array_equal(part.y[part.groups == k], y[rows])


def test_a_synthetic_client_is_a_logistic_model_on_inputs_of_the_papers_variances():
    x, y = sample_client(20_000, lam=0.0, mu=0.0, rng=np.random.default_rng(0))
    np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.05)
    rng = np.random.default_rng(0)
    rng.normal(0, 0, 2)
    weight, bias = rng.normal(0, 1, (60, 10)), rng.normal(0, 1, 10)
    for sample, label in zip(x[:40].tolist(), y, strict=False):
        scores = [sum(weight[j, c] * sample[j] for j in range(60)) + bias[c] for c in range(10)]
        assert int(np.argmax(np.exp(scores) / np.exp(scores).sum())) == label


def test_mu_moves_inputs_apart():
    def spread(mu):
        data = load(Synthetic, clients=30, mu=mu, lam=0.0)
        return np.std([data.train.x[data.train.groups == k].mean() for k in range(30)])

    assert spread(3.0) > 3 * spread(0.0)


def test_every_sample_lies_on_its_own_circle():
    data = load(Circles, per_class=400)
    for part, number in ((data.train, 400), (data.test, 250)):
        assert part.x.dtype == np.float32
        assert np.bincount(part.y).tolist() == [number] * 4
        np.testing.assert_allclose(np.linalg.norm(part.x - np.asarray(CENTRES)[part.y], axis=1), 0.5, rtol=1e-5)
    assert data.class_names == ["(1, 1)", "(1, -1)", "(-1, 1)", "(-1, -1)"]
    means = [data.train.x[data.train.y == c].mean(axis=0) for c in range(4)]
    assert np.abs(np.asarray(means) - CENTRES).max() < 0.1
    assert (data.mean, data.std) == ((0.0,), (1.0,))  # the network gets the positions themselves
    assert len(load(Circles).train.y) == 20000  # 5000 a class, as in the paper


@pytest.mark.parametrize("kind", [Digits, Synthetic, Circles])
def test_the_seed_determines_samples_and_the_test_part_can_be_read_separately(kind):
    whole, data, other = load(kind), load_test(kind), load(kind, seed=1)
    assert_alone(data, whole)
    assert data.train.groups is None
    assert not np.array_equal(other.test.x[:50], whole.test.x[:50])
    assert not np.array_equal(other.train.x[:50], whole.train.x[:50])
