import functools

import error_messages
import numpy as np
import pytest
from fl_labelskew_registry import Arrays, Data
from pydantic import ValidationError

from fl_labelskew_plugins.partition.clients import divide
from fl_labelskew_plugins.partition.named import Named, named

LABELS = np.repeat(np.arange(3), [10, 5, 4])
message = functools.partial(error_messages.message, says=("; use ", "; remove ", "; give ", " of the "))


def partition(clients, **more):
    return Named(Named.Params(clients=clients, **more))


def split(clients, names=("cat", "dog", "2"), seed=0, **more):
    partitioner = partition(clients, **more)
    partitioner.class_names = names
    return partitioner.split(LABELS, None, clients=len(clients), rng=np.random.default_rng(seed))


def counts(parts):
    return [np.bincount(LABELS[part], minlength=3).tolist() for part in parts]


def test_amounts_by_hand():
    parts = split({"north": {0: "all", "dog": 0.5}, "south": {"1": 0.5, 2: 3}, "west": {2: 1}})
    # 2.5 of 5 samples is rounded to the even 2; the next share ends at 5
    assert counts(parts) == [[10, 2, 0], [0, 3, 3], [0, 0, 1]]
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(np.concatenate(parts))) == 20 - 1
    assert counts(split({"a": {0: 1}, "b": {0: 1.0 - 0.1}})) == [[1, 0, 0], [9, 0, 0]]


@pytest.mark.parametrize("clients", [3, 7])
def test_shares_of_one_are_a_whole_class(clients):
    parts = split({str(k): {0: 1 / clients} for k in range(clients)})
    sizes = [len(part) for part in parts]
    assert sum(sizes) == 10
    assert max(sizes) - min(sizes) <= 1


def test_a_name_comes_before_a_number():
    assert counts(split({"a": {"2": "all"}}, names=("2", "x", "y"))) == [[10, 0, 0]]
    assert counts(split({"a": {2: "all"}}, names=("2", "x", "y"))) == [[0, 0, 4]]


def test_samples_depend_on_the_seed_only():
    clients = {"a": {0: 5}, "b": {0: 5}}
    first, again, other = (split(clients, seed=seed)[0].tolist() for seed in (0, 0, 1))
    assert first == again != other
    fixed = [split(clients, seed=seed, partition_seed=3)[0].tolist() for seed in (0, 1)]
    assert fixed[0] == fixed[1]


def test_clients_have_the_names_and_test_samples_in_proportion():
    y = np.repeat(np.arange(3), 4)
    data = Data(Arrays(np.zeros((19, 2)), LABELS), Arrays(np.zeros((12, 2)), y), ["cat", "dog", "cow"])
    found = divide(data, partition({"north": {"cat": 5}, "south": {"cat": 5, "cow": 4}}), clients=2, seed=0)
    assert found.names == ["north", "south"]
    assert found.groups == {0: "north", 1: "south"}
    assert found.counts.tolist() == [[5, 0, 0], [5, 0, 4]]
    assert found.test_counts.tolist() == [[2, 0, 0], [2, 0, 4]]


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        ({"a": {0: 0.7}, "b": {0: 0.5}}, "the clients (a: 0.7, b: 0.5) get 12 samples of class 0, but it has 10"),
        ({"a": {0: "all"}, "b": {0: 1}}, "the clients (a: all, b: 1) get 11 samples of class 0, but it has 10"),
        ({"a": {1: 6}}, "the clients (a: 6) get 6 samples of class 1, but it has 5"),
        ({"a": {1: 0.01}}, "client a gets none of the 5 samples of class 1"),
        ({"a": {"cow": 1}}, "class 'cow' is unknown; use a number from 0 to 2, or a name: cat, dog, 2"),
        ({"a": {3: 1}}, "class '3' is unknown; use a number from 0 to 2, or a name: cat, dog, 2"),
        ({"a": {"cat": 1, 0: 1}}, "client a has a class twice, by name and by number; remove one"),
    ],
)
def test_impossible_amounts_are_refused(clients, reason):
    assert message(lambda: split(clients)).startswith(f"partition named: {reason}")


def test_the_number_of_clients_must_be_that_of_the_names():
    line = message(lambda: partition({"a": {0: 1}}).split(LABELS, None, clients=2, rng=None))
    assert line == ("partition named: 1 named clients, but client_num_in_total=2; use train_args.client_num_in_total=1")


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        ({}, "at least 1 item"),
        ({"a": {}}, "client a: has no classes; allowed: a mapping such as {0: all, 1: 0.5}"),
        ({"a": 3}, "client a: has no classes"),
        ({3: {0: 1}}, "client 3: the name is not text of 1 to 40 printable characters; put a number in quotation"),
        ({"a\x1b": {0: 1}}, "client a?: the name is not text"),
        *(({"a": {"cat": amount}}, f"client a, class cat: got {amount!r}; allowed: all, an integer of at least 1")
          for amount in (0, -1, 1.5, 0.0, True, "half", None, [1], float("nan"))),
    ],
)  # fmt: skip
def test_other_values_are_refused(clients, reason):
    with pytest.raises(ValidationError) as error:
        partition(clients)
    assert reason in str(error.value)


def test_named_needs_no_class_names():
    parts = named(LABELS, [{0: 2}, {2: "all"}], names=["a", "b"], rng=np.random.default_rng(0))
    assert counts(parts) == [[2, 0, 0], [0, 0, 4]]
