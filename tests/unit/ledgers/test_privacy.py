import fcntl
import json
import math
import sys

import pytest
from error_messages import message
from fl_labelskew_registry import RunError
from recipe_texts import cross_silo, text_with
from scipy.optimize import brentq
from scipy.stats import norm

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.ledgers import privacy
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.privacy import Noise, on_counts
from fl_labelskew_plugins.recipe.sections import PrivacyBudget
from fl_labelskew_plugins.runs import session

WEIGHTS = Noise("weights", "gaussian", 0.5, 4.0)
COUNTS = on_counts(4.0, "laplace", 100)
NOISY = [
    "method_args.method=fedshift + fedrs", "method_args.fedrs={upload_clip: 2, upload_sigma: 0.1}",
    "method_args.fedshift.count_noise=4", "model_args.hidden=[8]", "train_args.epochs=1", "train_args.comm_round=12",
    "train_args.client_num_in_total=5", "train_args.client_num_per_round=3", "privacy_args.level=claim",
]  # fmt: skip


def gaussian(strength, delta):
    """Epsilon of one Gaussian answer, from theorem 8 of Balle and Wang."""

    def chance(epsilon):
        a, b = 1 / (2 * strength), epsilon * strength
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b))

    return brentq(lambda epsilon: chance(epsilon) - delta, 0, 1e4, xtol=1e-9)


@pytest.mark.parametrize("strength", [0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("times", [1, 100])
def test_gaussian_answers_add_up_to_the_exact_bound_and_never_below_it(strength, times):
    exact = gaussian(strength / math.sqrt(times), 1e-5)
    assert privacy.epsilon((("gaussian", strength, times),), 1e-5) == pytest.approx(exact, rel=1e-3)


def test_combined_answers_cost_at_most_the_sum_and_those_without_noise_have_no_bound():
    assert privacy.epsilon((("laplace", 2.0, 3),), 1e-5) == pytest.approx(1.5)
    both = privacy.epsilon((("gaussian", 4.0, 20), ("laplace", 2.0, 1)), 1e-5)
    assert gaussian(4 / math.sqrt(20), 1e-5) < both <= gaussian(4 / math.sqrt(20), 1e-5) + 0.5 + 1e-6
    assert privacy.epsilon((("laplace", 10.0, 1000),), 1e-5) < 30  # Renyi's bound; the sum is 100
    assert privacy.epsilon((("gaussian", 4.0, 20), ("none", 0.0, 1)), 1e-5) == math.inf
    assert privacy.epsilon((), 1e-5) == 0


def test_noise_of_sums_is_counted_only_by_renyi():
    """For concentrated differential privacy, the bound that a continuous Gaussian of the same strength has there."""
    orders = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024]
    times, strength = 20, 4.0
    naive = min(
        times * a / (2 * strength**2) + math.log1p(-1 / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in orders
    )  # theorem 21 of Balle, Barthe, Gaboardi, Hsu and Sato
    assert privacy.epsilon((("discrete", strength, times),), 1e-5) == pytest.approx(naive)
    assert naive > gaussian(strength / math.sqrt(times), 1e-5)


def test_a_budget_allows_exactly_the_answers_that_fit():
    budget = PrivacyBudget(epsilon=8, delta=1e-5)
    number = privacy.answers([COUNTS], [WEIGHTS], budget, "claim")
    fits, more = (privacy.after([COUNTS], [WEIGHTS], n, "claim", 1e-5) for n in (number, number + 1))
    assert fits <= 8 < more
    assert privacy.answers([COUNTS], [WEIGHTS], PrivacyBudget(epsilon=0.4, delta=1e-5), "claim") == -1
    assert privacy.answers([], [WEIGHTS], PrivacyBudget(epsilon=0.1, delta=1e-5), "claim") == 0
    assert privacy.answers([], [Noise("weights", "gaussian", 1, 1e9)], budget, "claim") >= privacy.MAX_ANSWERS


def ledger(folder, epsilon=None, **options):
    return privacy.Ledger(folder / "privacy.jsonl", epsilon and PrivacyBudget(epsilon=epsilon, delta=1e-5), **options)


def test_an_answer_is_written_down_once_and_the_next_one_adds_to_it(tmp_path):
    first = ledger(tmp_path)
    first.spend([COUNTS], "a", run="r")
    first.spend([COUNTS], "a", run="another")  # the same answer, with the same noise
    ledger(tmp_path).spend([WEIGHTS], "b", run="r", round=0)  # after a restart
    lines = [json.loads(line) for line in (tmp_path / "privacy.jsonl").read_text().splitlines()]
    answers = [(line["round"], line["answer"], [noise["on"] for noise in line["answered"]]) for line in lines]
    assert answers == [(-1, "a", ["counts"]), (0, "b", ["weights"])]
    assert lines[0]["epsilon"] == {"silo": pytest.approx(50), "claim": pytest.approx(0.5)}
    spent = privacy.strengths({COUNTS: 1, WEIGHTS: 1}, "claim")
    assert lines[1]["epsilon"]["claim"] == pytest.approx(privacy.epsilon(spent, 1e-5))
    first.spend([Noise("weights")], "c", run="r", round=1)
    assert [entry.round for entry in first.entries] == [-1, 0, 1]  # what another process wrote, too
    assert first.entries[-1].epsilon == {"silo": None, "claim": None}


def test_the_same_answer_with_other_parts_is_charged(tmp_path):
    """For example a survey with exact counts after a run with an empty opening; or a run that also sends measures."""
    made = ledger(tmp_path, 1.0)
    made.spend([], "opening", run="r")
    with pytest.raises(privacy.SpentError):
        made.spend([Noise("counts")], "opening", run="survey")
    made.spend([], "opening", run="r")
    assert len(made.entries) == 1


def test_no_other_process_writes_while_an_answer_is_counted(tmp_path, monkeypatch):
    def epsilon(spent, delta):
        with (tmp_path / "privacy.jsonl").open("ab") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return 0.25

    monkeypatch.setattr(privacy, "epsilon", epsilon)
    made = ledger(tmp_path, 8.0)
    made.spend([WEIGHTS], "a", run="r", round=0)
    assert made.entries[0].epsilon == {"silo": 0.25, "claim": 0.25}


def test_a_policys_noise_for_surveys_needs_a_ledger_too(tmp_path):
    (tmp_path / "one.yaml").write_text("policy: {noise_at_least: {count_noise: 3}}")
    files = [str(tmp_path / "one.yaml")] * 2
    overrides = ["method_args.method=fedavg", f"client_specific_args.data_silo_config={files}"]
    recipe = parse.silo(parse.parse(cross_silo(), overrides=overrides), 1)
    assert privacy.ledger_of(recipe.model_copy(update={"policy": None}), tmp_path) is None
    assert privacy.ledger_of(recipe, tmp_path) is not None


def test_no_answer_exceeds_the_budget_of_a_level_and_repeats_are_free(tmp_path):
    for round in range(2):
        ledger(tmp_path, 1.5, level="claim").spend([WEIGHTS], f"{round}", run="r", round=round)
    two, three = (privacy.after([], [WEIGHTS], n, "claim", 1e-5) for n in (2, 3))
    assert two <= 1.5 < three
    last = ledger(tmp_path, 1.5, level="claim")
    assert message(lambda: last.spend([WEIGHTS], "2", run="r", round=2), kind=privacy.SpentError) == (
        f"privacy_args.budget: epsilon 1.5 at delta 1e-05 does not allow an answer to round 3: {two:.3g} is spent, "
        f"and this answer would increase it to {three:.3g}; see {tmp_path / 'privacy.jsonl'}"
    )
    last.spend([WEIGHTS], "1", run="r", round=1)
    assert len(last.entries) == 2
    with pytest.raises(privacy.SpentError):
        ledger(tmp_path, 1.5).spend([WEIGHTS], "2", run="r", round=2)  # of all that a silo sends more is spent


def test_an_incomplete_line_is_not_an_answer(tmp_path):
    file = tmp_path / "privacy.jsonl"
    ledger(tmp_path).spend([WEIGHTS], "a", run="r", round=0)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    ledger(tmp_path).spend([WEIGHTS], "b", run="r", round=1)
    first, second = file.read_bytes().splitlines()
    assert first + b"\n" == whole
    assert json.loads(second)["answer"] == "b"


@pytest.mark.parametrize("damage", [b"?\n", b"{}\n", b'{"runs": 1}\n', b"\xff\n"])
def test_a_damaged_ledger_is_not_replaced(tmp_path, damage):
    ledger(tmp_path).spend([WEIGHTS], "a", run="r", round=0)
    file = tmp_path / "privacy.jsonl"
    file.write_bytes(damage + file.read_bytes())
    assert "is not a privacy ledger; restore the original file, or remove" in message(lambda: ledger(tmp_path))


def test_without_the_ledger_a_silo_does_not_answer(tmp_path):
    with pytest.raises(RunError, match=r"cannot be written: .*; without its ledger, this silo does not answer"):
        ledger(tmp_path / "gone").spend([WEIGHTS], "a", run="r", round=0)


def test_without_dp_accounting_answers_are_kept_and_a_budget_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr(privacy, "installed", lambda: False)
    ledger(tmp_path).spend([WEIGHTS], "a", run="r", round=0)
    assert ledger(tmp_path).entries[0].epsilon == {}
    line = "privacy_args.budget: needs dp-accounting, which is not installed; to install it: pip install "
    assert message(lambda: ledger(tmp_path, 2.0)) == f"{line}'dp-accounting>=0.6'"


def test_a_simulation_has_a_ledger_of_its_own_only_with_noise(tmp_path):
    recipe = parse.parse(text_with())
    assert privacy.ledger_of(recipe, tmp_path) is None
    ledger(tmp_path).spend([WEIGHTS], "a", run="r", round=0)
    kept = privacy.ledger_of(recipe, tmp_path)  # earlier entries, and now one without noise
    kept.spend([Noise("weights")], "b", run="r", round=1)
    assert kept.entries[-1].epsilon["silo"] is None
    recipe = parse.parse(text_with(), overrides=[*NOISY, f"privacy_args.ledger={tmp_path / 'silo.jsonl'}"])
    assert privacy.ledger_of(recipe, tmp_path / "run").file == tmp_path / "run" / "privacy.jsonl"


def simulated(*overrides):
    return parse.parse(text_with(), overrides=[*NOISY, *overrides])


def test_each_client_of_a_simulation_answers_until_its_budget_is_spent(tmp_path):
    whole = list(fl.simulate(simulated(), tmp_path / "whole"))
    sizes = [n for n in session.build(simulated()).sizes if n]
    budget = PrivacyBudget(epsilon=1.7, delta=1e-5)
    most = privacy.affordable_uploads(simulated(), sizes, budget)
    assert 1 < most < 7
    loop = fl.simulate(simulated("privacy_args.budget={epsilon: 1.7, delta: 1e-5}"), tmp_path / "run")
    lines, answers = [], [0] * 5
    with pytest.raises(RunError, match=r"no selected client may answer: privacy_args.budget: epsilon 1.7 at delta"):
        lines.extend(loop)
    for line, there in zip(lines, whole, strict=False):
        asked = there["clients"]
        assert line["clients"] == [client for client in asked if answers[client] < most]
        for client in line["clients"]:
            answers[client] += 1
    assert answers == [most] * 5
    assert lines[0] == whole[0]  # an account changes nothing of a run
    entries = privacy.Ledger(tmp_path / "run" / "privacy.jsonl").entries
    assert [entry.client for entry in entries if entry.round < 0] == [0, 1, 2, 3, 4]
    assert max(entry.epsilon["claim"] for entry in entries) <= 1.7


def test_a_round_ends_if_too_few_clients_would_be_summed(tmp_path):
    secure = ["comm_args.secure_aggregation=true", "privacy_args.noise_multiplier=2", "privacy_args.clip=0.5"]
    budget = ["privacy_args.level=silo", "privacy_args.budget={epsilon: 10, delta: 1e-5}"]
    four = ["train_args.client_num_in_total=5", "train_args.client_num_per_round=4", "train_args.comm_round=30"]
    recipe = parse.parse(text_with(), overrides=["method_args.method=fedlc", *four, *secure, *budget])
    loop = fl.simulate(recipe, tmp_path / "run")
    lines = []
    with pytest.raises(RunError, match=r"too few clients \(2 of 3 needed\) may answer: privacy_args.budget: epsilon"):
        lines.extend(loop)
    assert min(len(line["clients"]) for line in lines) >= 3
    entries = privacy.Ledger(tmp_path / "run" / "privacy.jsonl").entries
    assert {noise.kind for entry in entries for noise in entry.answered} == {"discrete"}


def test_a_run_warns_at_its_start_that_the_budget_ends_first(tmp_path):
    def said(*overrides):
        made = session.build(simulated(*overrides))
        return privacy.warnings(made.recipe, made.sizes)

    assert said("privacy_args.budget={epsilon: 1.7, delta: 1e-5}") == [
        "privacy_args.budget: epsilon 1.7 at delta 1e-05 allows 5 answers per client, but of 12 rounds, each "
        "client answers about 8; labelskew privacy RECIPE shows how many answers a budget allows"
    ]
    assert said("privacy_args.budget={epsilon: 20, delta: 1e-5}") == []
    assert said() == []
