import math

import pytest
from recipe_texts import cross_silo, only_line, text_with

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.conflicts import fewest_summed
from fl_labelskew_plugins.recipe.privacy import Noise, SentNoise, fewest_opened, on_counts, sent_noise

BUDGET = "privacy_args.budget={epsilon: 8, delta: 1e-5}"
BUDGET_FORM = "{epsilon: a number above 0, delta: a number above 0 and below 1}"
RS = ["method_args.method=fedrs", "method_args.upload_clip=20"]
NOISY = [*RS, "method_args.upload_sigma=0.1"]
LDP = ["dp_args.enable_dp=true", "dp_args.dp_solution_type=ldp", "dp_args.epsilon=0.5", "dp_args.delta=0.1"]
GAUSSIAN = [*LDP, "dp_args.sensitivity=2", "dp_args.mechanism_type=gaussian"]
SUM = ["comm_args.secure_aggregation=true", "privacy_args.noise_multiplier=2", "privacy_args.clip=0.1"]


def leaves(*overrides, method="fedavg"):
    """A client of 900 samples in a federation with a smallest client of 400."""
    return sent_noise(parse.parse(text_with(), overrides=[f"method_args.method={method}", *overrides]), 900, 400)


def test_the_noise_of_the_papers_example_equals_its_claimed_sensitivity():
    """Appendix B: L = 20, m = 400, sigma = 0.1, so 2L/m = 0.1; of all that a silo sends the sensitivity is 2L."""
    parts = leaves(*NOISY)
    (weights,) = parts.upload
    assert parts.once == []
    assert (weights.on, weights.kind) == ("weights", "gaussian")
    assert weights.claim == pytest.approx(1.0)
    assert weights.silo == pytest.approx(0.0025)


def test_clipped_weights_and_exact_counts_have_no_bound():
    assert leaves(*RS).upload == leaves().upload == [Noise("weights")]
    assert leaves(method="fedshift").opening == [Noise("counts")]


@pytest.mark.parametrize(("kind", "claim"), [("laplace", 2.0), ("gaussian", 4 / math.sqrt(2))])
def test_sensitivity_of_counts_to_samples(kind, claim):
    parts = leaves("method_args.count_noise=4", f"method_args.count_noise_type={kind}", method="fedshift")
    (counts,) = parts.opening
    assert counts == on_counts(4.0, kind, 900)
    assert counts.claim == pytest.approx(claim)
    one, other = [900, 0], [0, 900]  # the furthest apart that counts of 900 samples can be
    norm = sum(abs(a - b) ** (1 if kind == "laplace" else 2) for a, b in zip(one, other, strict=True))
    assert counts.silo == pytest.approx(4 / (norm if kind == "laplace" else math.sqrt(norm)))
    assert parts.upload == [Noise("weights")]


def test_noise_of_the_host_is_a_bound_only_for_clipped_updates():
    scale = math.sqrt(2 * math.log(1.25 / 0.1)) * 2 / 0.5
    (alone,) = leaves(*GAUSSIAN).upload
    assert (alone.kind, alone.silo, alone.claim) == ("gaussian", 0.0, pytest.approx(scale / 2))
    (clipped,) = leaves(*GAUSSIAN, *RS).upload
    assert clipped.silo == pytest.approx(scale / 40)
    (both,) = leaves(*GAUSSIAN, *NOISY).upload
    assert both.silo == pytest.approx(math.sqrt(scale**2 + 0.1**2) / 40)
    (alone,) = leaves(*GAUSSIAN, "dp_args.mechanism_type=laplace").upload
    assert (alone.kind, alone.silo, alone.claim) == ("laplace", 0.0, pytest.approx(1 / (0.5 - math.log(0.9))))
    assert leaves(*GAUSSIAN, "dp_args.dp_solution_type=cdp").upload == [Noise("weights")]


def test_exact_data_are_named():
    on = [noise.on for noise in leaves("comm_args.send_measures=true", method="fedmr").upload]
    assert on[:2] == ["weights", "comm_args.send_measures true"]
    assert on[-1] == "counts in the uploads of fedmr"
    assert len(on) == 4


@pytest.mark.parametrize(
    ("overrides", "free"),
    [
        ([], "in the uploads of fedmr, counts in the uploads of fedmr; use noise on it"),
        (["method_args.method=fedlc"], "at level silo does not bound weights; use noise on it (method_args.count_no"),
        (["method_args.method=fedshift + fedrs", "method_args.fedrs={upload_clip: 1, upload_sigma: 1}"], "counts; use"),
        (["method_args.method=fedrs", "method_args.upload_clip=1"], "does not bound weights; use noise on it"),
        (["method_args.method=fedavg", *GAUSSIAN], "does not bound weights; use level: claim, or upload_clip of FedRS"),
    ],
)
def test_a_budget_that_does_not_cover_all_data_is_refused(overrides, free):
    line = only_line(text_with(), *overrides, BUDGET)
    assert line.startswith("--set privacy_args.budget: epsilon 8 ")
    assert free in line


def test_sensitivity_of_a_sum_to_one_silo():
    assert leaves(*SUM) == SentNoise([], [], [Noise("weights", "discrete", 1.0, 400.0)], [])


def test_fewest_clients_of_a_sum():
    """All of a round without noise; with noise more than two thirds; as many may be missing from the opening."""

    def fewest(*overrides):
        recipe = parse.parse(text_with(), overrides=[*overrides, "method_args.method=fedavg"])
        return fewest_summed(recipe), fewest_opened(recipe)

    totals = {n: f"train_args.client_num_in_total={n}" for n in (10, 6, 5, 2)}
    assert [fewest(total) for total in totals.values()] == [(n, n) for n in totals]
    assert [fewest(total, *SUM) for total in totals.values()] == [(7, 7), (5, 5), (4, 4), (2, 2)]
    some = [totals[10], "train_args.client_num_per_round=5"]
    assert (fewest(*some), fewest(*some, *SUM)) == ((5, 10), (4, 9))
    assert fewest(*some, "comm_args.secure_threshold=3") == (3, 8)


def test_class_counts_are_opened_over_all_clients():
    """A second run without one silo would reveal its class counts. Silos choose noise, and must agree on the number."""

    def fewest(*overrides):
        return fewest_opened(parse.parse(text_with(), overrides=[*SUM, "method_args.method=fedshift", *overrides]))

    assert (fewest(), fewest("method_args.count_noise=4")) == (10, 10)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["comm_args.secure_aggregation=false"], "to a sum, but uploads are not summed; use comm_args.secu"),
        (["method_args.method=fedmr"], "only to weights, not to sums in the uploads of fedmr, counts in the"),
        (["comm_args.send_measures=true"], "not to comm_args.send_measures true; use a method"),
    ],
)
def test_noise_that_does_not_cover_all_data_is_refused(overrides, said):
    line = only_line(text_with(), "method_args.method=fedlc", *SUM, *overrides)
    assert line.startswith("--set privacy_args.noise_multiplier: 2 adds noise ")
    assert said in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("8", f"8 is of the wrong type; allowed: {BUDGET_FORM}, or null"),
        ("{epsilon: 8}", "delta: missing; allowed: a number above 0 and below 1"),
        ("{epsilon: 8, delta: 1}", "delta: 1 is out of range; allowed: a number above 0 and below 1"),
        ("{epsilon: 0, delta: 0.1}", "epsilon: 0 is out of range; allowed: a number above 0"),
        ("{epsilon: true, delta: 0.1}", "epsilon: true is of the wrong type; allowed: a number above 0"),
        ("{epsilon: 8, delta: 0.1, more: 1}", "more: unknown key; allowed: epsilon, delta"),
    ],
)
def test_a_wrong_budget_is_one_line(value, shown):
    assert only_line(text_with(), f"privacy_args.budget={value}") == f"--set privacy_args.budget: {shown}"


def test_a_silos_file_has_its_own_budget(tmp_path):
    (tmp_path / "north.yaml").write_text("privacy_args: {budget: {epsilon: 3, delta: 1e-6}, ledger: kept/north.jsonl}")
    source = cross_silo().replace("one.yaml", "north.yaml")
    recipe = parse.parse(source, source=tmp_path / "r.yaml", overrides=[*NOISY, "privacy_args.level=claim"])
    assert recipe.privacy.budget is None
    args = parse.silo(recipe, 1).privacy
    assert (args.budget.epsilon, args.level) == (3.0, "claim")
    assert args.ledger == str(tmp_path / "kept" / "north.jsonl")
