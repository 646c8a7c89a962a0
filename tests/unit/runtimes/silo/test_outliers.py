import itertools
import math

import pytest
import torch

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.runtimes.silo.outliers import STATISTICS, UNTRAINED, Judge, norms
from fl_labelskew_plugins.tensors import OPTIMIZER, PIECE

MEAN = f"{UNTRAINED}mean"


def judged(judge, round, uploads):
    """The clients with accepted uploads; the order of arrival does not matter."""
    outcomes = []
    for order in itertools.permutations(uploads):
        copy = Judge(judge.ratio, {k: dict(v) for k, v in judge.past.items()}, judge.silos)
        copy.begin(round)
        held = {client for client in order if not copy.add(client, {"update": uploads[client]})}
        accepted = [k for k in sorted(uploads) if k not in held or not copy.objection(k)]
        outcomes.append((accepted, copy.past, copy.end()))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    accepted, past, _ = outcomes[0]
    judge.past.clear()
    judge.past.update(past)
    return accepted


def objections(judge, *uploads, round=0):
    """To uploads of these norms, by client."""
    judge.begin(round)
    for client, values in enumerate(uploads):
        judge.add(client, values)
    return [judge.objection(client) for client in range(len(uploads))]


def test_an_upload_is_compared_with_others_and_with_earlier_uploads():
    judge = Judge(10, {}, 3)
    assert judged(judge, 0, {0: 1.0, 1: 2.0, 2: 3e39}) == [0, 1]
    assert judged(judge, 1, {0: 0.5, 1: 0.4, 2: 4.0}) == [0, 1, 2]  # 10 * 0.4
    assert judged(judge, 2, {0: 0.01, 1: 0.01, 2: 39.0}) == [0, 1, 2]  # 10 * 4.0, its own
    assert judged(judge, 3, {0: 0.01, 1: 0.01, 2: 21.0}) == [0, 1]  # 10 * 2.05; 39 counts as 10 * 0.01
    assert judged(judge, 4, {0: 2.5, 1: 0.01, 2: 3.0}) == [0, 1, 2]  # 10 * 0.255, the middle of 0.01 and 0.5
    assert judge.past == {
        0: {0: {"update": 1.0}, 1: {"update": 0.5}, 2: {"update": 0.01}, 3: {"update": 0.01}, 4: {"update": 2.5}},
        1: {at: {"update": norm} for at, norm in enumerate([2.0, 0.4, 0.01, 0.01, 0.01])},
        2: {1: {"update": 4.0}, 2: {"update": 0.1}, 4: {"update": 3.0}},
    }


@pytest.mark.parametrize("silos", [3, 5])
def test_a_silo_that_grows_by_the_ratio_in_each_round_is_refused(silos):
    """Else the training of all others would fail in the end. Its growth is limited to the square of the ratio."""
    judge, size, refused = Judge(1000, {}, silos), 1.0, []
    for round in range(20):
        size *= 900
        accepted = judged(judge, round, {**dict.fromkeys(range(silos - 1), 1.0), silos - 1: size})
        refused += [] if silos - 1 in accepted else [round]
        assert accepted[: silos - 1] == [*range(silos - 1)]
    assert refused == [*range(2, 20)]
    assert max(norms["update"] for norms in judge.past[silos - 1].values()) <= 1000


def test_a_silo_with_updates_far_above_the_others_is_named():
    """Also below the limit: the updates of the others can follow the model until their training fails."""
    judge = Judge(1000, {}, 3)
    uploads = [{"update": 1.0}, {"update": 2.0}, {"update": 61.0}, {"update": 3.0, "sums": 500.0}]
    assert objections(judge, *uploads) == [""] * 4
    assert judge.end() == {2: "the norm of its update is 61; the median of the others is 2"}
    assert objections(judge, *[{"update": norm} for norm in (1.0, 2.0, 59.0)], round=1) == [""] * 3
    assert judge.end() == {}
    assert Judge(None, {}, 3).end() == {}
    norms = [{"update": 1.0, MEAN: mean} for mean in (0.0, 0.0, 5.0)]
    judge = Judge(1000, {2: {0: {MEAN: 5.0, "update": 1.0}}}, 3)  # batch normalisation that the others have frozen
    assert objections(judge, *norms, round=1) == [""] * 3
    assert judge.end() == {2: "the norm of its tensor mean is 5; the median of the others is 0"}


def test_in_rounds_of_two_silos_a_silo_is_compared_with_the_last_uploads_of_the_others():
    past = {client: {client: {"update": 1.0}} for client in range(4)} | {4: {0: {"update": 1e6}}}
    judge = Judge(1000, past, 5)
    judge.begin(4)
    assert judge.add(0, {"update": 1.0})
    assert judge.add(4, {"update": 1e8})  # only 100 times its own past
    assert judge.end() == {}  # the last uploads of the others may be old
    assert judge.past[4][4] == {"update": 1000.0}
    judge = Judge(1000, {}, 5)  # the uploads of three silos are not known yet
    assert objections(judge, {"update": 1.0, MEAN: 0.0}, {"update": 1.0, MEAN: 8e4}) == ["", ""]
    assert judge.end() == {}
    assert judge.past[1][0] == {"update": 1.0, MEAN: 1000.0}  # so the next limit equals the first one


def test_tiny_updates_of_a_minority_do_not_exclude_honest_silos():
    assert judged(Judge(10, {}, 3), 0, {0: 1.0, 1: 1.1, 2: 1e-9}) == [0, 1, 2]
    assert judged(Judge(10, {}, 3), 0, {0: 1.0, 1: 1.1, 2: 1.2, 3: 1e-9, 4: 1e-9}) == [0, 1, 2, 3, 4]
    assert judged(Judge(10, {}, 3), 0, {0: 1.0, 1: 1.1, 2: 1.2, 3: 1e30, 4: 3e30}) == [0, 1, 2]
    assert judged(Judge(10, {}, 3), 0, {0: 1.0, 1: 1e30}) == [0]


def test_unchanged_models_of_a_minority_do_not_hide_a_large_update():
    assert judged(Judge(1000, {}, 5), 0, {0: 1.0, 1: 1.1, 2: 1.2, 3: 0.0, 4: 9e5}) == [0, 1, 2, 3]
    assert judged(Judge(1000, {}, 5), 0, {0: 1.0, 1: 1.1, 2: 1.2, 3: 0.0, 4: 0.0}) == [0, 1, 2, 3, 4]
    uploads = [{"update": 1.0, OPTIMIZER: norm} for norm in (1.0, 1.1, 1.2, 0.0, 9e5)]
    assert [bool(line) for line in objections(Judge(1000, {}, 5), *uploads)] == [False] * 4 + [True]
    uploads = [{"update": update} for update in (1.0, 1.0, 1.0, 0.0)] + [{"update": 1.0, f"{UNTRAINED}frozen": 0.1}]
    assert [bool(line) for line in objections(Judge(10, {}, 5), *uploads)] == [False] * 4 + [True]


def test_statistics_that_a_minority_does_not_change_exclude_no_honest_silo():
    """An honest silo with one sample does not change them either."""
    uploads = [{"update": 1.0, STATISTICS: changed} for changed in (0.0, 5.0, 0.0)]
    assert objections(Judge(10, {}, 3), *uploads) == [""] * 3


def test_excluded_silos_do_not_count_for_the_majority():
    judge = Judge(1000, {0: {0: {"update": 1.0}}, 1: {0: {"update": 1.0}}}, 5)
    judge.begin(1, [2, 3])
    judge.add(0, {"update": 1.0})
    judge.add(4, {"update": 9e5})
    assert judge.objection(4) != ""


def test_zero_norms_are_ignored_and_a_single_upload_is_compared_with_earlier_ones():
    judge = Judge(10, {}, 3)
    assert judged(judge, 0, {0: 0.0, 1: 0.0, 2: 5.0}) == [0, 1, 2]
    assert judged(judge, 1, {0: 51.0}) == [0]  # only one other norm: 1000 is assumed
    assert judged(judge, 2, {1: 511.0}) == []  # 10 * 51, the upper median of 5 and 51
    assert judged(judge, 3, {1: 510.0}) == [1]
    assert judged(Judge(10, {}, 3), 0, {2: 1e30}) == []
    assert judged(Judge(10, {}, 3), 0, {2: 1e4}) == [2]
    assert judged(Judge(None, {0: {0: {"update": 1.0}}}, 3), 1, {0: math.inf, 1: 1.0}) == [0, 1]


def test_a_tensor_that_no_other_silo_sends_is_compared_with_an_assumed_norm():
    for sums, accepted in ((1e4, True), (1.001e4, False)):
        found = objections(Judge(10, {}, 3), {"update": 1.0}, {"update": 1.0, "sums": sums})
        assert (found[1] == "") is accepted


def test_buffers_that_training_does_not_change_must_not_change():
    """Constants and frozen parameters have norms of 0, so that 3.4e38 was compared with nothing."""
    judge = Judge(10, {}, 3)
    for round in (0, 1):
        uploads = [{"update": 1.0, MEAN: mean} for mean in (0.0, 0.0, 3.4e38)]
        assert [bool(line) for line in objections(judge, *uploads, round=round)] == [False, False, True]
    uploads = [{"update": 1.0, MEAN: 1.0, f"{UNTRAINED}frozen.weight": frozen} for frozen in (0.0, 0.0, 0.1)]
    assert [bool(line) for line in objections(Judge(10, {}, 3), *uploads)] == [False, False, True]
    uploads = {"update": 1.0, MEAN: 5.0}, {"update": 0.0, MEAN: 0.0}
    assert objections(judge, *uploads, round=2)[0] != ""
    # a silo that does not train says nothing about the buffers of others
    assert objections(Judge(10, {}, 3), *uploads)[0] == ""


@pytest.mark.parametrize(
    "rounds",
    [
        [{2: 1e-9}, {0: 1.0}],
        [{2: 1e-9, 0: 1.0}],
        [{3: 1e-9}, {4: 1e-9}, {0: 1.0}],
        [{3: 1e-9, 4: 1e-9}, {0: 1.0, 1: 1.0}],
    ],
)
def test_few_tiny_uploads_do_not_exclude_honest_silos_in_small_rounds(rounds):
    """With one or two silos per round, one tiny upload had each honest silo refused that came next."""
    judge = Judge(1000, {}, 3 if 2 in rounds[0] else 5)
    for round, uploads in enumerate(rounds):
        assert judged(judge, round, uploads) == sorted(uploads)


def test_tiny_tensors_of_few_silos_do_not_exclude_honest_silos():
    """Of five silos, two honest ones share their class sums, and two others send tiny ones although they should not."""
    judge = Judge(1000, {}, 5)
    for round in range(3):
        uploads = [{"update": 1.0, "sums": sums} for sums in (11.8, 12.0, 0.0, 1e-8, 1e-8)]
        assert objections(judge, *uploads, round=round) == [""] * 5
        assert judge.end() == {}


def test_norms_of_excluded_silos_are_not_compared():
    judge = Judge(10, {1: {0: {"update": 1e-9}}, 2: {0: {"update": 1e-9}}}, 3)
    judge.begin(1, [2])
    judge.add(0, {"update": 1.0})
    assert judge.objection(0) == ""


def test_only_the_last_rounds_count_and_a_repeated_round_replaces_its_norms():
    judge = Judge(10, {}, 3)
    for round in range(30):
        assert judged(judge, round, {0: 1.0 if round < 15 else 8.0, 1: 1.0 if round < 15 else 8.0}) == [0, 1]
    assert sorted(judge.past[0]) == list(range(19, 30))
    judge.begin(25)
    assert sorted(judge.past[0]) == list(range(19, 25))
    assert not judge.add(0, {"update": 81.0})
    assert judge.objection(0) == "the norm of its update is 81; the median is 8 for its own past"


def test_each_additional_tensor_has_its_own_norm():
    uploads = [{"update": 1.0, "prototypes": prototypes} for prototypes in (1.0, 1.0, 3.4e38)]
    line = "the norm of its prototypes is 3.4e+38; the median is 1 for the others"
    assert objections(Judge(10, {}, 3), *uploads) == ["", "", line]


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
        assert [bool(line) for line in objections(Judge(1000, {}, 3), *values)] == [False, False, True]


def test_norms_do_not_overflow_and_read_large_tensors_in_parts():
    old = {"w": torch.full((10,), -3.4e38), "x": torch.zeros(PIECE + 3)}
    upload = {"w": torch.full((10,), 3.4e38), "x": torch.full((PIECE + 3,), 2.0)}
    expected = {"update": 6.8e38 * math.sqrt(10), "tensor x": 2 * math.sqrt(PIECE + 3)}
    assert norms(LocalResult(upload, {}, {}, {}), old, ["w"], {}, sends_change=False) == pytest.approx(expected)
