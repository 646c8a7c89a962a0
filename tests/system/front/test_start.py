"""Whole runs in real processes: the same numbers twice, after a kill, and after Ctrl-C; mistakes in one line."""

import json
import os
import re
import select
import shlex
import signal
import time
from pathlib import Path

import pytest
from commands import errors
from safetensors.torch import load_file

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.machine.files import read_lines

RECIPE = """\
common_args: {{random_seed: 3}}
data_args: {{dataset: digits}}
partition_args: {{partition_method: pcdd, classes_per_client: 2}}
model_args: {{model: mlp}}
train_args: {{client_num_in_total: 6, client_num_per_round: 4, comm_round: {rounds}, epochs: 2, batch_size: 16,
             learning_rate: 0.05, momentum: 0.9}}
method_args: {{method: {method}}}
device_args: {{threads: 1}}
tracking_args: {{checkpoint_every: 3}}
"""
DRAWN = {"FL_LABELSKEW_PICTURES": "yes"}
"""With this, a process of the forker draws its run's pictures."""


@pytest.fixture(scope="module")
def start(forker, tmp_path_factory):
    """Starts ``labelskew run`` in a folder."""

    def start(folder, *arguments, **more):
        log = tmp_path_factory.mktemp("said")
        return forker.start(["run", *arguments], log / "out", errors=log / "err", cwd=folder, **more)

    return start


@pytest.fixture(scope="module")
def finish(start):
    """The same until it ends: exit code and output."""
    return lambda *arguments, **more: ended(start(*arguments, **more))


def ended(process):
    return process.wait(), process.log.read_text(), process.log.with_name("err").read_text()


def wait_for_rounds(folder, rounds, process):
    file = folder / "metrics.jsonl"
    while len(read_lines(file)) < rounds:
        assert process.pid not in process.forker.ended, ended(process)
        time.sleep(0.005)


def write(folder, method="map", rounds=8):
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(method=method, rounds=rounds))
    return recipe


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, finish):
    folder = tmp_path_factory.mktemp("undisturbed")
    code, out, err = finish(folder, write(folder), "--run-dir", folder / "run", environment=DRAWN)
    assert (code, err) == (0, "")
    return folder / "run", out


def assert_same(run, other):
    for name in ("metrics.jsonl", "best.safetensors"):
        assert (run / name).read_bytes() == (other / name).read_bytes()
    models, others = ([*folder.glob("model.safetensors"), *sorted(folder.glob("clients/*"))] for folder in (run, other))
    assert [file.name for file in models] == [file.name for file in others]
    for one, another in zip(map(load_file, models), map(load_file, others), strict=True):
        assert all(one[key].equal(another[key]) for key in one)


def test_a_run_writes_all_files(undisturbed):
    run, out = undisturbed
    names = {f.name for f in run.iterdir()}
    assert names >= {
        "recipe.yaml", "environment.json", "partition.json", "partition.png", "metrics.jsonl", "timings.jsonl",
        "summary.json", "curves.png", "model.safetensors", "clients", "checkpoint",
        "best.safetensors", "MODEL_CARD.md", "confusion.csv", "confusion.png",
    }  # fmt: skip
    lines = read_lines(run / "metrics.jsonl")
    assert [line["round"] for line in lines] == list(range(8))
    assert all(len(line["clients"]) == 4 for line in lines)
    assert {tuple(line["clients"]) for line in lines} != {(0, 1, 2, 3)}
    summary = json.loads((run / "summary.json").read_text())
    tail = [line["accuracy"] for line in lines[-5:]]
    assert summary["last_mean"] == pytest.approx(sum(tail) / 5)
    assert summary["final_accuracy"] > 0.3
    assert 0.5 < summary["private_models_accuracy"] <= 1
    # lines count from 0, people from 1: in the summary as on the screen
    assert lines[summary["rounds_to_best"] - 1]["accuracy"] == summary["best_accuracy"]
    assert f"{100 * summary['best_accuracy']:.2f} % in round {summary['rounds_to_best']}\n" in out
    environment = json.loads((run / "environment.json").read_text())
    assert (environment["personal_models"], environment["class_names"]) == (True, [str(c) for c in range(10)])
    assert environment["made_up_data"] is False
    assert "personalised models, own test splits" in out
    assert len(out.splitlines()) == 8 + 4 + 8 + 1  # rounds, opening lines, table, folder


@pytest.mark.parametrize("rounds", [0, 2, 5])
def test_a_killed_run_resumes_with_identical_results(start, finish, undisturbed, tmp_path, rounds):
    recipe = write(tmp_path)
    process = start(tmp_path, recipe, "--run-dir", "run")
    if rounds:
        wait_for_rounds(tmp_path / "run", rounds, process)
    else:  # after the folder was begun, before the first round
        while not (tmp_path / "run" / "recipe.yaml").exists():
            time.sleep(0.005)
    process.kill()
    process.wait()
    arguments = [recipe, "--resume", "run"] if rounds == 2 else ["--resume", "run"]
    code, _, err = finish(tmp_path, *arguments)
    assert (code, err) == (0, "")
    assert_same(undisturbed[0], tmp_path / "run")


def test_an_interruption_leaves_a_checkpoint_and_one_message(start, finish, undisturbed, tmp_path):
    process = start(tmp_path, write(tmp_path), "--run-dir", "run")
    wait_for_rounds(tmp_path / "run", 4, process)
    process.kill(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130, err
    lines = err.splitlines()
    assert len(lines) == 1
    done, typed = re.fullmatch(r"interrupted after (\d) of 8 rounds; to resume: labelskew run (.*)", lines[0]).groups()
    assert typed == f"{tmp_path / 'recipe.yaml'} --resume run"
    code, out, _ = finish(tmp_path, *shlex.split(typed))
    assert code == 0
    assert f"{done} already done" in out  # nothing that was complete is trained again
    assert_same(undisturbed[0], tmp_path / "run")


def test_a_closed_terminal_leaves_a_checkpoint(forker, tmp_path):
    write(tmp_path, "fedavg", rounds=9999)
    ours, theirs = os.openpty()
    command = ["run", "recipe.yaml", "--host", "none", "--run-dir", "run"]
    process = forker.start(command, Path(os.ttyname(theirs)), cwd=tmp_path)
    file = tmp_path / "run" / "metrics.jsonl"
    while len(read_lines(file)) < 2:
        if select.select([ours], [], [], 0.01)[0]:
            os.read(ours, 2**16)
    os.close(theirs)
    os.close(ours)
    assert process.kill(signal.SIGHUP).wait(60) == 130
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "stopped"
    lines = file.read_text().splitlines()
    fl.load_run(tmp_path / "run").resume(comm_round=len(lines) + 1, quiet=True)
    assert file.read_text().splitlines()[:-1] == lines


@pytest.mark.parametrize("largest", [5_000, 40_000])
def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(finish, undisturbed, tmp_path, largest):
    code, _, err = finish(tmp_path, write(tmp_path), "--run-dir", "run", largest=largest, environment=DRAWN)
    assert code == 1
    says = r"error: run directory run cannot be written any more: .*; free some space; to resume: labelskew run .*\n"
    assert re.fullmatch(says, err)
    if largest == 5_000:  # not even the pictures and the recipe were there
        return
    code, _, err = finish(tmp_path, "--resume", "run")
    assert (code, err) == (0, "")
    assert_same(undisturbed[0], tmp_path / "run")


MISTAKES = {
    "is not empty": "{recipe} --run-dir {run}",
    "is a file": "{recipe} --run-dir {tmp}/file",
    "cannot be written": "{recipe} --run-dir /proc/labelskew/run",
    "no such folder": "--resume {tmp}/nowhere",
    "recipe.yaml is missing": "--resume {tmp}/empty",
    "differs from the run's in method_args.method": "{tmp}/other.yaml --resume {run}",
    "only train_args.comm_round and train_args.stop can change": "--resume {run} --set train_args.epochs=3",
    "use one of them": "{recipe} --resume {run} --run-dir {tmp}/x",
    "no recipe given": "",
    "use it with --resume": "{recipe} --from-round 3",
    "remove --dry-run": "--resume {run} --from-round 8 --dry-run",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(undisturbed, tmp_path, words):
    run, recipe = undisturbed[0], write(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.yaml").write_text(RECIPE.format(method="fedrs", rounds=8))
    (line,) = errors("run", *MISTAKES[words].format(recipe=recipe, run=run, tmp=tmp_path).split(), "--quiet")
    assert words in line
    assert not (tmp_path / "runs").exists()


def test_divergence_is_one_line_and_exit_code_1(finish, tmp_path):
    recipe = write(tmp_path, "fedavg")
    code, _, err = finish(tmp_path, recipe, "--run-dir", "run", "--set", "train_args.learning_rate=1.0e+30")
    assert code == 1
    assert re.fullmatch(r"error: round 1: upload of client \d: \S+ is not finite, training diverged; .*\n", err)
