"""What runs will take: which are of one kind, what their rounds say of the rest, and that a probe is a beginning."""

import re

import pytest
from commands import call, errors

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.studies import cost, reproduce
from fl_labelskew_plugins.studies.sweep import crew, plan

BASE = """
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: logistic}
train_args: {client_num_in_total: 10, client_num_per_round: 4, comm_round: 8, learning_rate: 0.1}
method_args: {method: fedavg}
validation_args: {frequency_of_the_test: 3, personalised: false}
"""
GRID = """
base: base.yaml
grid:
- fedavg: {}
  map: {method_args.method: map}
  fedlc: {method_args: {method: fedlc, tau: 1.0}}
- common_args.random_seed: [0, 1]
skip: [[map, seed1], [fedlc, seed1]]
"""


@pytest.fixture
def write(tmp_path):
    """Writes a sweep's file beside its recipe."""
    (tmp_path / "base.yaml").write_text(BASE)

    def write(text=GRID):
        (tmp_path / "grid.yaml").write_text(text)
        return tmp_path / "grid.yaml"

    return write


@pytest.fixture
def planned(write, tmp_path):
    return plan.plan(write(), out=tmp_path / "out")


def known(planned, *, rounds=8, seconds=2.0, memory=600e6, disk=1e6):
    """All these runs as one kind, none of them begun."""
    measured = cost.Measured(2, reproduce.Cost(4.0, seconds), memory, 0.0, disk)
    return cost.Kind(tuple(planned), (rounds,) * len(planned), (rounds == 0,) * len(planned), measured)


# What is of one kind


@pytest.mark.parametrize(
    ("axis", "kinds"),
    [
        ("common_args.random_seed: [0, 1]", 1),
        ("train_args.learning_rate: [0.1, 0.2, 1]", 1),
        ("method_args.tau: [0.5, 1, 0.0]", 2),  # what weighs nothing may be left out
        ("train_args.epochs: [1, 2]", 2),
        ("train_args.federated_optimizer: [FedAvg, SCAFFOLD]", 2),
        ("data_args.test_fraction: [0.2, 0.3]", 2),  # how many samples there are
        ("train_args.gradient_clip_norm: [null, 1.0, 2.0]", 2),
    ],
)
def test_seeds_and_the_size_of_weights_make_no_other_kind(write, tmp_path, axis, kinds):
    text = f"base: base.yaml\nset: {{method_args.method: fedlc}}\ngrid:\n- {axis}\n"
    assert len(cost.kinds(plan.plan(write(text), out=tmp_path / "out"))) == kinds


def test_runs_that_are_left_and_runs_that_are_done_are_all_runs(planned, write, tmp_path):
    """A run that was killed between its last round and its summary is left, too."""
    for run, summary in ((planned[0], True), (planned[1], False)):
        run.folder.create()
        run.folder.recipe.write_text(run.recipe.dump())
        for _ in range(8):
            with run.folder.timings.open("a") as timings:
                timings.write('{"seconds": 1.0, "peak_mb": 500.0}\n')
        (run.folder.path / "status.json").write_text('{"state": "finished"}')
        if summary:
            run.folder.summary.write_text("{}")
    output = call("sweep", write(), "--out", tmp_path / "out", "--dry-run", "--no-probe").output
    assert [line.split()[2] for line in output.splitlines()[1:5]] == ["finished", "stopped", "not", "not"]
    assert "\n4 runs: 1 finished, 1 stopped, 2 not begun; nothing was run\n" in output
    assert "\n3 of 4 runs left" in output


def test_one_run_of_each_kind_is_begun_as_long_as_some_of_it_is_left(planned):
    assert [run.name for run in cost.unknown(planned)] == ["fedavg-seed0", "map-seed0", "fedlc-seed0"]
    for run in planned:
        run.folder.create()
    planned[0].folder.summary.write_text("{}")  # of a version that kept no timings
    assert cost.unknown(planned)[0].name == "fedavg-seed1"
    planned[1].folder.append(planned[1].folder.timings, {"round": 0, "seconds": 1.5})
    planned[2].folder.summary.write_text("{}")
    assert [run.name for run in cost.unknown(planned)] == ["fedlc-seed0"]


@pytest.mark.parametrize(
    "line", [b'"x"', b"\xff\xfe", b'{"round": 0, "seconds": "much"}', b'{"seconds": null}', b"[1]"]
)
def test_damaged_timings_say_nothing(planned, line):
    for run in planned:
        run.folder.create()
        run.folder.timings.write_bytes(line + b"\n")
        run.folder.path.joinpath("status.json").write_bytes(line)
    assert [kind.measured for kind in cost.kinds(planned)] == [None] * 3


# What follows from what is known


def test_runs_follow_each_other_on_so_many_places(planned):
    fast, slow = known(planned[:3]), known(planned[3:], seconds=5.0)  # 3 of 20 s, 1 of 44 s
    assert cost.seconds(planned, [fast, slow], 1) == 104
    assert cost.seconds(planned, [fast, slow], 2) == 64  # 20 and 20, then 20 and 44
    assert cost.seconds(planned, [fast, slow], 9) == 44
    planned[3].folder.create()
    planned[3].folder.recipe.write_text("")
    assert cost.seconds(planned, [fast, slow], 2) == 60  # a sweep goes on with what was begun first
    assert cost.seconds(planned, [known(planned, rounds=0)], 2) == 0
    assert known(planned[:1], rounds=5).seconds() == [4 + 5 * 2]


def test_what_does_not_suffice_is_a_line(planned, tmp_path):
    kinds = [known(planned[:3]), known(planned[3:], memory=900e6)]
    assert cost.memory(kinds, 2) == 1500e6
    assert cost.that_fit(kinds, 4, 1.6e9) == 2
    assert cost.that_fit(kinds, 4, 1e3) == 1
    assert list(cost.warnings(kinds, out=tmp_path / "a" / "b", jobs=2, free=1.6e9)) == []
    (line,) = cost.warnings(kinds, out=tmp_path, jobs=4, free=1.6e9)
    assert line == "memory: 4 at a time take 2.7 GB, and 1.6 GB may be taken; 2 at a time will run"
    (line,) = cost.warnings([known(planned, disk=1e18)], out=tmp_path, jobs=1, free=1e12)
    assert re.fullmatch(
        rf"disk: 4000000000.0 GB are to be written to {tmp_path}, where .* are free; make room, .*", line
    )
    one, two, three = cost.totals(planned, kinds, out=tmp_path, jobs=[4, 9], free=1.6e9)
    assert one.startswith("4 of 4 runs left: 1:20 one after the other; 4.0 MB more on disk, ")
    assert two == "2 at a time here: 0:40, 1.5 GB of memory, 1.6 GB may be taken"
    assert three == "4 at a time, where there are cores for them: 0:20, 2.7 GB of memory"
    done = [known(planned, rounds=0)]
    assert list(cost.totals(planned, done, out=tmp_path, jobs=[1], free=1e9)) == ["nothing is left to run"]


def test_of_several_processes_only_the_server_s_memory_is_known(write, tmp_path):
    planned = plan.plan(write(), ["comm_args.backend=MPI"], tmp_path / "out")
    assert known(planned).row()[-3] == "600.0 MB (server)"
    *_, line = cost.totals(planned, [known(planned)], out=tmp_path, jobs=[1], free=1e9)
    assert line == "(server): of a run's several processes, memory is that of the server's alone"


# A probe is a beginning


def rows(output):
    """A table's rows by the names of its first column."""
    lines = output.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("runs like"))
    cells = [re.split(r"  +", line) for line in lines[begin:]]
    head, *body = [line for line in cells if len(line) > 3]
    return {line[0]: dict(zip(head, line, strict=True)) for line in body}


@pytest.mark.slow
def test_what_was_tried_is_gone_on_with_to_the_same_bytes(planned, write, tmp_path):
    file, out = write(), tmp_path / "out"
    taken = out / "fedlc-seed0"
    taken.mkdir(parents=True)
    (taken / "thesis.txt").write_text("mine")
    command = ["sweep", file, "--out", out]
    first = call(*command, "--dry-run", "--jobs", 500, code=1)
    assert first.stderr == "error: 1 of 3 runs could not be begun; the same again tries it once more\n"
    assert "4 runs: 4 not begun\n" in first.stdout
    assert "\n4 runs: 2 paused, 2 not begun\n" in first.stdout
    table = rows(first.stdout.replace("\n" + " " * 80, " "))
    assert list(table) == ["fedavg-seed0", "map-seed0", "fedlc-seed0"]
    assert table["fedlc-seed0"]["known from"].startswith("failed: run directory")
    assert [table[name]["rounds left"] for name in table] == ["14", "6", "8"]
    for name in ("fedavg-seed0", "map-seed0"):
        folder = RunFolder(out / name)
        lines = zip(read_lines(folder.metrics), read_lines(folder.timings), strict=True)
        timings = [of_round | of_time for of_round, of_time in lines]
        assert [line["round"] for line in timings] == [0, 1]
        (warming, _), (later, clients) = ((line["seconds"], line["clients"]) for line in timings)
        sizes = folder.load_checkpoint().sizes
        plain = later * 4 * sum(sizes) / 10 / sum(sizes[client] for client in clients)  # 4 of 10 clients a round
        test = max(0.0, warming - later)  # after rounds 1, 4, 7 and 8 of 8
        assert float(table[name]["s/round"]) == pytest.approx(plain + test * 4 / 8, rel=0.01)
        assert table[name]["memory"] == f"{timings[1]['peak_mb']:.1f} MB"
    assert " at a time, where there are cores for them: 0:" in first.stdout
    assert "not counted: 1 kind of run that nothing is known of" in first.stdout
    expected = {kind.runs[0].name: kind.measured for kind in cost.kinds(planned)}

    (taken / "thesis.txt").unlink()
    again = call(*command, "--dry-run", "--only", "fedavg", "--only", "map")  # nothing to try
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    listed = call(*command, "--dry-run", "--no-probe")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert rows(again.stdout)["map-seed0"] == table["map-seed0"]
    assert "4 runs: 2 paused, 2 not begun; nothing was run\n" in listed.stdout
    assert "\n4 of 4 runs left: " in listed.stdout
    assert rows(listed.stdout)["fedlc-seed0"]["known from"] == "nothing yet"

    call(*command)
    for run in (planned[0], planned[2]):
        alone = RunFolder(tmp_path / "alone" / run.name)
        reproduce.complete(run.base, run.settings, alone, quiet=True)
        for name in ("metrics.jsonl", "model.safetensors"):
            assert (run.folder.path / name).read_bytes() == (alone.path / name).read_bytes()
    for name in ("fedavg-seed0", "map-seed0"):  # MAP keeps a state, and at its end a model, of each client
        files = [path for path in (out / name).rglob("*") if path.is_file() and path.suffix not in (".png", ".md")]
        files.append(out / name / "partition.png")  # which is drawn before the first round
        ends = sum({path.stat().st_ino: path.stat().st_size for path in files}.values())
        assert expected[name].disk == pytest.approx(ends, rel=0.15)
    done = call(*command, "--dry-run")
    assert done.stdout.endswith("nothing is left to run\n")
    assert rows(done.stdout)["fedavg-seed0"]["known from"] == "16 rounds"


@pytest.mark.slow
def test_reproduce_says_what_its_runs_take_and_how_far_a_budget_gets(write, tmp_path):
    write()
    out = tmp_path / "out"
    command = ["reproduce", tmp_path / "base.yaml", "--seeds", 2, "--out", out, "--dry-run"]
    listed = call(*command, "--no-probe").stdout
    assert "2 runs: 2 not begun; nothing was run" in listed
    assert listed.endswith("2 of 2 runs left, of which nothing is known yet\n")
    assert not out.exists()
    first = call(*command, "--quiet")
    assert rows(first.stdout)["base, seed 0"]["rounds left"] == "14"
    (lines,) = [path.read_text().splitlines() for path in out.rglob("timings.jsonl")]
    assert len(lines) == 2
    again = call(*command, "--budget", "1000h")
    assert rows(again.stdout) == rows(first.stdout)
    assert again.stdout.endswith("the budget is 100% of that\n")
    (line,) = errors(*command, "--set", "train_args.epochs=2")
    assert line.startswith(f"{out / 'base' / 'seed0'}: holds another run, which differs in train_args.epochs; use ")


@pytest.mark.slow
def test_long_rounds_are_estimated_by_their_batches_and_an_interrupted_estimate_is_kept(write, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "PROBE_S", 0.5)
    write()
    other, out = tmp_path / "other.yaml", tmp_path / "out"
    other.write_text(BASE.replace("method: fedavg", "method: fedlc"))
    command = [
        "reproduce",
        tmp_path / "base.yaml",
        other,
        "--seeds",
        1,
        "--out",
        out,
        "--set",
        "train_args.epochs=9999",
    ]
    with monkeypatch.context() as patched:
        run_all, probed = crew.run_all, []

        def interrupted(planned, **more):
            if probed:
                raise KeyboardInterrupt
            probed.extend(planned)
            return run_all(planned, **more)

        patched.setattr(crew, "run_all", interrupted)
        first = call(*command, "--dry-run", "--budget", "1h", code=130)
    assert "timing batches [1/2]: base, seed 0\ntiming batches [2/2]: other, seed 0\n" in first.stdout
    table = rows(first.stdout)
    assert re.fullmatch(r"\d+ batches", table["base, seed 0"]["known from"])
    assert table["other, seed 0"]["known from"] == "nothing yet"
    # at least 4 of 10 clients, 9,999 epochs and 3 batches, of 0.05 ms or more
    assert float(table["base, seed 0"]["s/round"]) > 4 * 9999 * 3 * 0.05e-3
    assert first.stderr.startswith("interrupted; to go on: ")
    again = call(*command, "--dry-run", "--budget", "1h")
    assert "timing batches [1/1]: other, seed 0\n" in again.stdout
    assert rows(again.stdout)["base, seed 0"] == table["base, seed 0"]
    assert not list(out.rglob("timings.jsonl"))
    cut = call(*command[:2], *command[3:], "--budget", "4s")  # a round takes longer than that
    assert "paused after 0 of 8 rounds; round 1 is incomplete; resuming repeats it" in cut.stdout
    used = re.search(r"budget: (\d+) of 4 s used, 0 s of it in rounds \(0 in all\)", cut.stdout)
    assert int(used[1]) <= 8


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_mistakes_are_one_line_before_anything_runs(write, tmp_path, command):
    path = write() if command == "sweep" else tmp_path / "base.yaml"
    write()
    words = [command, path, "--out", tmp_path / "out"]
    assert errors(*words, "--no-probe") == ["--no-probe: is a way to do a dry run; use it with --dry-run"]
    (line,) = errors(*words, "--dry-run", "--set", "train_args.epoch=2")
    assert "train_args.epoch: unknown key" in line
    assert not (tmp_path / "out").exists()
