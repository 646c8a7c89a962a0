import functools

import error_messages
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_labelskew_plugins.partition.dirichlet import Dirichlet, dirichlet
from fl_labelskew_plugins.partition.iid import iid
from fl_labelskew_plugins.partition.natural import Natural
from fl_labelskew_plugins.partition.pcdd import PCDD, assign_classes, assign_niid_bench, pcdd
from fl_labelskew_plugins.partition.quantity import quantity
from fl_labelskew_plugins.partition.shards import shards

FEW = settings(max_examples=60, deadline=None)


def rng(seed=0):
    return np.random.default_rng(seed)


def shuffled(sizes, seed=0):
    return rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)


def check(parts, samples, clients):
    assert len(parts) == clients
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) >= 1
        assert (np.diff(part) > 0).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


def dealt_twice(deal, labels, clients, seed, **options):
    """A partition's parts, after a check that they contain all samples and are equal for the same seed."""
    parts, again = (deal(labels, clients=clients, rng=rng(seed), **options) for _ in range(2))
    check(parts, len(labels), clients)
    assert same(parts, again)
    return parts


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


message = functools.partial(error_messages.message, says=("; use ", "; make "))


@st.composite
def pcdd_cases(draw):
    classes, clients = draw(st.integers(1, 12)), draw(st.integers(1, 15))
    lowest = -(-classes // clients)
    held = draw(st.integers(lowest, classes))
    sizes = draw(st.lists(st.integers(clients, 40), min_size=classes, max_size=classes))
    return shuffled(sizes, draw(st.integers(0, 9))), classes, clients, held, draw(st.integers(0, 2**32))


@FEW
@given(pcdd_cases())
def test_pcdd_is_a_partition_with_a_fixed_number_of_classes(case):
    """Each sample has one owner; the authors' loop ran twice, so that each was in two clients."""
    labels, classes, clients, held, seed = case
    parts = dealt_twice(pcdd, labels, clients, seed, classes_per_client=held)
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
    assert ((counts > 0).sum(axis=1) == held).all()
    for c in range(classes):
        sizes = counts[:, c][counts[:, c] > 0]
        assert len(sizes) >= 1
        assert sizes.max() - sizes.min() <= 1


def test_pcdd_of_fedmr_c_1_2():
    """CIFAR100 at P10C30: 1-30, 31-60, 61-90, then 91-100 and 20 random ones; the others are all random."""
    held = assign_classes(100, 10, 30, rng())
    assert held[:3] == [list(range(30)), list(range(30, 60)), list(range(60, 90))]
    assert held[3][:10] == list(range(90, 100))
    assert all(len(set(client)) == 30 for client in held)
    assert assign_classes(100, 10, 30, rng(1))[5] != held[5]
    first, second = (pcdd(shuffled([50] * 100), clients=10, classes_per_client=30, rng=rng(s)) for s in (0, 1))
    assert not same(first, second)


def test_pcdd_ignores_classes_without_samples():
    parts = pcdd(np.array([5, 5, 9, 9]), clients=2, classes_per_client=1, rng=rng())
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3]]


def test_pcdd_errors():
    labels = shuffled([20] * 10)
    assert "classes_per_client=5 or more" in message(lambda: pcdd(labels, clients=2, classes_per_client=4, rng=rng()))
    assert "10 classes; use 10 or less" in message(lambda: pcdd(labels, clients=2, classes_per_client=11, rng=rng()))
    assert "3 training samples" in message(lambda: pcdd(np.arange(3), clients=4, classes_per_client=1, rng=rng()))
    assert "0 clients" in message(lambda: pcdd(labels, clients=0, classes_per_client=1, rng=rng()))
    few = np.array([0] * 9 + [1])
    assert "gets no sample" in message(lambda: pcdd(few, clients=9, classes_per_client=1, rng=rng(2)))
    assert [len(p) for p in pcdd(few, clients=3, classes_per_client=2, rng=rng())] == [4, 3, 3]


def naive_label_quantity(labels, clients, held, rng):
    """NIID-Bench's "#C = k", step by step, in the order of random numbers of Flower's baseline."""
    classes = len(set(labels.tolist()))
    chosen = []
    for client in range(clients):
        mine = [client % classes]
        while len(mine) < held:
            drawn = int(rng.choice(classes))
            if drawn not in mine:
                mine.append(drawn)
        chosen.append(mine)
    parts = [[] for _ in range(clients)]
    for c in range(classes):
        samples = np.flatnonzero(labels == c)
        rng.shuffle(samples)
        holders = [client for client in range(clients) if c in chosen[client]]
        for holder, piece in zip(holders, np.array_split(samples, len(holders)), strict=True):
            parts[holder].extend(piece.tolist())
    return [np.sort(part) for part in parts]


def naive_capped_dirichlet(labels, clients, beta, least, rng):
    """NIID-Bench's Dirichlet partition, step by step: a client with its share of all samples gets nothing more."""
    while True:
        parts = [[] for _ in range(clients)]
        for c in sorted(set(labels.tolist())):
            samples = np.flatnonzero(labels == c)
            rng.shuffle(samples)
            weights = rng.dirichlet([beta] * clients)
            weights = np.array(
                [w if len(p) < len(labels) / clients else 0.0 for w, p in zip(weights, parts, strict=True)]
            )
            ends = (np.cumsum(weights / weights.sum()) * len(samples)).astype(int)
            begin = 0
            for client, end in enumerate([*ends[:-1], len(samples)]):
                parts[client].extend(samples[begin:end].tolist())
                begin = end
        if min(map(len, parts)) >= least:
            return [np.sort(part) for part in parts]


@pytest.mark.parametrize(("classes", "clients", "held"), [(10, 10, 1), (10, 10, 2), (10, 10, 3), (4, 9, 3), (5, 5, 5)])
@pytest.mark.parametrize("seed", [0, 42])
def test_pcdd_niid_bench_draws_the_clients_of_flowers_baseline(classes, clients, held, seed):
    labels = shuffled([30] * classes, seed)
    options = {"clients": clients, "classes_per_client": held, "assignment": "niid_bench"}
    theirs = naive_label_quantity(labels, clients, held, rng(seed))
    assert same(dealt_twice(pcdd, labels, seed=seed, **options), theirs)
    params = {"classes_per_client": held, "assignment": "niid_bench", "partition_seed": seed}
    assert same(PCDD(PCDD.Params(**params)).split(labels, None, clients=clients, rng=rng(7)), theirs)


def test_pcdd_niid_bench_names_a_class_without_client():
    """Two clients of two of four classes may hold a class twice; fedmr deals all classes first."""
    labels = shuffled([20] * 4)
    options = {"clients": 2, "classes_per_client": 2, "assignment": "niid_bench"}
    assert assign_niid_bench(4, 2, 2, rng(1)) == [[0, 1], [1, 2]]
    text = message(lambda: pcdd(labels, **options, rng=rng(1)))
    assert "no client holds class 3" in text
    assert "use assignment=fedmr or 4 clients" in text


@pytest.mark.parametrize("seed", [0, 42])
@pytest.mark.parametrize(("beta", "least"), [(0.5, 10), (0.1, 2), (5.0, 1)])
def test_dirichlet_capped_draws_the_clients_of_flowers_baseline(seed, beta, least):
    labels = shuffled([70, 60, 50, 90, 40, 80, 70, 30, 20, 90], seed)
    options = {"clients": 10, "beta": beta, "min_samples": least, "capped": True}
    theirs = naive_capped_dirichlet(labels, 10, beta, least, rng(seed))
    assert same(dealt_twice(dirichlet, labels, seed=seed, **options), theirs)
    params = {"beta": beta, "min_samples": least, "capped": True, "partition_seed": seed}
    assert same(Dirichlet(Dirichlet.Params(**params)).split(labels, None, clients=10, rng=rng(7)), theirs)


def test_dirichlet_capped_stays_finite_at_a_tiny_beta():
    parts = dirichlet(shuffled([50] * 10), clients=5, beta=1e-4, min_samples=1, capped=True, rng=rng())
    check(parts, 500, 5)


@FEW
@given(
    classes=st.integers(1, 8),
    clients=st.integers(1, 12),
    factor=st.integers(1, 3),
    size=st.integers(36, 60),
    seed=st.integers(0, 2**32),
)
def test_shards_is_a_partition_with_at_most_that_many_classes(classes, clients, factor, size, seed):
    dealt = classes * factor // np.gcd(classes, clients)  # so that clients * dealt is a multiple of the classes
    labels = shuffled([size * factor] * classes, seed % 5)
    if clients * dealt // classes > size * factor:
        return
    parts = shards(labels, clients=clients, shards_per_client=int(dealt), rng=rng(seed))
    check(parts, len(labels), clients)
    assert all(len(np.unique(labels[part])) <= dealt for part in parts)


def test_shards_of_fedrs():
    """C10-100-5: 50 shards of 100 samples a class, 5 a client: 500 samples each, and some client has a class twice."""
    labels = shuffled([5000] * 10)
    parts = shards(labels, clients=100, shards_per_client=5, rng=rng())
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
    assert (counts.sum(axis=1) == 500).all()
    assert (counts % 100 == 0).all()
    assert counts.max() >= 200


def test_shards_errors():
    labels = shuffled([20] * 10)
    assert "multiple of 10" in message(lambda: shards(labels, clients=3, shards_per_client=1, rng=rng()))
    tiny = np.array([0, 0, 0, 0, 0, 1])
    assert "gets no sample" in message(lambda: shards(tiny, clients=6, shards_per_client=1, rng=rng()))


@FEW
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    clients=st.integers(1, 8),
    dealt=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_quantity_is_a_partition_into_contiguous_label_ranges(sizes, clients, dealt, seed):
    labels = shuffled(sizes, seed % 5)
    if clients * dealt > len(labels):
        assert " or less" in message(lambda: quantity(labels, clients=clients, sets_per_client=dealt, rng=rng(seed)))
        return
    parts = dealt_twice(quantity, labels, clients, seed, sets_per_client=dealt)
    assert np.ptp([len(part) for part in parts]) <= dealt


def test_quantity_of_fedlc():
    """Q(2) with even classes: each client has at most two classes, and all have the same number of samples."""
    labels = shuffled([100] * 10)
    parts = quantity(labels, clients=10, sets_per_client=2, rng=rng())
    assert {len(part) for part in parts} == {100}
    assert max(len(np.unique(labels[part])) for part in parts) == 2
    assert not same(parts, quantity(labels, clients=10, sets_per_client=2, rng=rng(1)))


@FEW
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    clients=st.integers(1, 8),
    beta=st.sampled_from([0.3, 1.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_is_a_partition(sizes, clients, beta, seed):
    labels = shuffled(sizes, seed % 5)
    if len(labels) >= 20 * clients:
        dealt_twice(dirichlet, labels, clients, seed, beta=beta)


def test_dirichlet_follows_beta():
    labels = shuffled([1000] * 10)
    spread = []
    for beta in (0.05, 0.5, 100.0):
        parts = dirichlet(labels, clients=10, beta=beta, rng=rng())
        counts = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
        spread.append((counts / counts.sum(axis=1, keepdims=True)).max(axis=1).mean())
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 0.2


def test_dirichlet_min_samples():
    labels = shuffled([100] * 10)
    parts = dirichlet(labels, clients=10, beta=0.1, min_samples=20, rng=rng())
    assert min(map(len, parts)) >= 20
    line = message(lambda: dirichlet(labels, clients=10, beta=0.1, min_samples=101, rng=rng()))
    assert "; use min_samples=100 or less" in line
    text = message(lambda: dirichlet(labels, clients=100, beta=0.01, min_samples=5, rng=rng()))
    assert "no draw of 1000" in text


@FEW
@given(samples=st.integers(1, 200), clients=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_iid_is_a_partition_into_equal_parts(samples, clients, seed):
    labels = np.zeros(samples, np.int64)
    if clients > samples:
        line = message(lambda: iid(labels, clients=clients, rng=rng(seed)))
        assert f"; use client_num_in_total={samples} or less" in line
        return
    parts = dealt_twice(iid, labels, clients, seed)
    assert np.ptp([len(part) for part in parts]) <= 1


def test_natural():
    def natural(groups, clients):
        return Natural().split(None, groups, clients=clients, rng=None)

    parts = natural(np.array([7, 3, 7, 3, 40]), clients=3)
    assert [part.tolist() for part in parts] == [[1, 3], [0, 2], [4]]
    assert "has no groups" in message(lambda: natural(None, clients=2))
    assert "has 3 groups; use client_num_in_total=3" in message(lambda: natural(np.array([1, 2, 3]), clients=2))
