"""A sweep as an array job: what its script says, what is refused, and a real Slurm one of whose nodes is killed."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call, errors

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runs.folder import RunFolder


def options(text):
    """The script's options as sbatch reads them, but for what a backslash is to it."""
    words = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)


@pytest.fixture
def dry(write, tmp_path):
    """The script for a sweep's file and these words."""

    def script(*words, text=None):
        file = write() if text is None else write(text)
        return call("sweep", file, "--out", tmp_path / "out", "--slurm", "--dry-run", *words).output

    return script


def test_a_task_for_each_run_that_is_not_done(dry, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = dry("--set", "train_args.epochs=2", "--host", "none")
    assert options(text) == {
        "job-name": "out",
        "chdir": str(tmp_path / "here"),
        "output": f"{tmp_path}/out/_logs/slurm-%A_%a.txt",
        "open-mode": "append",
        "requeue": "",
        "signal": "B:USR1@60",
        "cpus-per-task": "1",
        "array": "0-2",
    }
    (line,) = [line for line in text.splitlines() if line.endswith(' "$SLURM_ARRAY_TASK_ID" &')]
    words = ["sweep", tmp_path / "grid.yaml", "--out", tmp_path / "out", "--set", "train_args.epochs=2"]
    words = [sys.executable, "-m", "fl_labelskew_plugins.cli.main", *words, "--host", "none", "--task"]
    assert shlex.split(line)[:-2] == [str(word) for word in words]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base.yaml", "grid.yaml", "here"]

    done = RunFolder(tmp_path / "out" / "fedavg-seed1")
    done.create()
    done.recipe.write_text(next(run for run in PLANS(tmp_path) if run.number == 1).recipe.dump())
    done.write_json("summary.json", {})
    assert options(dry())["array"] == "0,2"
