"""A silo's policy at work: the account of its answers, and its refusals; for silos see test_policed_runs.py."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Federation, LabelSkewError, RunError
from recipe_texts import cross_silo

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.sections import Policy
from fl_labelskew_plugins.runtimes.silo.guard import Guard, PolicyError, guard_of, request_digest

RUN = Federation(3, 3, 5, 1, 10, 16, 900, 200, 0)


def guard(folder, **limits):
    return Guard(Policy(**limits), "north.yaml", folder)


def test_the_limit_of_rounds_covers_runs_and_restarts(tmp_path):
    for run, round in (("a", 0), ("a", 1), ("b", 0)):
        guard(tmp_path, max_rounds=3).count_answer(run, round, "q")
    with pytest.raises(PolicyError) as refused:
        guard(tmp_path, max_rounds=3).count_answer("c", 0, "q")
    assert str(refused.value) == (
        "north.yaml: policy.max_rounds: 3 does not allow an answer to round 1 of run c after 3 earlier ones, "
        f"which the server asks for ({tmp_path / 'account.json'})"
    )
    assert "json" not in refused.value.public  # what the server receives
    guard(tmp_path, max_rounds=3).count_answer("a", 1, "q")  # the same question, the same answer
    guard(tmp_path, max_rounds=4).count_answer("c", 0, "q")  # the policy was changed
    assert json.loads((tmp_path / "account.json").read_text()) == {
        "policy": "north.yaml",
        "runs": {"a": {"0": ["q"], "1": ["q"]}, "b": {"0": ["q"]}, "c": {"0": ["q"]}},
    }


def test_answers_of_several_runs_at_the_same_moment_are_all_counted(tmp_path):
    def answers(run):
        for round in range(20):
            guard(tmp_path, max_rounds=1000).count_answer(run, round, "q")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(answers, "abcd"))
    account = json.loads((tmp_path / "account.json").read_text())
    assert {run: len(rounds) for run, rounds in account["runs"].items()} == dict.fromkeys("abcd", 20)


def test_tests_are_counted_separately(tmp_path):
    keeper = guard(tmp_path, max_rounds=2, max_answers_per_round=1)
    for round in (0, 1):
        keeper.count_answer("a", round, "q")
        keeper.count_answer("a", round, "t", kind="test")
    with pytest.raises(PolicyError, match="max_answers_per_round: 1 does not allow another answer to round 2 of run a"):
        keeper.count_answer("a", 1, "other", kind="test")
    with pytest.raises(PolicyError, match="2 does not allow an answer to round 3 of run a after 2 earlier ones"):
        keeper.count_answer("a", 2, "t", kind="test")
    with pytest.raises(PolicyError, match="max_rounds"):
        keeper.count_answer("a", 2, "q")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"runs": 3}', '{"runs": {"a": {"0": [1]}}}', '{"runs": {"a": {"0": 1}}}']
)
def test_an_invalid_account_is_an_error(tmp_path, content):
    (tmp_path / "account.json").write_text(content)
    with pytest.raises(LabelSkewError, match="is not a valid record of a silo's answers; restore the original"):
        guard(tmp_path)


def test_a_silo_without_its_account_does_not_answer(tmp_path):
    keeper = guard(tmp_path / "gone", max_rounds=9)
    with pytest.raises(RunError, match="cannot be written: No such file or directory; without the account"):
        keeper.count_answer("a", 0, "q")


def test_a_silo_that_answered_under_a_policy_does_not_start_without_it(tmp_path):
    silo_recipe = parse.parse(cross_silo())
    assert guard_of(silo_recipe, 1, tmp_path) is None
    guard(tmp_path).count_answer("a", 0, "q")
    with pytest.raises(LabelSkewError, match="under a policy, but this recipe names no file with a policy"):
        guard_of(silo_recipe, 1, tmp_path)


@pytest.mark.parametrize(
    ("least", "quorum", "said"),
    [
        (3, 2, "rounds of 2 uploads, which"),
        (3, None, "a server that does not say how many"),
        (3, True, "a server that does not say how many"),
        (4, 9, "rounds of 3 uploads"),
    ],
)
def test_a_run_beyond_the_policy_is_not_joined(tmp_path, least, quorum, said):
    with pytest.raises(PolicyError, match=f"north.yaml: policy.min_clients: {least} does not allow {said}"):
        guard(tmp_path, min_clients=least).check_run(RUN, quorum)
    guard(tmp_path, max_rounds=5, min_clients=3).check_run(RUN, 3)


def test_unannounced_tensors_do_not_leave_a_silo(tmp_path):
    kinds = {"prototypes": "prototypes", "counts": "counts"}
    keeper = guard(tmp_path, send=["weights", "prototypes"])
    keeper.check_contributions(["prototypes"], kinds)
    guard(tmp_path).check_contributions(["anything"], {})
    for name, kind in (("counts", "counts"), ("samples", "other"), ("optimizer/step", "optimizer")):
        said = message(lambda name=name: keeper.check_contributions(["prototypes", name], kinds), kind=PolicyError)
        line = f'["weights", "prototypes"] does not allow {kind}: {name}, which the method would send'
        assert said == f"north.yaml: policy.send: {line}"


def test_any_difference_that_affects_the_answer_makes_another_question():
    request = (RUN, 3, {"state_round": 2}, {"model/w": torch.zeros(2)}, {"p": torch.ones(2)})
    same = request_digest(*request)
    assert request_digest(RUN, 3, {"state_round": 2}, {"model/w": torch.zeros(2)}, {"p": torch.ones(2)}) == same
    weights = {"model/w": torch.tensor([0.0, 1e-30])}
    others = (Federation(3, 3, 5, 1, 10, 16, 901, 200, 0), 4, {"state_round": 1}, weights, {})
    for place, other in enumerate(others):
        assert request_digest(*request[:place], other, *request[place + 1 :]) != same
