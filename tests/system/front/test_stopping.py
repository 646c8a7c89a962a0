"""Runs that stop early, by ``train_args.stop`` or a callback."""

import json

import pytest
from commands import call
from fl_labelskew_registry import LabelSkewError
from recipe_texts import DIGITS

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.studies import finished

TWO = {"train_args": DIGITS["train_args"] | {"client_num_in_total": 2}, "partition_args": {"partition_method": "iid"}}
STOP = {"train_args.comm_round": 6, "train_args.stop": {"patience": 1, "min_delta": 0.5}}  # after the second round


class StopsAfter:
    def __init__(self, rounds):
        self.rounds = rounds

    def on_round(self, run, line):
        if line["round"] + 1 == self.rounds:
            raise StopIteration("enough for today")


def same(a, b, *names):
    return all((a.folder / name).read_bytes() == (b.folder / name).read_bytes() for name in names)


@pytest.mark.parametrize("backend", ["sp", "MPI", "GRPC"])
def test_a_stopped_run_has_results_and_can_be_continued(backend, tmp_path, fork_children):
    recipe = DIGITS | {"comm_args": {"backend": backend}} | ({} if backend == "sp" else TWO)
    recipe |= {"common_args": {"training_type": "cross_silo"}} if backend == "GRPC" else {}
    run = fl.run(fl.load(recipe, STOP), tmp_path / "run", quiet=True, host="none")
    reason = run.summary["stopped"]
    assert reason.startswith("accuracy has not improved by 0.5 in 1 test; the best one is ")
    assert len(run.metrics) == run.summary["rounds"] == 2
    assert (run.folder / "model.safetensors").exists()
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("stopped", reason)
    shown = call("status", run.folder).output
    assert f"{run.folder}: stopped\n" in shown
    assert f"reason: {reason}" in shown
    assert (
        f"stopped after 2 of 6 rounds: {reason}; to continue: --set train_args.stop=null"
        in call("run", "--resume", run.folder, "--host", "none").output
    )
    assert finished.read(run.folder).complete
    run = run.resume(comm_round=3, early_stopping=False, quiet=True)
    whole = fl.run(fl.load(recipe, {"train_args.comm_round": 3}), tmp_path / "whole", quiet=True, host="none")
    assert same(run, whole, "metrics.jsonl", "model.safetensors", "recipe.yaml")
    assert "stopped" not in run.summary
    assert json.loads((run.folder / "after-2-rounds" / "summary.json").read_text())["stopped"] == reason


def test_a_callback_that_raises_stop_iteration_stops_the_run(tmp_path):
    recipe = fl.load(DIGITS, {"train_args.comm_round": 4, "tracking_args.checkpoint_every": 4})
    run = fl.run(recipe, tmp_path / "run", quiet=True, host="none", callbacks=[StopsAfter(2)])
    assert (run.summary["stopped"], len(run.metrics)) == ("enough for today", 2)
    assert json.loads((run.folder / "status.json").read_text())["state"] == "stopped"
    whole = fl.run(recipe, tmp_path / "whole", quiet=True, host="none")
    assert same(run.resume(comm_round=4, quiet=True), whole, "metrics.jsonl", "model.safetensors")


def test_a_run_that_was_killed_after_its_last_test_stops_when_it_is_resumed(tmp_path):
    recipe = fl.load(DIGITS, STOP | {"train_args.stop": {"target": 0.0}})
    run = fl.run(recipe, tmp_path / "run", quiet=True, host="none")
    for name in ("summary.json", "model.safetensors", "status.json"):
        (run.folder / name).unlink()
    run = run.resume(quiet=True)
    assert (len(run.metrics), run.summary["stopped"][-20:]) == (1, "reaches the target 0")


def test_rounds_of_a_loop_stop(tmp_path):
    loop = fl.simulate(fl.load(DIGITS, STOP), tmp_path / "run")
    assert len(list(loop)) == 2
    assert loop.run.summary["rounds"] == 2


def test_a_sweep_treats_stopped_runs_as_done(tmp_path):
    grid = {"base": "quickstart", "set": {"train_args": {"comm_round": 5}}, "grid": [{"common_args.random_seed": [0]}]}
    grid["set"]["train_args"]["stop"] = {"target": 0.1}
    runs, _ = fl.sweep(grid, out=tmp_path / "sweep", jobs=1)
    again, _ = fl.sweep(grid, out=tmp_path / "sweep", jobs=1)
    assert [len(run.metrics) for run in runs] == [len(run.metrics) for run in again] == [1]


def test_stop_excludes_a_closing_exchange():
    with pytest.raises(LabelSkewError, match=r"train_args\.stop: cannot be used with CCVR: its last round is"):
        fl.load(DIGITS, STOP | {"method_args.method": "ccvr"})
