from collections import Counter
from unittest.mock import Mock

import pytest
from commands import call, errors
from fl_labelskew_registry import LabelSkewError
from recipe_texts import cross_silo, text_with

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.ledgers.privacy import Ledger
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.privacy import Noise, on_counts

SETS = ["method_args.method=fedrs", "method_args.upload_clip=20", "method_args.upload_sigma=0.1"]
NOISY = [word for text in [*SETS, "privacy_args.level=claim"] for word in ("--set", text)]
BUDGET = ["--set", "privacy_args.budget={epsilon: 8, delta: 1e-5}"]


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(text_with(train_args={"comm_round": 20, "client_num_in_total": 10}))
    return file


def test_before_a_run_the_sent_data_and_the_answers_within_the_budget_are_listed(recipe):
    output = call("privacy", recipe, *NOISY, *BUDGET, "--samples", 400).output
    head, noise, epsilon, budget, levels = output.split("\n\n")
    assert head == "r: fedrs, 20 rounds of 10 of 10 clients, of 400 training samples"
    assert noise.splitlines()[-1].split() == ["each", "round", "0.0025", "1", "weights", "(gaussian", "noise)"]
    silo, claim = (line.split()[-2:] for line in epsilon.splitlines()[2:])
    assert claim[0] == "4.38"  # theorem 8 of Balle and Wang at sigma 1
    assert float(silo[0]) > 10_000
    start = "budget of epsilon 8 at delta 1e-05, level claim: allows 2 answers per client (the recipe has 20"
    assert budget.startswith(start)
    assert levels.startswith("silo: ")
    few = call("privacy", recipe, *NOISY, *BUDGET, "--samples", 400, "--set", "train_args.client_num_per_round=2")
    assert "2 answers per client, about 10 rounds if each round selects 2 of 10 (the recipe" in few.output


def test_without_noise_there_is_no_bound_and_samples_are_the_partitions(recipe):
    noise = ["--set", "method_args.method=fedshift", "--set", "method_args.count_noise=4"]
    output = call("privacy", recipe, *noise).output
    assert "of 10 of 10 clients, of 95 to 217 training samples" in output
    assert "weights (exact)" in output
    assert "counts (laplace noise)" in output
    assert output.count("no bound") == 4
    assert "privacy_args.budget: not set, so the number of answers is not limited" in output


def test_a_silos_ledger_is_listed_by_answer_with_cleaned_text(tmp_path):
    ledger = Ledger(tmp_path / "privacy.jsonl")
    ledger.spend([on_counts(4.0, "laplace", 100)], "a", run="f" * 16)
    ledger.spend([Noise("weights"), Noise("x\x1b[31m in the uploads of y")], "b", run="f" * 16, round=0)
    shown = call("privacy", tmp_path).output
    assert call("privacy", ledger.file).output == shown
    title, rows, _ = shown.split("\n\n")
    assert title == f"{tmp_path / 'privacy.jsonl'}: 2 answers"
    opening, upload = (line.split() for line in rows.splitlines()[1:3])
    assert opening[1:6] == ["f" * 16, "before", "50", "0.5", "1e-05"]
    assert upload[2:7] == ["1", "no", "bound", "no", "bound"]
    assert "x?[31m in the uploads of y (exact)" in " ".join(rows.split())


def test_a_simulations_ledger_is_listed_by_client(tmp_path):
    train = {"client_num_in_total": 5, "client_num_per_round": 3, "comm_round": 3, "epochs": 1}
    whole = parse.parse(text_with(train_args=train, model_args={"hidden": [8]}), overrides=SETS)
    lines = list(fl.simulate(whole, tmp_path / "run"))
    answers = Counter(client for line in lines for client in line["clients"])
    title, rows, _ = call("privacy", tmp_path / "run").output.split("\n\n")
    assert title.endswith(f"privacy.jsonl: {len(answers)} clients")
    shown = {int(row.split()[0]): int(row.split()[1]) for row in rows.splitlines()[1:]}
    assert shown == answers


def test_mistakes_are_one_line_errors(tmp_path, recipe, monkeypatch):
    use = "use the folder of a run with noise or a budget, or the file of its privacy_args.ledger"
    assert errors("privacy", tmp_path) == [f"{tmp_path}: contains no ledger (privacy.jsonl); {use}"]
    silo = tmp_path / "silos" / "silo-1"
    silo.mkdir(parents=True)
    Ledger(silo / "privacy.jsonl").spend([Noise("weights")], "a", run="r")
    (line,) = errors("privacy", tmp_path)
    assert line.endswith(f"use a silo's own folder, such as {silo}")
    line = "--samples: needs a recipe, but this is a ledger; use a recipe, or only the ledger"
    assert errors("privacy", silo, "--samples", 3) == [line]
    assert errors("privacy", tmp_path / "no.jsonl") == [f"{tmp_path / 'no.jsonl'}: no such file; {use}"]
    (line,) = errors("privacy", recipe, *BUDGET)
    assert line.startswith("--set privacy_args.budget: epsilon 8 at level silo does not bound weights, ")
    own = tmp_path / "own.yaml"
    own.write_text(cross_silo())
    (line,) = errors("privacy", own)
    assert line.endswith("the silos' own data are not available to this command; use --samples N")
    lacking = Mock(side_effect=LabelSkewError("not here"))
    monkeypatch.setattr("fl_labelskew_plugins.ledgers.privacy.require", lacking)
    assert errors("privacy", recipe) == ["not here"]
