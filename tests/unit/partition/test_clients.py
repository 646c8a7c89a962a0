import json
from dataclasses import replace

import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import Arrays, Data, Partitioner
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_labelskew_plugins.partition.clients import digest, divide, largest_remainder, proportional_test
from fl_labelskew_plugins.partition.dirichlet import Dirichlet
from fl_labelskew_plugins.partition.iid import IID
from fl_labelskew_plugins.partition.natural import Natural
from fl_labelskew_plugins.partition.pcdd import PCDD


def data(train=(40, 30, 20), test=(8, 8, 8), groups=None, test_groups=None):
    def part(sizes, numbers):
        y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)
        return Arrays(np.zeros((len(y), 1), np.float32), y, numbers)

    return Data(part(train, groups), part(test, test_groups), [str(c) for c in range(len(train))])


class Fixed(Partitioner):
    def __init__(self, parts):
        self.parts = parts

    def split(self, labels, groups, *, clients, rng):
        return self.parts


def test_divide_counts_and_record():
    whole = data()
    clients = divide(whole, PCDD(PCDD.Params(classes_per_client=2)), clients=3, seed=5)
    assert clients.counts.dtype == np.int64
    assert clients.counts.sum(axis=0).tolist() == [40, 30, 20]
    for k in range(3):
        assert clients.counts[k].tolist() == np.bincount(whole.train.y[clients.train[k]], minlength=3).tolist()
        assert clients.test_counts[k].tolist() == np.bincount(whole.test.y[clients.test[k]], minlength=3).tolist()
        assert ((clients.counts[k] > 0) >= (clients.test_counts[k] > 0)).all()
    dealt = np.concatenate(clients.test)
    assert len(np.unique(dealt)) == len(dealt) == 24
    assert all(np.shares_memory(part, clients.train.indices) for part in clients.train)
    record = json.loads(clients.record())
    assert str(clients.counts[1].tolist()) in clients.record().splitlines()[4]
    assert record["counts"] == clients.counts.tolist()
    assert record["test_counts"] == clients.test_counts.tolist()
    assert record["digest"] == clients.digest


def test_divide_depends_only_on_the_seed():
    kind = Dirichlet(Dirichlet.Params(beta=0.5))
    first = divide(data(), kind, clients=4, seed=1)
    np.random.seed(3)
    assert divide(data(), kind, clients=4, seed=1).digest == first.digest
    assert divide(data(), kind, clients=4, seed=2).digest != first.digest


def test_digest_is_fixed():
    train, test = [np.array([0, 2]), np.array([1])], [np.array([], np.int64), np.array([0])]
    # sha256 of the int64 2; 2, 0, 2; 1, 1; 2; 0; 1, 0
    assert digest(train, test) == "00ff1bd535c26aa464b129f988bbd819d13fa51b8851800dd561b5747bdc8a7b"
    assert digest([p.astype(np.int32) for p in train], test) == digest(train, test)
    assert digest([np.array([0]), np.array([2, 1])], test) != digest(train, test)
    assert digest([np.array([0, 3]), np.array([1])], test) != digest(train, test)
    assert digest(train, [np.array([0]), np.array([], np.int64)]) != digest(train, test)


@settings(max_examples=80, deadline=None)
@given(total=st.integers(0, 1000), weights=st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_largest_remainder(total, weights):
    weights = np.array(weights, np.int64)
    shares = largest_remainder(total, weights)
    if not weights.any():
        assert not shares.any()
        return
    assert shares.sum() == total
    assert (np.abs(shares - total * weights / weights.sum()) < 1).all()
    assert (shares[weights == 0] == 0).all()


def test_local_test_split_is_proportional():
    labels = np.repeat([0, 1, 2], [10, 10, 10])
    counts = np.array([[30, 0, 0], [10, 5, 0], [10, 5, 0]])
    parts = proportional_test(labels, counts, np.random.default_rng(0))
    assert [np.bincount(labels[p], minlength=3).tolist() for p in parts] == [[6, 0, 0], [2, 5, 0], [2, 5, 0]]
    assert len(np.unique(np.concatenate(parts))) == 20
    assert all((np.diff(p) > 0).all() for p in parts)
    clients = divide(data(train=(50,), test=(1,)), IID(), clients=5, seed=0)
    assert [len(p) for p in clients.test] == [1, 0, 0, 0, 0]


def test_whole_groups_keep_their_own_test_samples():
    groups, test_groups = np.repeat([4, 2, 9], 30), np.tile([9, 4, 4, 1], 6)
    whole = data(groups=groups, test_groups=test_groups)
    clients = divide(whole, Natural(), clients=3, seed=0)
    assert [set(groups[p]) for p in clients.train] == [{2}, {4}, {9}]
    assert [p.tolist() for p in clients.test] == [np.flatnonzero(test_groups == g).tolist() for g in (2, 4, 9)]
    mixed = divide(whole, IID(), clients=3, seed=0)
    assert sum(map(len, mixed.test)) == 24
    without = divide(data(groups=groups), Natural(), clients=3, seed=0)
    assert sum(map(len, without.test)) == 24


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (None, "returned NoneType; use a list of 2"),
        ([np.arange(5)], "returned 1 parts; use a list of 2"),
        ([np.arange(5), np.array([], np.int64)], "client 1 has int64 of shape (0,)"),
        ([np.arange(5), np.array([1.0])], "client 1 has float64"),
        ([np.arange(5), np.ones((2, 2), np.int64)], "shape (2, 2)"),
        ([np.arange(5), np.array([90])], "indices 90 to 90; use indices from 0 to 89"),
        ([np.arange(5), np.array([-1, 7])], "indices -1 to 7"),
        ([np.arange(5), np.array([7, 7])], "client 1 has sample 7 twice"),
        ([np.arange(5), np.array([8, 3])], "sample 3 is in clients 0 and 1"),
    ],
)
def test_a_wrong_partitioner_is_named(parts, says):
    text = message(lambda: divide(data(), Fixed(parts), clients=2, seed=0))
    assert says in text
    assert f"{__name__}:Fixed" in text
    assert "; use " in text or "; give " in text


def test_parts_are_sorted_and_may_omit_samples():
    clients = divide(data(), Fixed([[4, 1], np.array([9], np.uint8)]), clients=2, seed=0)
    assert [p.tolist() for p in clients.train] == [[1, 4], [9]]
    assert clients.counts.sum() == 3


def test_labels_beyond_the_class_names():
    whole = data()
    whole.class_names.pop()
    line = message(lambda: divide(whole, IID(), clients=2, seed=0))
    assert "training labels are 0 to 2, but there are 2 class names; use labels from 0 to 1" in line


GROUPS = np.repeat([0, 2, 1], 30)


def test_clients_equal_to_groups_have_their_names():
    whole = replace(data(groups=GROUPS), group_names=["coast", "north", "so\x1buth"])
    clients = divide(whole, Natural(), clients=3, seed=0)
    assert clients.names == json.loads(clients.record())["clients"] == ["coast", "north", "so?uth"]
    assert clients.groups == {0: "coast", 1: "north", 2: "so?uth"}
    parts = [np.flatnonzero(GROUPS == 2), np.flatnonzero(GROUPS == 0)]
    assert divide(whole, Fixed(parts), clients=2, seed=0).names == ["so?uth", "coast"]
    for clients in (
        divide(whole, IID(), clients=3, seed=0),  # no whole groups
        divide(data(groups=GROUPS), Natural(), clients=3, seed=0),  # no names
        divide(replace(whole, group_names=["a", "b", "a"]), Natural(), clients=3, seed=0),
        divide(replace(whole, group_names=["a", "b"]), Natural(), clients=3, seed=0),
    ):
        assert (clients.names, clients.groups) == (["0", "1", "2"], {})
