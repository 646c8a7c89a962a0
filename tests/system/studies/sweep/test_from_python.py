"""``fl.sweep``: the command's runs, as objects and as a table."""

import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from federations import wait_until
from fl_labelskew_registry import LabelSkewError
from recipe_texts import DIGITS

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.studies.sweep import from_python, plan

GRID = {"common_args.random_seed": [0, 1, 2]}
SEEDS = {"base": "quickstart", "grid": [GRID]}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"sweep": SEEDS}, "out: missing; use the folder of all runs"),
        ({"sweep": SEEDS | {"grid": [{"train_args.epoch": [1]}]}, "out": "o"}, "o/sweep.yaml: train_args.epoch: unk"),
        ({"sweep": SEEDS | {"grid": [{"train_args.epochs": 3}]}, "out": "o"}, "train_args.epochs: expected a mapping"),
        ({"sweep": "none.yaml"}, "none.yaml"),
    ],
)  # fmt: skip
def test_mistakes_of_sweep(words, line, here):
    with pytest.raises(LabelSkewError, match=line.replace("?", r"\?")):
        fl.sweep(**words)


def test_a_sweep_given_as_content_equals_its_file(tmp_path, here):
    (tmp_path / "mine.yaml").write_text("# a recipe\n")
    file = from_python._written({"base": Path("mine.yaml"), "grid": [{"a.b": [1]}], "out": "runs/x"}, {}, None)
    assert file == Path("runs/x/sweep.yaml")
    assert plan._read(file).base == str(tmp_path / "mine.yaml")
    file = from_python._written({"base": DIGITS, "grid": [GRID]}, {"train_args.epochs": 2}, tmp_path / "other")
    assert {run.recipe.train.epochs for run in plan.plan(file)} == {2}
    assert [run.name for run in plan.plan(file)] == ["seed0", "seed1", "seed2"]
    (tmp_path / "other" / "recipe.yaml").write_text("")
    with pytest.raises(LabelSkewError, match="other: is the folder of a run; use another folder"):
        from_python._written({"base": DIGITS, "grid": [GRID]}, {}, tmp_path / "other")


def test_files_of_the_user_are_not_replaced(tmp_path):
    for name in ("sweep.yaml", "base.yaml"):
        (tmp_path / name).write_text("# mine\n")
        with pytest.raises(LabelSkewError, match=f"{name}: was not written by fl.sweep; use another folder for out="):
            fl.sweep(SEEDS | {"base": DIGITS}, out=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_text() == "# mine\n"
        (tmp_path / name).unlink()
    for _ in range(2):  # its own files are
        from_python._written({"base": DIGITS, "grid": [GRID]}, {}, tmp_path)


def test_values_of_a_grid_may_be_numpy_numbers(tmp_path):
    axes = [{"common_args.random_seed": np.arange(2)}, {"train_args.epochs": [np.int64(2)]}]
    changes = {"train_args.learning_rate": np.float64(0.25), "train_args.comm_round": np.int64(3)}
    planned = plan.plan(from_python._written({"base": DIGITS, "grid": axes, "set": None}, changes, tmp_path))
    assert [run.name for run in planned] == ["seed0-epochs2", "seed1-epochs2"]
    train = planned[1].recipe.train
    assert (planned[1].recipe.common.random_seed, train.epochs, train.comm_round) == (1, 2, 3)
    assert fl.load("quickstart", {"train_args.comm_round": np.int64(3)}).train.comm_round == 3


def test_sweep_runs_resumes_and_reports_what_failed(tmp_path, here, monkeypatch, capsys):
    (tmp_path / "click.py").write_text("raise SystemExit('imported from the current folder')")
    taken = tmp_path / "out" / "seed2" / "thesis.txt"
    taken.parent.mkdir(parents=True)
    taken.write_text("mine")
    taken.with_name("environment.json").write_text("[]")
    words = {"sweep": {"base": DIGITS, "grid": [GRID]}, "out": tmp_path / "out", "jobs": 2, "host": "none"}
    runs, table = fl.sweep(**words)
    assert [run.folder.name for run in runs] == ["seed0", "seed1"]
    assert all(run.finished for run in runs)
    assert table.index.tolist() == ["seed0", "seed1", "seed2"]
    assert table.state.tolist() == ["finished", "finished", "failed"]
    assert table.reason.tolist()[:2] == ["", ""]
    assert table.reason["seed2"].endswith(f"seed2 is not empty; use a new or empty folder, or --resume {taken.parent}")
    assert table.accuracy.tolist()[:2] == [run.accuracy for run in runs]
    assert table.best.tolist()[:2] == [run.metrics.accuracy.max() for run in runs]
    assert table["common_args.random_seed"].tolist() == [0, 1, 2]
    assert not [name for name in table if name.startswith("device_args")]
    told = capsys.readouterr().out
    assert "3 runs: 0 finished, 0 to resume; at most 2 at a time" in told
    assert "failed: seed2: run directory" in told

    monkeypatch.setattr(subprocess, "Popen", None)  # all runs are finished, so no process starts
    again = fl.sweep(**words | {"only": ["seed0", "seed1"], "quiet": True})
    assert [run.summary for run in again.runs] == [run.summary for run in runs]
    assert fl.report(again.runs, last=1).table.seeds.tolist() == [2]


def test_sweep_is_interrupted_with_a_checkpoint(tmp_path, forker):
    content, words = {"base": DIGITS, "grid": [GRID]}, {"out": "out", "jobs": 1, "host": "none"}
    changes = {"train_args.comm_round": 4000}
    script = f"import fl_labelskew_plugins as fl\nfl.sweep({content!r}, {changes!r}, **{words!r})\n"
    (tmp_path / "sweep.py").write_text(script)  # without a guard of __main__, which runs must not import
    process = forker.start([], tmp_path / "log", script=tmp_path / "sweep.py", cwd=tmp_path)
    wait_until((tmp_path / "out" / "seed0" / "metrics.jsonl").exists)
    assert process.kill(signal.SIGINT).wait() == 1
    assert process.text.endswith("KeyboardInterrupt: interrupted: 0 of 3 runs finished\n")
    assert fl.load_run(tmp_path / "out" / "seed0").metrics.index.max() < 3999
    assert (tmp_path / "out" / "seed0" / "checkpoint" / "latest.safetensors").exists()
