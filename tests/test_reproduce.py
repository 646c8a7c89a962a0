"""Recipes beside their papers' numbers: what is run, gone on with, cut, compared and written."""

import csv
import json
import re
import statistics

import pytest
from click.testing import CliRunner
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins import recipe, report, reproduce
from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.record import Record
from fl_labelskew_plugins.settings import Expected

TEXT = """
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: logistic}
train_args: {client_num_in_total: 5, comm_round: 6, epochs: 1, batch_size: 64, learning_rate: 0.1}
method_args: {method: fedrs}
validation_args: {last_rounds: 4, personalised: false}
expected:
- {value: 70.0, tolerance: 1, paper: P, table: Table 1}
- {value: 90, measure: best_accuracy, tolerance: 50, paper: P, table: Table 2}
- {value: 3, measure: rounds_to, target: 99.9, paper: P, table: Table 3}
"""


def call(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    return path


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def table(out):
    with (out / "table.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# What is compared


def number(value=70.0, tolerance=1.0, **more):
    return Expected(value=value, tolerance=tolerance, paper="P", table="Table 1", **more)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([69.0, 69.0], "reached"),
        ([71.0], "reached"),
        ([60.0, 80.0], "reached"),  # the mean counts
        ([71.1], "beyond"),
        ([68.9], "fell short"),
        ([70.0, None], "not measured"),
    ],
)
def test_a_verdict_on_accuracies(values, word):
    assert reproduce.verdict(number(), values, cut=False) == word
    assert reproduce.verdict(number(), values, cut=True) == f"{word} (rounds cut)"


@pytest.mark.parametrize(
    ("values", "word"),
    [([20.0, 30.0], "reached"), ([19.0], "beyond"), ([31.0], "fell short"), ([20.0, None], "fell short")],
)
def test_fewer_rounds_are_better(values, word):
    assert reproduce.verdict(number(25, 5, measure="rounds_to", target=50.0), values, cut=False) == word


def test_what_a_run_has_for_each_measure(file, tmp_path):
    (each,) = reproduce.experiments({"one": file}, [], tmp_path)
    accuracies = [0.1, 0.5, 0.9, 0.6, 0.7, 0.8]
    run = report.Run(
        "r", {}, [{"round": r, "accuracy": a, "balanced_accuracy": a / 2} for r, a in enumerate(accuracies)]
    )
    assert reproduce.measured(run, number(), each, 6) == pytest.approx(75)  # the last 4
    assert reproduce.measured(run, number(), each, 3) == pytest.approx(75)  # a recipe cut to half: the last 2
    assert reproduce.measured(run, number(measure="balanced_accuracy"), each, 6) == pytest.approx(37.5)
    assert reproduce.measured(run, number(measure="best_accuracy"), each, 6) == pytest.approx(90)
    assert reproduce.measured(run, number(measure="rounds_to", target=50.0), each, 6) == 2
    assert reproduce.measured(run, number(measure="rounds_to", target=91.0), each, 6) is None
    assert reproduce.measured(run, number(measure="personalised_accuracy"), each, 6) is None


def test_what_counts_as_another_experiment(file):
    plain = recipe.load(file)
    same = [
        "common_args.random_seed=3",
        "tracking_args.run_dir=x",
        "device_args.threads=1",
        "data_args.data_cache_dir=x",
    ]
    assert reproduce.differences(plain, recipe.load(file, same)) == ()
    other = recipe.load(
        file, ["method_args.alpha=0.9", "device_args.precision=bf16", "partition_args.partition_method=iid"]
    )
    assert set(reproduce.differences(plain, other)) == {
        "alpha: 0.5 -> 0.9",
        "precision: fp32 -> bf16",
        "partition_method: pcdd -> iid",
        "classes_per_client: 2 -> null",
    }


# What a budget cuts


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_budgets(text, seconds):
    assert reproduce.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "2x", "h", "-2h", "2h 30", "0s", "two hours"])
def test_what_is_no_budget(text):
    with pytest.raises(LabelSkewError, match=r"^--budget .* would be right$"):
        reproduce.seconds_of(text)


def test_all_are_cut_to_the_same_share(file, tmp_path, monkeypatch):
    other = tmp_path / "two.yaml"
    other.write_text(TEXT.replace("comm_round: 6", "comm_round: 60"))
    chosen = reproduce.experiments({"one": file, "two": other}, [], tmp_path / "out")
    monkeypatch.setattr(reproduce, "_probe", lambda each, say: {"one": 10.0, "two": 1.0}[each.name])
    said = []
    # 2 seeds of 6 rounds of 10 s and of 60 rounds of 1 s are 240 s; 0.9 of 133.5 s is half of it
    rounds = reproduce.plan(chosen, 2, 133.5, tmp_path / "out", said.append)
    assert rounds == {"one": 3, "two": 30}
    assert re.fullmatch(r"budget: about 240 s for all rounds, 120 s left: 50 % of them", said[-1])
    assert reproduce.plan(chosen, 2, 9.0, tmp_path / "out", said.append) == rounds  # as begun
    with pytest.raises(LabelSkewError, match=r"cut to 3 of 6 rounds; --budget, to go on with them, or another --out"):
        reproduce.plan(chosen, 2, None, tmp_path / "out", said.append)
    assert reproduce.plan(chosen, 2, 1e9, tmp_path / "much", said.append) == {"one": 6, "two": 60}
    assert reproduce.plan(chosen, 2, 1e-9, tmp_path / "little", said.append) == {"one": 1, "two": 1}
    (tmp_path / "little" / "plan.json").write_text("[]")
    with pytest.raises(LabelSkewError, match=r"plan\.json: holds no plan of rounds; another --out would be right"):
        reproduce.plan(chosen, 2, None, tmp_path / "little", said.append)


def test_a_budget_is_kept_for_real(file, tmp_path):
    file.write_text(TEXT.replace("comm_round: 6", "comm_round: 100000"))
    out = tmp_path / "out"
    done = call("reproduce", file, "--seeds", 1, "--budget", "2s", "--out", out)
    rounds = json.loads((out / "plan.json").read_text())["one"]
    assert 1 <= rounds < 100000
    assert len(metrics(out / "one" / "seed0")) == rounds
    first = table(out)[0]
    assert (first["rounds"], first["verdict"].endswith(" (rounds cut)")) == (f"{rounds} of 100000", True)
    assert f"[1/1] one, seed 0: {rounds} of 100000 rounds" in done.output


# What is run


def test_a_table_beside_the_paper_s_numbers(file, tmp_path):
    out = tmp_path / "out"
    done = call("reproduce", file, "--seeds", 2, "--out", out, "--set", "method_args.alpha=0.9")
    runs = [metrics(out / "one" / f"seed{seed}") for seed in (0, 1)]
    assert [line["round"] for line in runs[0]] == list(range(6))
    assert runs[0] != runs[1]
    ours = [100 * statistics.fmean(line["accuracy"] for line in run[-4:]) for run in runs]
    best = [100 * max(line["accuracy"] for line in run) for run in runs]
    mean, highest, reach = table(out)
    assert mean["ours"] == f"{statistics.fmean(ours):.2f}"
    assert mean["std"] == f"{statistics.stdev(ours):.2f}"
    assert mean["difference"] == f"{statistics.fmean(ours) - 70:+.2f}"
    assert mean["verdict"] == ("beyond" if statistics.fmean(ours) > 71 else "fell short")
    assert (mean["recipe"], mean["paper"], mean["rounds"], mean["seeds"]) == ("one", "P, Table 1", "6 of 6", "2")
    assert mean["changed"] == "alpha: 0.5 -> 0.9"
    assert highest["ours"] == f"{statistics.fmean(best):.2f}"
    assert highest["verdict"] == "reached"
    assert (reach["measure"], reach["ours"], reach["verdict"]) == ("rounds_to 99.9", "0 of 2 got there", "fell short")
    written = (out / "table.md").read_text()
    assert written in done.output
    assert len(written.splitlines()) == 2 + 3

    # the same again runs nothing; other settings are refused, more seeds are added
    kept = (out / "one" / "seed0" / "metrics.jsonl").stat().st_mtime_ns
    again = call("reproduce", file, "--seeds", 3, "--out", out, "--set", "method_args.alpha=0.9", "--quiet")
    assert (out / "one" / "seed0" / "metrics.jsonl").stat().st_mtime_ns == kept
    assert table(out)[0]["seeds"] == "3"
    assert again.output == (out / "table.md").read_text()
    (line,) = call("reproduce", file, "--out", out, code=2).stderr.splitlines()
    assert line.startswith(f"error: {out / 'one' / 'seed0'}: holds another run, which differs in method_args.alpha; ")


def test_what_broke_off_is_gone_on_with_to_the_same_numbers(file, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    call("reproduce", file, "--seeds", 2, "--out", whole)
    real = Record.round

    def interrupted(self, line, *args, **more):
        real(self, line, *args, **more)
        if line["round"] == 2 and self.folder.path.name == "seed1":
            raise KeyboardInterrupt

    monkeypatch.setattr(Record, "round", interrupted)
    done = call("reproduce", file, "--seeds", 2, "--out", broken, code=130)
    assert done.stderr.startswith("interrupted; to go on: labelskew ")
    assert len(metrics(broken / "one" / "seed1")) == 3
    assert not (broken / "table.csv").exists()
    monkeypatch.setattr(Record, "round", real)
    # and one that broke off while it was being prepared
    late = broken / "one" / "seed2"
    late.mkdir()
    (late / "partition.json").write_text("{}")
    (late / "partition.png.part").write_text("")
    call("reproduce", file, "--seeds", 3, "--out", broken)
    for seed in ("seed0", "seed1"):
        assert (broken / "one" / seed / "metrics.jsonl").read_bytes() == (
            whole / "one" / seed / "metrics.jsonl"
        ).read_bytes()
    assert len(metrics(late)) == 6


def test_a_folder_of_somebody_else_s_is_left_alone(file, tmp_path):
    mine = tmp_path / "out" / "one" / "seed0"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("mine")
    (line,) = call("reproduce", file, "--out", tmp_path / "out", code=2).stderr.splitlines()
    assert f"run directory {mine} is not empty" in line
    assert (mine / "thesis.txt").read_text() == "mine"


def test_a_recipe_without_a_number_is_run_all_the_same(file, tmp_path):
    file.write_text(TEXT.partition("expected:")[0])
    call("reproduce", file, "--seeds", 1, "--out", tmp_path / "out")
    (row,) = table(tmp_path / "out")
    assert (row["expected"], row["verdict"]) == ("", "no number to compare with")
    assert float(row["ours"]) > 10


def test_it_is_nothing_for_mpirun(monkeypatch):
    for name, value in (("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    (line,) = call("reproduce", "quickstart", code=2).stderr.splitlines()
    assert line.endswith("reproduce starts mpirun itself, where a recipe asks for it; without mpirun would be right")


def test_rounds_that_were_set_lower_are_cut_rounds_and_a_broken_summary_is_a_line(file, tmp_path):
    words = ["reproduce", file, "--seeds", 1, "--out", tmp_path / "out", "--set", "train_args.comm_round=3"]
    call(*words)
    rows = table(tmp_path / "out")
    assert {row["rounds"] for row in rows} == {"3 of 6"}
    assert all(row["verdict"].endswith(" (rounds cut)") for row in rows)
    lines = metrics(tmp_path / "out" / "one" / "seed0")
    assert float(rows[0]["ours"]) == pytest.approx(50 * (lines[1]["accuracy"] + lines[2]["accuracy"]), abs=0.006)
    summary = tmp_path / "out" / "one" / "seed0" / "summary.json"
    summary.write_text("{")
    (line,) = call(*words, code=2).stderr.splitlines()
    assert line == f"error: {summary}: holds no summary; to delete it, and the same again, would be right"
    summary.unlink()
    call(*words)
    assert [row["ours"] for row in table(tmp_path / "out")] == [row["ours"] for row in rows]


def test_made_up_data_get_no_verdict(tmp_path):
    call("data", "fake", "svhn", "--out", tmp_path / "data", "--samples", 200)
    # of the recipe's 100 rounds of a ResNet18, a round of something small
    small = ["model_args.model=logistic", "train_args.epochs=1", "train_args.comm_round=1"]
    words = [word for each in (*small, f"data_args.data_cache_dir={tmp_path / 'data'}") for word in ("--set", each)]
    done = call("reproduce", "fedmr/table1_svhn_p5c2", "--seeds", 1, "--out", tmp_path / "out", *words)
    (row,) = table(tmp_path / "out")
    assert (row["recipe"], row["expected"], row["verdict"]) == (
        "fedmr/table1_svhn_p5c2",
        "83.1",
        "none: the data are made up",
    )
    assert row["changed"] == "model: resnet18 -> logistic; comm_round: 100 -> 1; epochs: 10 -> 1"
    assert row["rounds"] == "1 of 100"
    assert "warning: data_args.data_cache_dir: made up" in done.output
    assert (tmp_path / "out" / "fedmr" / "table1_svhn_p5c2" / "seed0" / "summary.json").exists()


def test_a_folder_that_cannot_be_written_is_a_line(file):
    out = file / "out"
    (line,) = call("reproduce", file, "--out", out, code=2).stderr.splitlines()
    assert line == f"error: --out {out}: cannot be written: Not a directory"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nosuch"], "recipe 'nosuch' is unknown; one of labelskew recipes ls would be right"),
        (["quickstart", "quickstart.yaml"], "quickstart.yaml: quickstart is there twice; each recipe once"),
        (["quickstart", "--budget", "soon"], "--budget soon: no time; 90s, 30m, 2h or 1h30m would be right"),
        (
            ["quickstart", "--set", "method_args.alhpa=1"],
            "--set method_args.alhpa: unknown key; allowed: method, alpha",
        ),
        (["fedmr/isic2019"], "isic2019.yaml: data set isic2019: data_args.data_cache_dir is not set; get it from"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    (said,) = call("reproduce", *words, code=2).stderr.splitlines()
    assert line in said
    assert not list(tmp_path.iterdir())
