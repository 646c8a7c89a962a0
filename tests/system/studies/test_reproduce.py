"""Recipes compared with their papers' numbers: run, resumed, limited, compared and written."""

import csv
import json
import math
import os
import statistics
from types import SimpleNamespace

import pytest
from commands import call
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.sections import Expected
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.studies import reproduce
from fl_labelskew_plugins.studies.finished import FinishedRun

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


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(TEXT)
    return path


def metrics(folder):
    return read_lines(folder / "metrics.jsonl")


def table(out):
    with (out / "table.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def number(value=70.0, tolerance=1.0, **more):
    return Expected(value=value, tolerance=tolerance, paper="P", table="Table 1", **more)


@pytest.mark.parametrize(
    ("expected", "values", "word"),
    [
        (number(), [69.0, 69.0], "reached"),
        (number(), [71.0], "reached"),
        (number(), [60.0, 80.0], "reached"),  # the mean counts
        (number(), [71.1], "beyond"),
        (number(), [68.9], "fell short"),
        (number(), [70.0, None], "not measured"),
        (number(25, 5, measure="rounds_to", target=50.0), [20.0, 30.0], "reached"),
        (number(25, 5, measure="rounds_to", target=50.0), [19.0], "beyond"),
        (number(25, 5, measure="rounds_to", target=50.0), [31.0], "fell short"),
        (number(25, 5, measure="rounds_to", target=50.0), [20.0, None], "fell short"),
    ],
)
def test_a_verdict_on_accuracies(expected, values, word):
    assert reproduce.verdict(expected, values) == word


def test_values_of_a_run_for_each_measure(file, tmp_path):
    (experiment,) = reproduce.experiments({"one": file}, [], tmp_path, 1)
    accuracies = [0.1, 0.5, 0.9, 0.6, 0.7, 0.8]
    lines = [{"round": r, "accuracy": a, "balanced_accuracy": a / 2} for r, a in enumerate(accuracies)]
    run = FinishedRun("r", {}, lines)
    assert reproduce.measured(run, number(), experiment, 6) == pytest.approx(75)  # the last 4
    assert reproduce.measured(run, number(), experiment, 3) == pytest.approx(75)  # a recipe cut to half: the last 2
    assert reproduce.measured(run, number(measure="balanced_accuracy"), experiment, 6) == pytest.approx(37.5)
    assert reproduce.measured(run, number(measure="best_accuracy"), experiment, 6) == pytest.approx(90)
    assert reproduce.measured(run, number(measure="rounds_to", target=50.0), experiment, 6) == 2
    assert reproduce.measured(run, number(measure="rounds_to", target=91.0), experiment, 6) is None
    assert reproduce.measured(run, number(measure="personalised_accuracy"), experiment, 6) is None


def test_settings_that_make_another_experiment(file):
    plain = parse.load(file)
    same = ["common_args.random_seed=3", "tracking_args.run_dir=x", "device_args.threads=1"]
    assert reproduce.differences(plain, parse.load(file, [*same, "data_args.data_cache_dir=x"])) == ()
    other = ["method_args.alpha=0.9", "device_args.precision=bf16", "partition_args.partition_method=iid"]
    assert set(reproduce.differences(plain, parse.load(file, other))) == {
        "alpha: 0.5 -> 0.9",
        "precision: fp32 -> bf16",
        "partition_method: pcdd -> iid",
        "classes_per_client: 2 -> null",
        "assignment: fedmr -> null",
    }


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800)])
def test_budgets(text, seconds):
    assert reproduce.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "2x", "h", "-2h", "2h 30", "0s", "two hours"])
def test_invalid_budgets(text):
    with pytest.raises(LabelSkewError, match=r"^--budget .*; use a "):
        reproduce.seconds_of(text)


@pytest.mark.parametrize(("seconds", "done"), [(20, [2, 3, 3]), (9, [1, 1, 1]), (400, [6, 6, 6]), (2, [0, 0, 0])])
def test_a_budget_is_shared_equally_and_unused_time_is_shared_again(file, tmp_path, monkeypatch, seconds, done):
    """Rounds of 2 s, and a start of 1 s each."""
    now = 0.0

    def complete(path, settings, folder, options):
        nonlocal now
        pause = options.pause
        folder.create()
        now += 1
        while len(metrics(folder.path)) < pause.rounds and now + 2 <= pause.at:
            folder.append(folder.metrics, {"round": 0})
            now += 2

    monkeypatch.setattr(reproduce, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(reproduce, "complete", complete)
    (experiment,) = experiments = reproduce.experiments({"one": file}, [], tmp_path / "out", 3)
    reproduce.run_all(experiments, [].append, quiet=True, until=seconds)
    assert [len(run.folder.lines) for run in experiment.runs] == done
    assert now <= max(seconds, 3)


SCHEDULED = [
    "method_args.method=map", "train_args.lr_schedule=step", "train_args.comm_round=12",
    "validation_args.personalised=true",
]  # fmt: skip


def test_rounds_within_a_budget_equal_the_first_rounds_of_the_full_run(file, tmp_path):
    whole, short, parts = (RunFolder(tmp_path / name) for name in ("whole", "short", "parts"))
    reproduce.complete(file, SCHEDULED, whole, RunOptions(quiet=True))
    reproduce.complete(file, [*SCHEDULED[:2], "train_args.comm_round=5", *SCHEDULED[3:]], short, RunOptions(quiet=True))
    assert metrics(short.path) != metrics(whole.path)[:5]  # rate and inheritance depend on how many there are in all
    for rounds in (5, 5, 9):
        reproduce.complete(file, SCHEDULED, parts, RunOptions(quiet=True, pause=Pause(rounds, math.inf)))
        assert metrics(parts.path) == metrics(whole.path)[:rounds]
        assert reproduce.held(file, SCHEDULED, parts) == "begun"
    reproduce.complete(file, SCHEDULED, parts, RunOptions(quiet=True, pause=Pause(12, 0.0)))  # the time is up
    assert len(metrics(parts.path)) == 9
    reproduce.complete(file, SCHEDULED, parts, RunOptions(quiet=True))
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_processes_of_a_run_pause_with_it(file, tmp_path, fork_children):
    here, there = (RunFolder(tmp_path / name) for name in ("here", "there"))
    reproduce.complete(file, [], here, RunOptions(quiet=True))
    over_mpi = ["comm_args.backend=MPI", "comm_args.workers=1"]
    reproduce.complete(file, over_mpi, there, RunOptions(quiet=True, pause=Pause(2, math.inf)))
    assert metrics(there.path) == metrics(here.path)[:2]
    assert not there.summary.exists()


def test_a_table_next_to_the_numbers_of_the_paper(file, tmp_path):
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
    assert (reach["measure"], reach["ours"], reach["verdict"]) == ("rounds_to 99.9", "0 of 2 reached it", "fell short")
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


def test_interrupted_runs_resume_with_identical_results(file, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    call("reproduce", file, "--seeds", 2, "--out", whole)
    real = Record.complete_round

    def interrupted(self, line, *args, **more):
        real(self, line, *args, **more)
        if line["round"] == 2 and self.folder.path.name == "seed1":
            raise KeyboardInterrupt

    monkeypatch.setattr(Record, "complete_round", interrupted)
    done = call("reproduce", file, "--seeds", 2, "--out", broken, code=130)
    assert done.stderr.startswith("interrupted; to resume: labelskew")
    assert len(metrics(broken / "one" / "seed1")) == 3
    assert not (broken / "table.csv").exists()
    monkeypatch.setattr(Record, "complete_round", real)
    # and one that was killed while it was being prepared
    late = broken / "one" / "seed2"
    late.mkdir()
    (late / "environment.json").write_text('{"notes": ["features.txt"]}')
    for name in ("features.txt", ".lock", "partition.json", "partition.png.part"):
        (late / name).touch()
    os.utime(late / ".lock", (0, 0))
    assert "3/3  one, seed" in call("reproduce", file, "--seeds", 3, "--out", broken, "--jobs", 2).output
    for seed in ("seed0", "seed1"):
        assert metrics(broken / "one" / seed) == metrics(whole / "one" / seed)
    assert len(metrics(late)) == 6


def test_a_recipe_without_a_published_number_is_run(file, tmp_path):
    file.write_text(TEXT.partition("expected:")[0])
    call("reproduce", file, "--seeds", 1, "--out", tmp_path / "out")
    (row,) = table(tmp_path / "out")
    assert (row["expected"], row["verdict"]) == ("", "no number to compare with")
    assert float(row["ours"]) > 10


def test_reproduce_is_refused_under_mpirun(monkeypatch):
    for name, value in (("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    (line,) = call("reproduce", "quickstart", code=2).stderr.splitlines()
    assert line.endswith("reproduce: starts its own processes; use it without mpirun")


def test_fewer_rounds_are_marked_and_a_broken_summary_is_one_line(file, tmp_path):
    words = ["reproduce", file, "--seeds", 1, "--out", tmp_path / "out", "--set", "train_args.comm_round=3"]
    call(*words)
    rows = table(tmp_path / "out")
    assert {row["rounds"] for row in rows} == {"3 of 6"}
    assert {row["verdict"] for row in rows} == {"not comparable (3 of 6 rounds)"}
    lines = metrics(tmp_path / "out" / "one" / "seed0")
    assert float(rows[0]["ours"]) == pytest.approx(50 * (lines[1]["accuracy"] + lines[2]["accuracy"]), abs=0.006)
    summary = tmp_path / "out" / "one" / "seed0" / "summary.json"
    summary.write_text("{")
    (line,) = call(*words, code=2).stderr.splitlines()
    assert line.startswith(f"error: {summary}: is damaged: ")
    (line,) = call("reproduce", file, "--out", file / "out", code=2).stderr.splitlines()
    assert line == f"error: --out {file / 'out'}: cannot be written: Not a directory"
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
    assert (row["recipe"], row["expected"]) == ("fedmr/table1_svhn_p5c2", "83.1")
    assert row["verdict"] == "none: the data are made up"
    assert row["changed"] == "model: resnet18 -> logistic; stem: small -> null; comm_round: 100 -> 1; epochs: 10 -> 1"
    assert row["rounds"] == "1 of 100"
    assert "warning: data_args.data_cache_dir: made-up data" in done.output
    folder = tmp_path / "out" / "fedmr" / "table1_svhn_p5c2" / "seed0"
    assert json.loads((folder / "environment.json").read_text())["made_up_data"] is True


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["quickstart", "quickstart.yaml"], "quickstart.yaml: quickstart is given twice; give each recipe once"),
        (["quickstart", "--budget", "soon"], "--budget soon: invalid duration; use a number with its unit, such as"),
        (["quickstart", "--budget", "1m", "--jobs", "2"], "--budget runs one recipe after the other; use it without"),
        (["quickstart", "--set", "method_args.alhpa=1"], "--set method_args.alhpa: unknown key; allowed: method, al"),
        (
            ["fedmr/isic2019"],
            "fedmr/isic2019: data set isic2019: data_args.data_cache_dir is not set; get the data set",
        ),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(here, words, line):
    (said,) = call("reproduce", *words, code=2).stderr.splitlines()
    assert line in said
    assert not list(here.iterdir())
