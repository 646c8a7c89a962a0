"""What runs will take: kinds of runs, estimates from recorded rounds and batches, and probes that a sweep resumes."""

import re

import pytest
from commands import call, errors

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe.compatibility import host_installed
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.studies import cost, reproduce
from fl_labelskew_plugins.studies.sweep import plan

GRID = """
base: base.yaml
set: {train_args.comm_round: 8, validation_args.frequency_of_the_test: 3}
grid:
- fedavg: {method_args.method: fedavg}
  map: {method_args.method: map}
  fedlc: {method_args: {method: fedlc, tau: 1.0}}
- common_args.random_seed: [0, 1]
skip: [[map, seed1], [fedlc, seed1]]
"""


@pytest.fixture
def planned(write, tmp_path):
    return plan.plan(write(GRID), out=tmp_path / "out")


def known(planned, *, left=8, seconds=2.0, memory=600e6):
    """These runs as one kind, each with so many rounds left."""
    estimate = cost.Estimate(4.0, seconds, memory, 0, "2 rounds")
    return cost.RunKind(tuple(planned), (left,) * len(planned), estimate)


@pytest.mark.parametrize(
    ("axis", "kinds"),
    [
        ("common_args.random_seed: [0, 1]", 1),
        ("train_args.learning_rate: [0.1, 0.2, 1]", 1),
        ("method_args.tau: [0.5, 1, 0.0]", 2),  # terms with weight 0 may not be computed
        ("train_args.epochs: [1, 2]", 2),
        ("data_args.test_fraction: [0.2, 0.3]", 2),  # how many samples there are
        ("train_args.gradient_clip_norm: [null, 1.0, 2.0]", 2),
    ],
)
def test_kinds_ignore_seeds_and_the_size_of_decimals(write, tmp_path, axis, kinds):
    text = f"base: base.yaml\nset: {{method_args.method: fedlc}}\ngrid:\n- {axis}\n"
    assert len(cost.kinds(plan.plan(write(text), out=tmp_path / "out"))) == kinds


def test_one_unfinished_run_of_each_kind_is_measured(planned):
    assert [run.name for run in cost.unknown(planned)] == ["fedavg-seed0", "map-seed0", "fedlc-seed0"]
    for run in planned:
        run.folder.create()
    planned[0].folder.summary.write_text("{}")
    assert cost.unknown(planned)[0].name == "fedavg-seed1"
    planned[1].folder.append(planned[1].folder.timings, {"round": 0, "seconds": 1.5})
    planned[2].folder.summary.write_text("{}")
    assert [run.name for run in cost.unknown(planned)] == ["fedlc-seed0"]


@pytest.mark.parametrize("line", [b'"x"', b'{"round": 0, "seconds": "much"}', b'{"pace": 3}'])
def test_damaged_files_give_no_estimate(planned, line):
    for run in planned:
        run.folder.create()
        run.folder.timings.write_bytes(line + b"\n")
        run.folder.path.joinpath("status.json").write_bytes(line)
    assert [kind.estimate for kind in cost.kinds(planned)] == [None] * 3


def test_estimate_of_recorded_rounds(planned):
    """The first round warms up. A run that was killed between its last round and its summary is not done."""
    run = planned[0]
    run.folder.create()
    for number, seconds in enumerate([9.0, 2.0, 4.0, 3.0]):
        run.folder.append(run.folder.timings, {"round": number, "seconds": seconds, "peak_mb": 500.0 + number})
    kind, *_ = cost.kinds(planned)
    assert kind.estimate == cost.Estimate(0.0, 3.0, 503e6, 0.0, "4 rounds")
    assert (kind.left, kind.seconds) == ((4, 8), [12.0, 24.0])
    assert kind.row() == ["fedavg-seed0", "2", "12", "3", "0:36", "503.0 MB", "4 rounds"]


def test_totals_and_warnings(write, planned, tmp_path):
    kinds = [known(planned[:3]), known(planned[3:], seconds=5.0, memory=900e6)]  # 3 runs of 20 s, 1 of 44 s
    assert (cost.seconds(kinds, 1), cost.seconds(kinds, 2), cost.seconds(kinds, 9)) == (104, 52, 44)
    one, two = cost.totals(kinds, jobs=2, free=1.6e9)
    assert one == "4 of 4 runs left: 1:44 one after the other"
    assert two == "2 at a time: 0:52, 1.5 GB of memory"
    *_, line = cost.totals(kinds, jobs=4, free=1.6e9)
    assert line.startswith("warning: memory: 1.6 GB available; ")
    *_, line = cost.totals([cost.RunKind(tuple(planned), (8,) * 4, None)], jobs=1, free=1e12)
    assert line == "not counted: 1 kind of run without an estimate"
    done = [cost.RunKind(tuple(planned), (), kinds[0].estimate)]
    assert list(cost.totals(done, jobs=1, free=1e9)) == ["nothing is left to run"]
    over_mpi = plan.plan(write(GRID), ["comm_args.backend=MPI"], tmp_path / "out")
    assert known(over_mpi).row()[-2] == "600.0 MB (server)"


def rows(output):
    """A table's rows by the names of its first column."""
    lines = output.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("runs like"))
    cells = [re.split(r"  +", line) for line in lines[begin:]]
    head, *body = [line for line in cells if len(line) > 3]
    return {line[0]: dict(zip(head, line, strict=True)) for line in body}


def test_probed_runs_are_resumed_with_identical_results(write, tmp_path):
    file, out = write(GRID), tmp_path / "out"
    planned = plan.plan(file, out=out)
    taken = out / "fedlc-seed0"
    taken.mkdir(parents=True)
    (taken / "thesis.txt").write_text("mine")
    command = ["sweep", file, "--out", out, "--host", "none"]
    first = call(*command, "--dry-run", "--jobs", 2, code=1)
    assert "\nerror: fedlc-seed0: run directory" in first.stderr
    assert "4 runs: 4 not begun\n" in first.stdout
    table = rows(first.stdout)
    assert list(table) == ["fedavg-seed0", "map-seed0", "fedlc-seed0"]
    assert table["fedlc-seed0"]["known from"] == "nothing yet"
    assert [table[name]["rounds left"] for name in table] == ["14", "6", "8"]
    for name in ("fedavg-seed0", "map-seed0"):
        timings = read_lines(RunFolder(out / name).timings)
        assert [line["round"] for line in timings] == [0, 1]
        assert float(table[name]["s/round"]) == pytest.approx(timings[1]["seconds"], rel=0.01)
        assert table[name]["memory"] == f"{timings[1]['peak_mb']:.1f} MB"
    assert "\n2 at a time: 0:" in first.stdout
    assert "not counted: 1 kind of run without an estimate" in first.stdout

    (taken / "thesis.txt").unlink()
    again = call(*command, "--dry-run", "--only", "fedavg", "--only", "map")
    assert "measuring" not in again.stderr
    assert rows(again.stdout)["map-seed0"] == table["map-seed0"]

    call(*command)
    for run in (planned[0], planned[2]):
        single = RunFolder(tmp_path / "single" / run.name)
        reproduce.complete(run.base, run.settings, single, RunOptions(quiet=True, host="none"))
        for name in ("metrics.jsonl", "model.safetensors"):
            assert (run.folder.path / name).read_bytes() == (single.path / name).read_bytes()
    done = call(*command, "--dry-run")
    assert done.stdout.endswith("nothing is left to run\n")
    assert rows(done.stdout)["fedavg-seed0"]["known from"] == "8 rounds"


def test_reproduce_estimates_its_runs_and_the_rounds_within_a_budget(write, tmp_path):
    write()
    out = tmp_path / "out"
    command = ["reproduce", tmp_path / "base.yaml", "--seeds", 2, "--out", out, "--dry-run"]
    first = call(*command)
    assert rows(first.stdout)["base, seed 0"]["rounds left"] == "78"
    (lines,) = [path.read_text().splitlines() for path in out.rglob("timings.jsonl")]
    assert len(lines) == 2
    again = call(*command, "--budget", "1000h")
    assert rows(again.stdout) == rows(first.stdout)
    assert again.stdout.endswith("the budget is 100% of that time\n")
    (line,) = errors(*command, "--set", "train_args.epochs=2")
    assert line.startswith(f"{out / 'base' / 'seed0'}: holds another run, which differs in train_args.epochs; use ")


def test_long_rounds_are_estimated_by_their_batches(write, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "PROBE_S", 0.5)
    write()
    out = tmp_path / "out"
    command = ["reproduce", tmp_path / "base.yaml", "--seeds", 1, "--out", out, "--set", "train_args.epochs=9999"]
    if host_installed():
        import fedml  # noqa: F401  # the import takes seconds of the budget
    first = call(*command, "--dry-run", "--budget", "1h")
    table = rows(first.stdout)
    assert re.fullmatch(r"\d+ batches", table["base, seed 0"]["known from"])
    # 5 clients, 9,999 epochs and at least 4 batches, of 0.05 ms or more
    assert float(table["base, seed 0"]["s/round"]) > 5 * 9999 * 4 * 0.05e-3
    assert not list(out.rglob("timings.jsonl"))
    cut = call(*command, "--budget", "4s")  # a round takes longer than that
    assert "paused after 0 of 40 rounds; round 1 is incomplete; resuming repeats it" in cut.stdout
    used = re.search(r"budget: (\d+) of 4 s used", cut.stdout)
    assert int(used[1]) <= 8
