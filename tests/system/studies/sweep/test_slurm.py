"""A sweep as an array job: what its script says, what is refused, and a real Slurm one of whose nodes is killed."""

import shlex
import subprocess
import sys

import pytest
from commands import call, errors

from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.studies.sweep import plan


def options(text):
    words = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)


@pytest.fixture
def dry(write, tmp_path):
    """The script for a sweep's file and these words."""

    def script(*words, **more):
        return call("sweep", write(), "--out", tmp_path / "out", "--slurm", "--dry-run", *words, **more).output

    return script


def finish(run):
    """What a run that is done has at least."""
    run.folder.create()
    run.folder.write_text("recipe.yaml", run.recipe.dump())
    run.folder.write_json("summary.json", {})


def test_one_task_per_unfinished_run(dry, write, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = dry("--set", "train_args.epochs=2", "--only", "fedavg", "--host", "none")
    fixed = {"job-name": "out", "open-mode": "append", "requeue": "", "signal": "B:USR1@60", "cpus-per-task": "1"}
    output = f"{tmp_path}/out/_logs/slurm-%A_%a.txt"
    assert options(text) == fixed | {"chdir": str(tmp_path / "here"), "output": output, "array": "0-1"}
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    (line,) = [line for line in text.splitlines() if line.endswith(' "$SLURM_ARRAY_TASK_ID" &')]
    words = [sys.executable, "-m", "fl_labelskew_plugins.cli.main", "sweep", tmp_path / "grid.yaml"]
    words += ["--out", tmp_path / "out", "--set", "train_args.epochs=2", "--only", "fedavg", "--host", "none", "--task"]
    assert shlex.split(line)[:-2] == [str(word) for word in words]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base.yaml", "grid.yaml", "here"]

    first, second, third = plan.plan(write(), out=tmp_path / "out")
    finish(second)
    assert options(dry())["array"] == "0,2"
    assert options(dry("--task", "1-2"))["array"] == "2"
    first.folder.create()
    with locks.hold(first.folder.path):
        assert options(dry("--set-sbatch", "array=%4"))["array"] == "2%4"
        finish(third)
        assert dry() == "3 runs: 2 finished, 1 running; nothing to submit\n"


def test_resources_of_a_job(dry):
    mpi = ("--set", "comm_args.backend=MPI", "--set", "comm_args.workers=3", "--set", "device_args.threads=2")
    assert options(dry(*mpi))["cpus-per-task"] == "8"  # the server's process, too
    gpus = ("--set", "device_args.using_gpu=true", "--set", "device_args.gpu_ids=[0, 1]")
    assert options(dry(*gpus))["gres"] == "gpu:1"  # though there is none where it is submitted
    assert options(dry(*gpus, *mpi))["gres"] == "gpu:2"
    wanted = ["partition=gpu", "exclusive", "signal=B:USR1@300", "cpus-per-task=4", 'comment=it\'s # $HOME `id` "x"']
    given = options(dry(*(f"--set-sbatch={setting}" for setting in wanted)))
    assert given["signal"] == "B:USR1@300"
    assert {setting.partition("=")[::2] for setting in wanted} <= {*given.items()}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--set-sbatch", "a b=c"], "--set-sbatch a b=c: is malformed; use long options of sbatch without --, such "),
        (["--set-sbatch", "mem=1\n#SBATCH --wrap=id"], "--set-sbatch mem=1?#SBATCH --wrap=id: is malformed; use "),
        (["--set-sbatch", "array=0-99"], "--set-sbatch array=0-99: conflicts with the script; use %N, the "),
        (["--set-sbatch", "signal=9"], "--set-sbatch signal=9: conflicts with the script; use B:USR1@"),
        (["--jobs", "2"], "--slurm: --jobs and --memory have no effect on Slurm; use --set-sbatch array=%8 and mem=8G"),
        (["--set", "comm_args.backend=MPI"], "fedavg-seed0: comm_args.workers: null: the number of cores of a task"),
        (["--set", "comm_args.backend=GRPC", "--set", "common_args.training_type=cross_silo"], "silos of two tasks"),
        (["--out", "/a\nb"], "/a?b: contains characters that a script cannot contain; use another folder"),
    ],
)
def test_invalid_jobs(write, words, line):
    (mistake,) = errors("sweep", write(), "--slurm", "--dry-run", *words)
    assert line in mistake


def test_slurm_is_missing(write, tmp_path):
    command = ["sweep", write(), "--out", tmp_path / "out"]
    (mistake,) = errors(*command, "--set-sbatch", "mem=8G")
    assert mistake == "--set-sbatch: needs --slurm; use it with --slurm"
    result = call(*command, "--slurm", code=2, PATH="/nowhere")
    use = "the cluster's login node, or --dry-run to see the script"
    assert result.stderr == f"error: --slurm: sbatch is not installed on this machine; use {use}\n"
    assert not (tmp_path / "out").exists()


def test_all_runs_are_done_once_despite_a_lost_node_and_a_time_limit(write, tmp_path, slurm):
    out, rounds = tmp_path / "5 % o'clock", 300
    command = ["sweep", write(), "--out", out, "--only", "seed0", "--slurm", "--host", "none"]
    command += ["--set", f"train_args.comm_round={rounds}", "--set", "tracking_args.checkpoint_every=5"]
    result = call(*command, "--set-sbatch", "partition=nowhere", code=2, **slurm.environment)
    assert result.stderr == (
        "error: sbatch: invalid partition specified: nowhere; Batch job submission failed: Invalid partition name "
        "specified\n"
    )
    comment = r"""it's 50 % "x" # $HOME `id` \n"""
    wanted = [f"comment={comment}", "cpus-per-task=2"]  # one to a node
    first, *_ = call(
        *command, *(f"--set-sbatch={setting}" for setting in wanted), **slurm.environment
    ).stdout.splitlines()
    assert first == "2 runs: 0 finished, 0 running; job 1 has 2 tasks"
    assert slurm.call("squeue", "--noheader", "--format=%k").stdout.splitlines()[0] == comment

    runs = plan.plan(write(), only=["seed0"], out=out)
    slurm.until(lambda: len(read_lines(runs[0].folder.metrics)) > 10, 120)
    slurm.call("scancel", "--signal=USR1", "--batch", "1_0")  # as Slurm tells a task whose time is nearly over
    slurm.until(lambda: len(read_lines(runs[1].folder.metrics)) > 10, 120)
    node, began = slurm.call("squeue", "--noheader", "--format=%N", "--job=1_1").stdout.strip(), runs[1].folder.run_id()
    slurm.kill(node)
    slurm.until(lambda: not slurm.call("squeue", "--noheader").stdout, 120)
    assert call(*command, **slurm.environment).output == "2 runs: 2 finished, 0 running; nothing to submit\n"
    assert runs[1].folder.run_id() == began  # gone on with, not begun anew
    for number, run in enumerate(runs):
        assert [line["round"] for line in read_lines(run.folder.metrics)] == [*range(rounds)]
        told = slurm.call("scontrol", "show", "job", f"1_{number}").stdout
        assert " Restarts=1 " in told
        assert f" BatchHost={node} " not in told
        log = (out / "_logs" / f"slurm-1_{number}.txt").read_text()
        assert log.count("interrupted: 0 of 1 runs finished; to resume: ") == (number == 0)
        assert log.count(f"task {number}  {run.name}  accuracy ") == 1
