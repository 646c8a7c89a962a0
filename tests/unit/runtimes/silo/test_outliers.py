import itertools
import math

import pytest
import torch

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.runtimes.silo.outliers import (
    CHANGES,
    MOVEMENT,
    STATISTICS,
    UNTRAINED,
    Judge,
    model_norm,
    norms,
)
from fl_labelskew_plugins.tensors import OPTIMIZER, PIECE

MEAN = f"{UNTRAINED}mean"


def judged(ratio, uploads, medians=(), norm=0.0):
    """Accepted clients, named clients and the medians afterwards; the order of arrival does not matter."""
    outcomes = []
    for order in itertools.permutations(range(len(uploads))):
        judge = Judge(ratio, dict(medians))
        judge.begin(norm)
        at_once = {client for client in order if judge.add(client, uploads[client])}
        accepted = [client for client in range(len(uploads)) if client in at_once or not judge.objection(client)]
        assert not any(judge.objection(client) for client in at_once)
        outcomes.append((accepted, sorted(judge.end()), judge.medians))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    return outcomes[0]


def accepted_updates(*sizes, ratio=10, **before):
    return judged(ratio, [{"update": size} for size in sizes], before)[0]


def objections(*uploads, ratio=1000):
    """To uploads of these norms, by client."""
    judge = Judge(ratio, {})
    for client, values in enumerate(uploads):
        judge.add(client, values)
    return [judge.objection(client) for client in range(len(uploads))]


def test_an_upload_is_compared_with_the_medians_of_this_round_and_of_the_one_before():
    assert judged(10, [{"update": size} for size in (1.0, 2.0, 3e39)]) == ([0, 1], [], {"update": 2.0})
    assert accepted_updates(1.0, 2.0, 20.0) == [0, 1, 2]
    assert accepted_updates(1.0, 2.0, 20.1) == [0, 1]
    assert accepted_updates(0.01, 0.02, 20.0, update=2.0) == [0, 1, 2]
    assert accepted_updates(0.01, 0.02, 20.1, update=2.0) == [0, 1]
    assert accepted_updates(1.0, 2.0, 20.0, update=0.1) == [0, 1, 2]
    judge = Judge(10, {"update": 2.0})
    assert [judge.add(client, {"update": size}) for client, size in enumerate((0.5, 20.0, 201))] == [True, True, False]
    assert judge.objection(2) == "the norm of its update is 201, more than 10 times the median 20"


def test_a_silo_with_updates_far_above_the_others_is_named():
    """Also below the limit: the updates of the others can follow the model until their training fails."""
    judge = Judge(1000, {})
    uploads = {"update": 1.0}, {"update": 2.0}, {"update": 61.0}, {"update": 1.0, "sums": 500.0}
    for client, values in enumerate(uploads):
        judge.add(client, values)
    assert judge.end() == {2: "the norm of its update is 61; the median of the round is 2"}
    assert judged(1000, [{"update": size} for size in (1.0, 2.0, 3.0, 9e9)])[:2] == ([0, 1, 2], [])  # refused
    assert judged(1000, [{"update": 1.0, MEAN: mean} for mean in (0.0, 0.0, 5.0)], {MEAN: 5.0})[1] == [2]


def test_a_minority_does_not_choose_the_median():
    for size in (0.0, 1e-9, 1e30):
        assert accepted_updates(1.0, 1.1, size) == ([0, 1, 2] if size < 1 else [0, 1])
        for other in (0.0, 1e-9, 1e30):
            honest = accepted_updates(1.0, 1.1, 1.2, size, other, ratio=1000)
            assert honest == [0, 1, 2, *([3] if size < 1 else []), *([4] if other < 1 else [])]


def test_in_rounds_of_one_or_two_silos_a_norm_is_assumed():
    for sizes in ((1.0, 1e30), (1e30,)):
        assert accepted_updates(*sizes) == [0] * (len(sizes) - 1)
    assert accepted_updates(1e-9, 1e4) == [0, 1]
    assert accepted_updates(1.0, 1.001e4) == [0]
    assert accepted_updates(1.0, 21.0, update=2.0) == [0]  # only some silos of the round have answered
    line = "the norm of its update is 1.1e+04, more than 10 times 1000, the assumed median"
    assert objections({"update": 1.1e4}, ratio=10) == [line]


def test_silos_with_nothing_left_to_learn_do_not_exclude_the_others():
    """With FedVLS, silos of one class have losses of 0, and updates of rounding errors."""
    for majority in ((3e-11,) * 3, (1.4e-10, 0.0, 0.0)):
        uploads = [{"update": size, OPTIMIZER: size, "sums": size} for size in (*majority, 5.0, 12.1)]
        assert judged(1000, uploads, norm=12.0)[0] == [0, 1, 2, 3]
    assert judged(1000, [{MOVEMENT: size} for size in (1e-9, 1e-9, 1e-9, 1200.0, 1201.0)], norm=12.0)[0] == [
        0,
        1,
        2,
        3,
    ]
    assert judged(1000, [{MEAN: size} for size in (0.0, 0.0, 0.1)], norm=12.0)[0] == [0, 1]


def test_model_norm_is_at_least_1():
    weights = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([[-4.0]]), "mean": torch.tensor([9.0])}
    assert model_norm(weights, ["w", "b"]) == 5.0
    assert model_norm({"w": torch.zeros(3)}, ["w"]) == 1.0


@pytest.mark.parametrize("name", CHANGES)
def test_updates_of_a_majority_that_changes_nothing_exclude_no_silo(name):
    assert objections(*[{name: size} for size in (0.0, 0.0, 5.0)], ratio=10) == [""] * 3
    assert objections(*[{name: size} for size in (0.0, 0.0, 1e30)], ratio=10)[2] != ""


def test_a_tensor_that_few_silos_send_is_compared_with_an_assumed_norm():
    for sums, accepted in ((1e4, True), (1.001e4, False)):
        assert (objections({}, {}, {"sums": sums}, ratio=10)[2] == "") is accepted
    # three senders are enough for a median, for example in CCVR's closing exchange
    three = [{"sums": sums} for sums in (1.0, 1.0, 1e5)]
    assert [bool(line) for line in objections({}, {}, *three)] == [False] * 4 + [True]
    # two of five silos send tiny class sums although they should not
    assert objections(*[{"sums": sums} for sums in (11.8, 12.0, 0.0, 1e-8, 1e-8)]) == [""] * 5


def test_buffers_that_training_does_not_change_must_not_change():
    """Constants and frozen parameters have norms of 0, so that 3.4e38 was compared with nothing."""
    uploads = [{"update": 1.0, MEAN: mean} for mean in (0.0, 0.0, 0.1)]
    assert [bool(line) for line in objections(*uploads)] == [False, False, True]
    accepted, _, medians = judged(1000, uploads)
    assert (accepted, medians) == ([0, 1], {"update": 1.0, MEAN: 0.0})
    uploads = [{"update": 1.0, MEAN: 1.0, f"{UNTRAINED}frozen.weight": frozen} for frozen in (0.0, 0.0, 0.1)]
    assert [bool(line) for line in objections(*uploads)] == [False, False, True]
    uploads = [{"update": 1.0, STATISTICS: changed} for changed in (0.0, 0.0, 0.1)]  # frozen batch normalisation
    assert [bool(line) for line in objections(*uploads)] == [False, False, True]
    # silos with one sample do not change the statistics, and others do
    assert judged(1000, uploads, {STATISTICS: 0.1})[0] == [0, 1, 2]


def test_each_additional_tensor_has_its_own_norm():
    uploads = [{"update": 1.0, "prototypes": prototypes} for prototypes in (1.0, 1.0, 3.4e38)]
    line = "the norm of its prototypes is 3.4e+38, more than 1000 times the median 1"
    assert objections(*uploads) == ["", "", line]


@pytest.mark.parametrize("sends_change", [False, True])
def test_norms_by_hand(sends_change):
    old = {"w": torch.full((2, 2), 5.0), "b": torch.zeros(2), "mean": torch.ones(1), "steps": torch.tensor(0)}
    upload = {"w": torch.full((2, 2), 7.0), "b": torch.tensor([3.0, 0.0]), "mean": torch.full((1,), -2.0)}
    upload["steps"] = torch.tensor(2**62)
    old |= {"bn.running_mean": torch.zeros(1), "bn.running_var": torch.ones(1), "frozen": torch.ones(3)}
    upload |= {
        "bn.running_mean": torch.full((1,), 4.0),
        "bn.running_var": torch.full((1,), 4.0),
        "frozen": torch.ones(3),
    }
    sent = {"optimizer/a": torch.tensor(3.0), "optimizer/b": torch.full((4,), 2.0), "counts": torch.tensor([9, 1, 0])}
    sent |= {"sums": torch.full((3, 3), 2.0), "outputs": torch.ones(4, dtype=torch.int64)}
    kinds = {"sums": "prototypes", "counts": "counts"}  # sums over 9 samples, over 1, and over none
    values = norms(LocalResult(upload, sent, {}, {}), old, ["w", "b"], kinds, sends_change=sends_change)
    moved = math.sqrt(4 * 49 + 9) if sends_change else 5.0  # the parameters themselves are changes
    expected = {"update": moved, "tensor mean": 3.0, STATISTICS: 5.0, "optimizer": 5.0, "outputs": 2.0}
    expected["sums"] = 2 * math.sqrt(3 * (1 / 81 + 1 + 1))
    if sends_change:  # the only single number of the optimiser is 3
        expected["update times the optimiser's numbers"] = 3 * moved
    assert values == pytest.approx(expected)


def test_many_samples_of_one_class_do_not_hide_a_large_sum_of_another():
    """Divided by all samples together, the sum of class 1 would look like that of an honest silo."""
    kinds = {"sums": "prototypes", "counts": "counts"}
    honest = {"sums": torch.tensor([[40.0], [40.0]]), "counts": torch.tensor([40, 40])}
    for dtype in (torch.float64, torch.int64):
        cheat = {"sums": torch.tensor([[0], [10**9]], dtype=dtype), "counts": torch.tensor([10**9, 1])}
        results = [LocalResult({}, sent, {}, {}) for sent in (honest, honest, cheat)]
        values = [norms(result, {}, [], kinds, sends_change=False) for result in results]
        assert [bool(line) for line in objections(*values)] == [False, False, True]


def test_norms_do_not_overflow_and_read_large_tensors_in_parts():
    old = {"w": torch.full((10,), -3.4e38), "x": torch.zeros(PIECE + 3)}
    upload = {"w": torch.full((10,), 3.4e38), "x": torch.full((PIECE + 3,), 2.0)}
    expected = {"update": 6.8e38 * math.sqrt(10), "tensor x": 2 * math.sqrt(PIECE + 3)}
    assert norms(LocalResult(upload, {}, {}, {}), old, ["w"], {}, sends_change=False) == pytest.approx(expected)
