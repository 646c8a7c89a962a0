"""MPI simulation by its real commands: all ways of breaking off, and yet the numbers of one process."""

import contextlib
import json
import os
import re
import shlex
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from commands import call
from mpi_jobs import over_mpi, same_bytes
from recipe_texts import OVER_MPI
from safetensors.torch import load_file

MODULE = """
import os
from pathlib import Path
from fl_labelskew_plugins.methods.map import MAP

class Unruly(MAP):
    def loss(self, batch, client):
        if client.round and Path(os.environ["UNRULY"]).exists():
            raise ZeroDivisionError("of this plugin")
        return super().loss(batch, client)
"""
"""A method of another package: MAP, unless a file is there."""

RECIPE = OVER_MPI.replace("method: map", "method: unruly")
DRAWN = {"FL_LABELSKEW_PICTURES": "yes"}
"""Processes that mpirun has started draw a run's pictures; those of the forker do so, too, with this."""


def rounds(folder):
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def ranks(processes):
    """The ranks among processes, by their number."""
    results = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            results[int(process.environ().get("OMPI_COMM_WORLD_RANK", -1))] = process
    return {number: process for number, process in results.items() if number >= 0}


def alive(processes):
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


class Sittings:
    """One run in many sittings, each of which breaks off in its own way."""

    def __init__(self, forker, plugin, folder):
        self.forker, self.plugin, self.run = forker, plugin, folder / "run"
        self.logs, self.recipe = folder / "logs", folder / "recipe.yaml"
        self.unruly = Path(plugin["UNRULY"])
        self.recipe.write_text(RECIPE)
        self.logs.mkdir()
        self.ends, self.remains = {}, []

    def sit(self, name, *sets, stop=None):
        """Start or resume; a signal to a rank or (None) to the command, or the method, ends it."""
        self.unruly.touch() if stop is None else self.unruly.unlink(missing_ok=True)
        words = [word for override in sets for word in ("--set", override)]
        where = ["--resume", self.run] if self.run.exists() else [self.recipe, "--run-dir", self.run, "--host", "none"]
        before = rounds(self.run)
        command, more = ["run", *where, *words], {"environment": self.plugin, "fork_children": True}
        process = self.forker.start(command, self.logs / name, **more)
        launcher, until = psutil.Process(process.pid), time.monotonic() + 240
        family, seen = {process.pid: launcher}, {}
        while process.pid not in self.forker.ended:
            assert time.monotonic() < until, process.text
            with contextlib.suppress(psutil.Error):
                family |= {child.pid: child for child in launcher.children(recursive=True)}
            if not seen and rounds(self.run) > before:
                seen = ranks(family.values())
                if stop is not None:
                    rank, number = stop
                    os.kill(process.pid if rank is None else seen[rank].pid, number)
                    # 10 s on a machine that does nothing else
                    until = time.monotonic() + 10 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
            time.sleep(0.03)
        self.remains += alive(family.values())
        self.ends[name] = process.wait(), process.text, len(seen)


@pytest.fixture(scope="module")
def plugin(write_plugin, tmp_path_factory):
    """The variables with which every process finds the method."""
    folder = tmp_path_factory.mktemp("plugin")
    write_plugin(folder, "fl_labelskew.methods", MODULE, name="unruly", module="unruly", target="Unruly")
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": paths, "UNRULY": str(folder / "now")}


@pytest.fixture(scope="module")
def sittings(forker, plugin, tmp_path_factory):
    """What became of each sitting; the last one is a hand-typed mpirun that ends well."""
    made = Sittings(forker, plugin, tmp_path_factory.mktemp("sittings"))
    made.sit("raise", "comm_args.workers=9")
    made.sit("worker", "comm_args.workers=1", stop=(1, signal.SIGKILL))
    made.sit("server", "comm_args.workers=1", stop=(0, signal.SIGKILL))
    made.sit("interrupt", "comm_args.workers=1", stop=(None, signal.SIGINT))
    _, text, _ = made.ends["interrupt"]
    typed = shlex.split(text.rpartition("to resume: ")[2])
    made.last = forker.mpirun(None, typed[1:], environment=plugin | DRAWN)
    return made


RESUME = r"to resume: labelskew run .*--resume \S+ --host none\n"
LEFT = r"interrupted after \d+ of 20 rounds; " + RESUME
RAISED = (
    r"error: worker [12]: Unruly\.loss \(unruly\) raised ZeroDivisionError: of this plugin; traceback of "
    r'its own code:\n  File "\S+/unruly\.py", line 9, in loss\n    raise ZeroDivisionError\("of this plugin"\)\n'
)


@pytest.mark.parametrize(
    ("name", "code", "end"),
    [
        ("raise", 1, RAISED),
        ("worker", 1, LEFT + r"error: worker 1 was killed by signal 9\n"),
        ("server", 1, r"error: the server \(rank 0\) was killed by signal 9; " + RESUME),
        ("interrupt", 130, LEFT),
    ],
)
def test_every_failure_is_one_line_and_leaves_no_process(sittings, name, code, end):
    results, text, processes = sittings.ends[name]
    assert results == code, text
    assert re.search(f"{end}$", text, re.DOTALL), text
    assert text.count("error:") == (code != 130)
    assert "Traceback" not in text
    assert sittings.remains == []
    warning = "warning: comm_args.workers: 9 is more than the 2 clients per round; starting 2\n"
    assert text.count(warning) == (name == "raise")
    assert processes == (3 if name == "raise" else 2)


def test_results_after_failures_equal_those_of_one_process(sittings, forker, plugin, tmp_path):
    assert sittings.last.returncode == 0, sittings.last.stderr
    lines = sittings.last.stdout.splitlines()
    assert lines[0] == "run: unruly with FedAvg, MPI"
    assert lines[-1] == f"results: {sittings.run}"
    assert "\x1b" not in sittings.last.stdout  # plain lines, although mpirun shows a terminal
    sp = alone(forker, sittings.recipe, tmp_path, host="none", environment=plugin | DRAWN)
    same_bytes(sp, sittings.run)


def alone(forker, recipe, folder, *overrides, host=None, **more):
    """The folder of the same run in one process."""
    sets = [word for override in [*overrides, "comm_args.backend=sp"] for word in ("--set", override)]
    sets += ["--host", host] if host else []
    process = forker.start(["run", recipe, *sets, "--run-dir", folder / "sp", "--quiet"], folder / "log", **more)
    assert process.wait() == 0, process.text
    return folder / "sp"


SMALL = ["method_args.method=fedavg", "train_args.client_num_per_round=4", "train_args.comm_round=2"]
DP = ["dp_args.enable_dp=true", "dp_args.mechanism_type=gaussian", "dp_args.delta=0.01", "dp_args.sensitivity=1.0e-4"]
ATTACK = ["security_args.enable_attack=true"]
DEFENCE = ["security_args.enable_defense=true"]
SWITCHES = {
    "none": [],
    "ldp": [*DP, "dp_args.dp_solution_type=ldp", "dp_args.epsilon=0.5"],
    "cdp": [*DP, "dp_args.dp_solution_type=cdp", "dp_args.epsilon=0.5"],
    "clipping": [*DEFENCE, "security_args.defense_type=norm_diff_clipping", "security_args.norm_bound=0.1"],
    "krum": [
        *DEFENCE, "security_args.defense_type=krum", "security_args.byzantine_client_num=0",
        *ATTACK, "security_args.attack_type=byzantine", "security_args.attack_mode=random",
    ],
    "flipping": [
        *ATTACK, "security_args.attack_type=label_flipping", "security_args.original_class_list=[0,1,2,3,4]",
        "security_args.target_class_list=[9,9,9,9,9]", "security_args.ratio_of_poisoned_client=0.6",
    ],
}  # fmt: skip
"""The host's switches, which act through all of its hooks: before and after training, aggregation, and on the data."""

HEAVY = [
    "method_args.method=fedavg", "partition_args.classes_per_client=1", "train_args.client_num_in_total=40",
    "train_args.comm_round=1", "train_args.epochs=1", "train_args.batch_size=256", "model_args.hidden=[2000,2400]",
    "validation_args.personalised=false", "comm_args.upload_memory_mb=16",
]  # fmt: skip
"""A model of 20 MB; a waiting upload fits into the memory that they may take, the next does not."""
OTHERS = {
    "tests": [
        *SMALL, "train_args.comm_round=4", "validation_args.frequency_of_the_test=2",
        "validation_args.personalised=false",
    ],
    "few": [*HEAVY, "train_args.client_num_per_round=4"],
    "many": [*HEAVY, "train_args.client_num_per_round=40"],
    "watched": [
        *SMALL, "model_args.hidden=[16,2]",
        "tracking_args.diagnostics=[class_accuracy,client_drift,features_2d,label_heatmap]",
    ],
    "diverging": [*SMALL, "train_args.learning_rate=1.0e+30"],
}  # fmt: skip


@pytest.fixture(scope="module")
def played(forker, plugin, tmp_path_factory):
    """A folder with a run for each name, the costs of each rank, and the result of their manual mpirun."""
    folder = tmp_path_factory.mktemp("jobs")
    possible = SWITCHES if find_spec("fedml") else ["none"]
    todo = {name: [*SMALL, *SWITCHES[name]] for name in possible} | OTHERS
    return folder, over_mpi(forker, folder, RECIPE, todo, environment=plugin)


@pytest.fixture
def jobs(played):
    folder, done = played
    assert (folder / "diverging").exists(), done.stdout + done.stderr
    return folder


def cost(jobs, name, rank):
    return json.loads((jobs / f"{name}-{rank}.json").read_text())


@pytest.mark.host
@pytest.mark.parametrize("name", SWITCHES)
def test_hooks_of_the_host_act_as_in_one_process(jobs, forker, tmp_path, name):
    same_bytes(alone(forker, jobs / "recipe.yaml", tmp_path, *SMALL, *SWITCHES[name]), jobs / name)
    without, under = (load_file(jobs / sitting / "model.safetensors") for sitting in ("none", name))
    assert all(without[key].equal(under[key]) for key in under) == (name == "none")


def test_each_test_sample_is_tested_once_per_tested_round(jobs):
    tested = [cost(jobs, "tests", rank)["tested"] for rank in range(3)]
    assert tested[0] == 0  # the server has other things to do
    assert all(tested[1:])
    assert sum(tested) == 359 * 3  # rounds 0, 2 and the last


def test_diagnostics_during_training_equal_those_of_one_process(jobs, forker, tmp_path):
    sp = alone(forker, jobs / "recipe.yaml", tmp_path, *OTHERS["watched"])
    files = sorted(file.name for file in (sp / "diagnostics").iterdir())
    assert len(files) == 5  # lines of each, and the points of features_2d
    assert files == sorted(file.name for file in (jobs / "watched" / "diagnostics").iterdir())
    for name in files:
        here, there = (run / "diagnostics" / name for run in (sp, jobs / "watched"))
        assert here.read_bytes() == there.read_bytes(), name


def test_uploads_of_many_clients_stay_within_their_memory(jobs):
    """Three of each worker, as the memory for them holds none; few clients are at most all of them."""
    few, many = (cost(jobs, name, 0) for name in ("few", "many"))
    assert many["memory"] - few["memory"] < 100  # MB; the other 16 uploads are 320
    assert 2 <= few["under_way"] <= 4
    assert many["under_way"] == 6
    sizes = [sum(row) for row in json.loads((jobs / "many" / "partition.json").read_text())["counts"]]
    largest = sorted(range(40), key=lambda client: (-sizes[client], client))[:2]
    assert many["first"] == sorted(largest)


def test_diverged_training_is_a_one_line_error(jobs, played):
    done = played[1]
    said = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in said if "error:" in line]
    assert re.fullmatch(r"error: round 1: upload of client \d: \S+ is not finite, training diverged; .*", line)


def test_a_recipe_for_one_process_is_refused_under_mpirun(forker, plugin, tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    argv = ["run", "recipe.yaml", "--set", "comm_args.backend=sp"]
    done = forker.mpirun(None, argv, ranks=2, cwd=tmp_path, environment=plugin)
    assert done.returncode == 2
    line = "error: comm_args.backend: sp runs in one process, but mpirun started 2; use MPI, or no mpirun"
    assert [said for said in (done.stdout + done.stderr).splitlines() if "error:" in said] == [line]
    assert not (tmp_path / "runs").exists()


def test_without_mpirun_the_run_is_refused_with_one_line(tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text(OVER_MPI)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("run", tmp_path / "recipe.yaml", "--run-dir", tmp_path / "run", code=2).stderr == (
        "error: comm_args.backend: MPI needs mpirun on PATH, which is missing; to install Open MPI: "
        "apt-get install openmpi-bin libopenmpi-dev\n"
    )
    assert not (tmp_path / "run").exists()
