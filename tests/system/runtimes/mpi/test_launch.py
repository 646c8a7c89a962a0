"""Real ranks under a real mpirun: the message of each kind of end, and that no process remains."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from federations import wait_until
from fl_labelskew_registry import LabelSkewError
from recipe_texts import text_with

from fl_labelskew_plugins.engine import devices
from fl_labelskew_plugins.machine import place
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runtimes.mpi import launch

MPIRUN = ["mpirun", *["--allow-run-as-root"] * (os.geteuid() == 0), "--oversubscribe", "-np"]

# What a rank does, by the way it is to end. The pids that it writes show afterwards whether it is gone.
RANK = """
import os, signal, sys, time
from pathlib import Path
from fl_labelskew_registry import LabelSkewError
from fl_labelskew_plugins.runtimes.mpi.rank import as_rank, world
from fl_labelskew_plugins.cli.exits import guarded

how = sys.argv[1]

def interrupt(*_):
    if "CANNOT_SAVE" in os.environ:
        os._exit(9)
    Path("saved").touch()
    raise KeyboardInterrupt("interrupted after 3 rounds; to resume: labelskew run --resume run")

@guarded
def work():
    with as_rank():
        comm = world()
        rank = comm.Get_rank()
        Path(f"pid{rank}").write_text(str(os.getpid()))
        print(f"rank {rank} of {comm.Get_size()}", flush=True)
        if how == "mistake":
            raise LabelSkewError("recipe.yaml: a mistake that every rank finds")
        if how == "lonely" and rank == 2:
            raise LabelSkewError("a mistake of this worker alone")
        if how == "fine":
            print(sys.stdout.isatty(), sys.stdin.read(), os.environ.get("OMP_NUM_THREADS", "no"))
            print("heard at once", file=sys.stderr)
            return
        signal.signal(signal.SIGTERM, interrupt if rank == 0 else signal.SIG_DFL)
        if how == "deaf":  # to everything but SIGKILL
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"up{rank}").touch()
        while not all(Path(f"up{other}").exists() for other in range(3)):
            time.sleep(0.01)
        if how == "killed" and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "bug" and rank == 1:
            raise ZeroDivisionError
        time.sleep(60)

work()
"""

PARENT = """
import os, sys
from pathlib import Path
from fl_labelskew_plugins.runtimes.mpi import launch
from fl_labelskew_plugins.cli.exits import guarded

@guarded
def parent():
    Path("parent").write_text(str(os.getpid()))
    environment = {"FL_LABELSKEW_RESUME": "to resume: labelskew run --resume run"}
    launch.launch([sys.executable, "rank.py", sys.argv[1]], 3, run_dir=Path("run"), environment=environment)
    print("done")

parent()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    return tmp_path


def start(folder, how, script="parent.py", mpirun=(), **environment):
    kept = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command = [*mpirun, sys.executable, script, how]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=kept | environment, stdout=pipe, stderr=pipe, text=True)


def end(process):
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


def run(folder, how, **environment):
    return end(start(folder, how, **environment))


def alive(pid):
    """Whether a process is there and not only waiting for somebody to ask after it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def pids(folder):
    return [int(file.read_text()) for file in folder.glob("pid*")]


def all_up(folder):
    return lambda: all((folder / f"up{rank}").exists() for rank in range(3))


@pytest.mark.parametrize(("mpirun", "terminal"), [([], False), ([*MPIRUN, "1"], True)], ids=["plain", "inside mpirun"])
def test_a_run_that_ends_well(folder, mpirun, terminal):
    """An mpirun shows its ranks a terminal."""
    code, out, err = end(start(folder, "fine", mpirun=mpirun, OMP_NUM_THREADS="3"))
    assert (code, err) == (0, "heard at once\n")
    assert out == f"rank 0 of 3\n{terminal}  3\ndone\n"
    assert len(pids(folder)) == 3
    assert not any(map(alive, pids(folder)))


RESUME = "; to resume: labelskew run --resume run\n"
LEFT = "interrupted after 3 rounds" + RESUME


@pytest.mark.parametrize(
    ("how", "code", "err", "environment"),
    [
        # test_runtime.py has workers that are killed while the server can save, and a server that is killed or fails
        ("killed", 1, "error: worker 2 was killed by signal 9" + RESUME, {"CANNOT_SAVE": "1"}),
        ("mistake", 2, "error: recipe.yaml: a mistake that every rank finds\n", {}),
        ("lonely", 2, LEFT + "error: a mistake of this worker alone\n", {}),
    ],
)
def test_the_end_of_a_job_is_one_line(folder, how, code, err, environment):
    assert run(folder, how, **environment)[::2] == (code, err)
    assert not any(map(alive, pids(folder)))


def test_a_bug_keeps_its_traceback(folder):
    code, _, err = run(folder, "bug")
    assert code == 1
    assert err.count("Traceback") == 1
    assert err.endswith("ZeroDivisionError\nerror: worker 1 ended with exit code 1\n")


def test_an_interruption_ends_ranks_that_ignore_it(folder):
    process = start(folder, "deaf")
    wait_until(all_up(folder))
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert end(process)[::2] == (130, "interrupted" + RESUME)
    # the documented limit, on an idle machine
    assert time.monotonic() - begun < 10 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    assert not any(map(alive, pids(folder)))


def test_an_interruption_before_the_ranks_start(folder):
    process = start(folder, "sleep")
    wait_until((folder / "parent").exists)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert code == 130
    assert "Traceback" not in err
    assert not any(map(alive, pids(folder)))


def test_a_killed_parent_ends_all_processes(folder):
    process = start(folder, "sleep")
    wait_until(all_up(folder))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, pids(folder))), 60)
    assert (folder / "saved").exists()


def test_a_killed_mpirun_leaves_a_checkpoint_and_no_process(folder):
    process = start(folder, "sleep")
    wait_until(all_up(folder))
    (mpirun,) = psutil.Process(process.pid).children()
    mpirun.kill()
    assert end(process)[::2] == (1, LEFT + "error: mpirun was killed by signal 9\n")
    assert not any(map(alive, pids(folder)))


def test_the_ranks_use_the_width_of_the_parents_terminal(folder):
    ours, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "parent.py", "fine"], cwd=folder, stdout=theirs, start_new_session=True)
    os.close(theirs)
    assert process.wait(60) == 0
    assert b"True" in os.read(ours, 4096)
    os.close(ours)


def by_hand(folder, how):
    return start(folder, how, "rank.py", [*MPIRUN, "3"])


def test_an_mpirun_typed_by_hand_prints_one_message(folder):
    """Also for a mistake that every rank finds: test_runtime.py."""
    code, out, err = end(by_hand(folder, "killed"))
    assert code == 137
    assert (out + err).count(LEFT.strip()) == 1
    assert "rank 1" not in out
    wait_until(lambda: not any(map(alive, pids(folder))), 60)


def test_an_mpirun_typed_by_hand_is_interrupted(folder):
    process = by_hand(folder, "sleep")
    wait_until(all_up(folder))
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert code != 0
    assert "Traceback" not in err
    wait_until(lambda: not any(map(alive, pids(folder))), 60)


def test_srun_without_pmix_is_a_one_line_error(monkeypatch):
    for name, _ in place.RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    with pytest.raises(LabelSkewError, match=r"srun started 3 independent processes; use srun --mpi=pmix"):
        launch.check()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launch.check()


@pytest.mark.parametrize(
    ("mpirun", "code", "line"),
    [
        ("echo HYDRA build details", 2, "MPI needs Open MPI"),
        (
            'test "$1" = --version && echo Open MPI && exit; echo ----; echo no memory >&2; exit 3',
            1,
            "error: comm_args.backend: mpirun could not start: no memory\n",
        ),
    ],
)
def test_an_unusable_mpirun_is_a_one_line_error(folder, mpirun, code, line):
    (folder / "mpirun").write_text(f"#!/bin/sh\n{mpirun}\n")
    (folder / "mpirun").chmod(0o755)
    returned, _, err = run(folder, "fine", PATH=f"{folder}:{os.environ['PATH']}")
    assert (returned, len(err.splitlines())) == (code, 1)
    assert line in err


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"PMIX_RANK": "4", "SLURM_NTASKS": "5"}, (4, 5)),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, None),
    ],
)
def test_mpi_rank(monkeypatch, environment, expected):
    for name in [n for pair in place.RANKS for n in pair]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place.mpi_rank() == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, None),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "2"}, (0, 3)),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "1"}, None),
    ],
)
def test_local_rank_on_one_of_several_nodes(monkeypatch, environment, expected):
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert place.place_on_node() is None
    world = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "5"}
    for name, value in (world | environment).items():
        monkeypatch.setenv(name, value)
    assert place.place_on_node() == expected


def test_workers(monkeypatch):
    sizes = {"client_num_in_total": 10, "client_num_per_round": 4}
    text = text_with(train_args=sizes, comm_args={"backend": "MPI"})

    def number(*overrides, gpus=()):
        return devices.workers(parse.parse(text, overrides=overrides), gpus)

    assert number() == min(4, len(os.sched_getaffinity(0)))
    assert number("comm_args.workers=3") == 3
    assert number(gpus=[0, 1]) == 2
    assert number("device_args.workers_per_gpu=2", gpus=[0]) == 2
    assert number("device_args.workers_per_gpu=9", gpus=[0]) == 4  # as the clients of a round
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "7")
    assert number() == 6
