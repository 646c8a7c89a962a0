"""Sweeps: what their files mean, and one that is interrupted, fails in part, goes on, and is then done."""

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins import run
from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.studies.sweep import plan

SWEEPS = Path(__file__).parents[2] / "sweeps"
BASE = """
common_args: {random_seed: 5}
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: logistic}
train_args: {client_num_in_total: 5, comm_round: 40, epochs: 1, batch_size: 64, learning_rate: 0.1}
method_args: {method: fedrs, alpha: 0.3}
validation_args: {personalised: false}
tracking_args: {checkpoint_every: 1000}
"""
MANY = [*range(1, 102)]
GRID = """
base: base.yaml
grid:
- {fedavg: {method_args.method: fedavg}, fedlc: {method_args: {method: fedlc, tau: 2.0}}}
- common_args.random_seed: [0, 1]
skip: [[fedlc, seed1]]
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)

    def write(text, name="grid.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def mistakes(path, *overrides):
    with pytest.raises(LabelSkewError) as error:
        plan.plan(path, overrides, path.parent / "out")
    lines = error.value.mistakes if isinstance(error.value, MistakesError) else [str(error.value)]
    return [line.replace(f"{path.parent}/", "") for line in lines]


# What a file means


def test_the_product_of_the_axes_without_what_is_skipped(write, tmp_path):
    planned = plan.plan(write(GRID), ["train_args.epochs=3"], tmp_path / "out")
    assert [each.name for each in planned] == ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0"]
    assert [each.folder.path for each in planned] == [tmp_path / "out" / each.name for each in planned]
    assert {each.recipe.train.epochs for each in planned} == {3}
    last = planned[2].recipe
    assert (last.method_name, last.method.params.tau, last.common.random_seed) == ("fedlc", 2.0, 0)
    # another method drops the base's alpha; a run without a number of threads has one
    assert last.resolved() == parse.parse(
        BASE.replace("method: fedrs, alpha: 0.3", "method: fedlc, tau: 2.0").replace("seed: 5", "seed: 0"),
        overrides=["device_args.threads=1", "train_args.epochs=3"],
    ).resolved()  # fmt: skip


def test_names_of_plain_axes_and_settings_of_all_runs(write, tmp_path):
    text = """
base: base.yaml
out: elsewhere
set: {train_args: {epochs: 2}, device_args.threads: 3}
grid:
- method_args.alpha: [0.1, 1.0e-3]
- partition_args.partition_method: [iid]
- {all: , few: {train_args.client_num_per_round: 2}}
"""
    planned = plan.plan(write(text))
    assert [str(each.folder.path) for each in planned] == [
        f"elsewhere/alpha{alpha}-partition_methodiid-{clients}"
        for alpha in ("0.1", "0.001")
        for clients in ("all", "few")
    ]
    assert [each.recipe.train.client_num_per_round for each in planned] == [5, 2, 5, 2]
    assert {(each.recipe.device.threads, each.recipe.train.epochs) for each in planned} == {(3, 2)}
    no_out = write("base: base.yaml\ngrid: [{one: {}}]", "named.yaml")
    assert str(plan.plan(no_out)[0].folder.path) == "runs/named/one"


def test_some_values_of_an_axis_alone(write, tmp_path):
    def names(*only):
        return [each.name for each in plan.plan(write(GRID), out=tmp_path, only=only)]

    assert names("seed0") == ["fedavg-seed0", "fedlc-seed0"]
    assert names("seed0", "fedlc") == ["fedlc-seed0"]
    assert names("seed0", "seed1") == ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0"]
    with pytest.raises(LabelSkewError, match="skip: leaves nothing to run"):
        names("fedlc", "seed1")
    with pytest.raises(LabelSkewError, match=r"--only 'fedl' is unknown; allowed: fedavg, fedlc, .*; nearest: fedlc"):
        names("fedl")


def test_data_of_ones_own_make_runs_of_their_own(write, tmp_path):
    import numpy as np

    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((9, 2)), y=np.arange(9) % 3)
    north, south = tmp_path / "north.npz", tmp_path / "south.npz"
    text = "base: base.yaml\nset: {{data_args.dataset: npz}}\ngrid:\n- {{a: {{data_args.data_cache_dir: {}}}"
    text += ", b: {{data_args.data_cache_dir: {}}}}}\n"
    planned = plan.plan(write(text.format(north, south)), out=tmp_path / "out")
    assert [each.name for each in planned] == ["a", "b"]
    line = "grid.yaml: grid: a and b have the same settings, data and seed; use one of them"
    assert mistakes(write(text.format(north, f"{tmp_path}/../{tmp_path.name}/north.npz"))) == [line]


@pytest.mark.parametrize("file", sorted(SWEEPS.glob("*.yaml")), ids=lambda file: file.stem)
def test_sweeps_that_come_with_the_source(file, fashion_mnist):
    planned = plan.plan(file, [fashion_mnist] if "fmnist" in file.stem else [])
    assert file.read_text().startswith(f"# labelskew sweep sweeps/{file.name}\n")
    assert len({json.dumps(each.recipe.resolved(), sort_keys=True) for each in planned}) == len(planned)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["grid.yaml: null is no sweep; allowed: base, out, set, grid, skip"]),
        ("base: [", ["grid.yaml: line 1, column 8: "]),
        (
            "bas: base.yaml\ngrid: []",
            [
                "grid.yaml: bas: unknown key; allowed",
                "grid.yaml: base: missing",
                "grid.yaml: grid: [] has the wrong length",
            ],
        ),
        ("base: nope.yaml\ngrid: [{a: {}, b: {}}]", ["nope.yaml: cannot be read: No such file or directory"]),
        (
            # each mistake once, not once a combination; where only some have it, which ones
            "base: base.yaml\nset: {train_args.epochs: 0}\n"
            "grid: [{a: {method_args.alpha: 2}, b: {method_args.alhpa: 1}}, {common_args.random_seed: [0, 1]}]",
            [
                "grid.yaml: train_args.epochs: 0 is out of range; allowed: an integer of at least 1",
                "grid.yaml: method_args.alpha: 2 is out of range; allowed: a number of at least 0 and at most 1"
                " (in a-seed0 and 1 more)",
                "grid.yaml: method_args.alhpa: unknown key; allowed: method, alpha",
            ],
        ),
        ("base: base.yaml\ngrid: [{a: {nosuch.key: 1}}]", ["grid.yaml: nosuch.key: unknown section; allowed: "]),
        (
            "base: base.yaml\nset: {epochs: 1}\ngrid: [{a: {x: 1}, 'b/c': {}, d: 1}, {}, {epochs: [1]}, {a.b: []}]",
            [
                "grid.yaml: set: epochs: 1 is no mapping of keys to values; allowed: section.key: value",
                "grid.yaml: grid[1]: a: x: 1 is no mapping of keys to values",
                "grid.yaml: grid[1]: 'b/c' is no name; allowed: letters, digits and ._+-",
                "grid.yaml: grid[1]: d: 1 is no mapping of settings",
                "grid.yaml: grid[2]: empty",
                "grid.yaml: grid[3]: epochs: allowed: section.key with at least one value",
                "grid.yaml: grid[4]: a.b: allowed: section.key with at least one value",
            ],
        ),
        (
            "base: base.yaml\ngrid: [{a: {train_args.epochs: 1}}, {train_args.epochs: [2]}]",
            ["grid.yaml: grid: train_args.epochs is set by axes 1 and 2; one of them would be right"],
        ),
        (
            "base: base.yaml\ngrid: [{fedavg: {}}]\nskip: [[fedavgg], []]",
            [
                "grid.yaml: skip[1]: 'fedavgg' is unknown; allowed: fedavg; nearest: fedavg",
                "grid.yaml: skip[2]: empty",
            ],
        ),
        (
            "base: base.yaml\ngrid: [{a: {}, b: {}}, {common_args.random_seed: [0, 1]}]\n"
            "skip: [[seed0, a], [b, seed1, a], [b, b]]",
            ["grid.yaml: skip[2]: b and a are of one axis, so that no run has both; an entry each would be right"],
        ),
        (
            # where and how fast a run is computed makes it no other one, its precision does
            "base: base.yaml\ngrid: [{a: {}, b: {method_args.alpha: 0.3}, c: {device_args.precision: bf16}, "
            "d: {device_args.threads: 2}}, {common_args.random_seed: [0, 1]}]\n"
            "skip: [[b, seed1]]",
            [
                "grid.yaml: grid: a-seed0 and b-seed0 have the same settings, data and seed; use one of them "
                "(and 2 more such)"
            ],
        ),
        ("base: base.yaml\ngrid: [{a: {}}]\nskip: [[a]]", ["grid.yaml: skip: leaves nothing to run"]),
        (
            "base: base.yaml\ngrid: [{a-b: , a: }, {c: , b-c: }]",
            ["grid.yaml: grid: a-b-c is the name of two combinations"],
        ),
        (
            f"base: base.yaml\ngrid: [{{train_args.epochs: {MANY}}}, {{train_args.batch_size: {MANY}}}]",
            ["grid.yaml: grid: 10201 combinations; at most 10000 would be right"],
        ),
        (f"base: base.yaml\ngrid: [{{{'a' * 151}: }}]", [f"grid.yaml: grid: {'a' * 151} is longer than 150 letters"]),
        (
            "base: base.yaml\nset: {data_args: {dataset: fashion_mnist, data_cache_dir: /nowhere}}\n"
            "grid: [{train_args.epochs: [1, 2]}]",
            ["base.yaml: data set FashionMNIST: no train-images"],
        ),
    ],
)
def test_all_mistakes_of_a_file_together(write, text, lines):
    found = mistakes(write(text))
    assert len(found) == len(lines), found
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start)


def test_runs_do_not_go_into_the_folder_of_a_run(write, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recipe.yaml").write_text(BASE)
    assert mistakes(write(GRID)) == ["out: is the folder of a run; another --out would be right"]


def test_mistakes_of_the_command_line_are_told_as_such(write):
    malformed, wrong = mistakes(write(GRID), "train_args.epochs=0", "nonsense")
    assert malformed.startswith("--set nonsense: malformed; allowed: section.key=value")
    assert wrong.startswith("--set train_args.epochs: 0 is out of range")
    assert mistakes(write(GRID), "common_args.random_seed=3") == [
        "--set common_args.random_seed: the grid of grid.yaml sets it; another key would be right"
    ]


# When another run may begin


def crew(planned, slots, bound):
    made = plan._Crew(planned, planned[1:], slots, bound, print)
    made.running.append(plan._Job(planned[0], None, 0, None))
    return made


def test_as_many_runs_as_fit_in_memory_once_it_is_known_what_one_takes(write, tmp_path):
    planned = plan.plan(write(GRID), out=tmp_path / "out")
    assert not crew(planned, 3, 10e9)._room()  # nobody knows yet
    planned[0].folder.create()
    planned[0].folder.append(planned[0].folder.timings, {"round": 0, "seconds": 1.0, "peak_mb": 600.0})
    planned[0].folder.append(planned[0].folder.timings, {"round": 1, "seconds": 1.0, "peak_mb": 700.0})
    assert crew(planned, 3, 1.4e9)._room()
    assert not crew(planned, 3, 1.39e9)._room()
    assert not crew(planned, 1, 1.4e9)._room()
    other = plan.plan(write(GRID), ["model_args.model=mlp"], tmp_path / "other")
    made = crew(planned, 3, 10e9)
    made.waiting = other
    assert not made._room()  # of another network nobody knows
    made.running.clear()
    assert made._room()
    assert 0 < plan.free_memory() < 1e15


@pytest.mark.parametrize(
    "line", [b'"x"', b"\xff\xfe", b"\0\0\0\0", b'{"peak_mb": "much"}', b'{"peak_mb": null}', b"[1]"]
)
def test_damaged_timings_of_a_run_that_is_done_stop_no_sweep(write, tmp_path, line):
    planned = plan.plan(write(GRID), out=tmp_path / "out")
    for each in planned[:2]:
        each.folder.create()
        each.folder.timings.write_bytes(line + b"\n")
    assert crew(planned, 3, 1e9)._peaks == {}
    planned[2].folder.create()
    planned[2].folder.append(planned[2].folder.timings, {"round": 0, "peak_mb": 600.0})
    assert list(crew(planned, 3, 1e9)._peaks.values()) == [600e6]


def test_each_run_has_a_gpu_of_its_own(write, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    gpus = ["device_args.using_gpu=true", "device_args.gpu_ids=[3, 1]"]
    planned = plan.plan(write(GRID), gpus, tmp_path / "out")
    assert {tuple(each.recipe.device.gpu_ids) for each in planned} == {(0,)}  # the only one that it will see
    assert plan.default_jobs(planned) == 2
    assert plan._Crew(planned, planned, 2, 1e9, print)._gpus == [3, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert plan._visible(3) == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-a,5,6")
    assert plan._visible(1) == "GPU-a"
    assert "no GPU 4" in mistakes(write(GRID), *gpus[:1], "device_args.gpu_ids=[4]")[0]


def test_threads_decide_how_many_runs_there_are_at_a_time(write, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "available_cores", lambda: 8)
    assert plan.default_jobs(plan.plan(write(GRID), out=tmp_path)) == 8
    assert plan.default_jobs(plan.plan(write(GRID), ["device_args.threads=3"], tmp_path)) == 2
    assert plan.default_jobs(plan.plan(write(GRID), ["comm_args.backend=MPI"], tmp_path)) == 1


# One sweep from start to end


def call(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done


def rounds(folder):
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.slow
def test_a_sweep_is_interrupted_fails_in_part_and_is_done_at_last(write, tmp_path):
    file, out = write(GRID), tmp_path / "out"
    command = ["sweep", file, "--out", out, "--jobs", "2", "--set", "train_args.comm_round=60"]
    names = ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0"]
    assert "3 runs, 0 done; nothing was run" in call(*command, "--dry-run").output
    assert not out.exists()

    def interrupt():
        until = time.monotonic() + 90
        while rounds(out / names[0]) < 5 and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    stopped = call(*command, code=130)
    assert re.search(r"interrupted: 0 of 3 runs done; to go on: labelskew", stopped.stderr)
    assert "Traceback" not in stopped.output
    begun = out / names[0]
    checkpoint = begun / "checkpoint" / "latest.safetensors"
    assert 5 <= rounds(begun) < 60
    assert re.search(rf"^{names[0]} +begun$", call(*command, "--dry-run").output, re.MULTILINE)

    good = checkpoint.read_bytes()
    checkpoint.write_bytes(b"junk")
    partly = call(*command, code=1)
    lines = partly.stdout.splitlines()
    assert lines[0].startswith("3 runs: 0 done, ")
    assert {line.split()[1] for line in lines[1:4]} == set(names)
    assert lines[3].startswith("3/3  ")
    failed = re.search(rf"^failed: {names[0]}: (.*)$", partly.stderr, re.MULTILINE)[1]
    assert "latest.safetensors is no checkpoint of a run" in failed
    assert partly.stderr.endswith("error: 1 of 3 runs failed; the same again tries them once more\n")
    assert "is no checkpoint" in (out / "_logs" / f"{names[0]}.txt").read_text()

    checkpoint.write_bytes(good)
    lines = call(*command).stdout.splitlines()
    assert lines[0].startswith("3 runs: 2 done, 1 to go on with")
    assert lines[1].startswith(f"3/3  {names[0]}  accuracy ")
    assert lines[2].split()[:3] == ["method", "data", "partition"]
    assert [line.split()[0] for line in lines[3:5]] == ["fedavg", "fedlc"]
    assert sorted(file.name for file in out.iterdir()) == names  # no log where there is nothing to say

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = call(*command).stdout.splitlines()
    assert again[0].startswith("3 runs: 3 done, 0 to go on with")
    assert again[1:] == lines[2:]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    other = call("sweep", file, "--out", out, "--set", "train_args.comm_round=3", code=2)
    assert other.stderr == (
        f"error: {begun} and 2 more: holds another run, which differs in train_args.comm_round; another --out, or the "
        "settings as they were, would be right\n"
    )

    # The same bytes as without a sweep, though one run was interrupted and the others ran beside each other.
    context = multiprocessing.get_context("forkserver")
    for each in plan.plan(file, ["train_args.comm_round=60"], out)[::2]:
        alone = tmp_path / "alone" / each.name
        process = context.Process(
            target=run.start, args=(each.base, each.settings), kwargs={"run_dir": alone, "quiet": True}
        )
        process.start()
        process.join(60)
        assert process.exitcode == 0
        for name in ("metrics.jsonl", "model.safetensors"):
            assert (alone / name).read_bytes() == (each.folder.path / name).read_bytes()


@pytest.mark.slow
def test_two_sweeps_do_not_share_a_folder(write, tmp_path):
    planned = plan.plan(write(GRID), out=tmp_path / "out")
    (tmp_path / "out").mkdir()
    with (
        locks.alone(tmp_path / "out", "sweep"),
        pytest.raises(LabelSkewError, match=rf"out: process {os.getpid()} is writing this sweep already; wait until"),
    ):
        plan.run_all(planned, jobs=None, memory=None, say=print)
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").write_text("")
    planned = plan.plan(write(GRID), out=tmp_path / "file" / "out")
    with pytest.raises(LabelSkewError, match="file/out: cannot be written: Not a directory"):
        plan.run_all(planned, jobs=None, memory=None, say=print)


SLOW = "import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep({})\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_but_one_line_when_it_is_interrupted_while_it_still_imports(write, tmp_path, forker, number):
    (tmp_path / "slow.py").write_text(SLOW.format(60))
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from fl_labelskew_plugins.studies.sweep import plan as sweep\nfrom fl_labelskew_plugins.cli.main import main\n"
        "os.setsid()\nsweep.PRELOADED = ['slow']\nmain()\n"
    )
    out = tmp_path / "out"
    argv = ["sweep", write(GRID), "--out", out, "--jobs", "2"]
    process = forker.start(argv, tmp_path / "log", script=script, environment={"PYTHONPATH": str(tmp_path)})
    until = time.monotonic() + 60
    while not (tmp_path / "slow.begun").exists() and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(process.pid, number)
    assert process.wait() == 130
    first, *rest = process.text.splitlines()
    assert first.startswith("3 runs: 0 done")
    assert len(rest) == 1
    assert rest[0].startswith("interrupted: 0 of 3 runs done; to go on: ")
    assert list(out.iterdir()) == []
    while processes_of(process.pid):  # what imported has gone, too
        assert time.monotonic() < until
        time.sleep(0.01)


def processes_of(group):
    """The processes of a group; those that have ended and that nobody has asked for do not count."""
    stats = [file.read_text().rpartition(")")[2].split() for file in Path("/proc").glob("[0-9]*/stat") if file.exists()]
    return [fields for fields in stats if int(fields[2]) == group and fields[0] != "Z"]


@pytest.mark.slow
def test_why_a_run_failed_is_told_where_no_log_can_be_written(write, tmp_path):
    out = tmp_path / "out"
    (out / "one").mkdir(parents=True)
    (out / "one" / "junk").touch()
    (out / "_logs").symlink_to("/proc")  # where nobody makes files
    reason = (
        f"run directory {out / 'one'} is not empty; a new or empty folder would be right, or --resume {out / 'one'}"
    )
    failed = call("sweep", write("base: base.yaml\ngrid: [{one: {}}]"), "--out", out, code=1)
    assert f"failed: one: {reason}\n" in failed.stderr

    context = multiprocessing.get_context("forkserver")
    words, theirs = context.Pipe(duplex=False)
    arguments = (tmp_path / "base.yaml", (), out / "one", Path("/dev/full"), theirs, None)
    process = context.Process(target=plan._work, args=arguments)
    process.start()
    theirs.close()
    process.join(60)
    assert process.exitcode
    assert plan._received(words) == reason
    assert plan._received(words) == ""


def test_the_last_words_of_a_run(tmp_path):
    log = tmp_path / "log.txt"
    assert plan._last_words(log) == ""
    log.write_text("warning: x\nerror: one\nerror: two\n")
    assert plan._last_words(log) == "one; two"
    log.write_text("Traceback (most recent call last):\n  a\nZeroDivisionError: b\n")
    assert plan._last_words(log) == f"ZeroDivisionError: b (all of it: {log})"


@pytest.mark.slow
def test_a_folder_that_was_begun_and_holds_no_recipe_is_begun_anew(write, tmp_path):
    out, file = tmp_path / "out", write("base: base.yaml\nset: {train_args.comm_round: 2}\ngrid: [{one: {}}]")
    (planned,) = plan.plan(file, out=out)
    planned.folder.create()
    planned.folder.write_json("environment.json", {"run": "broken off"})
    (planned.folder.path / "partition.png.part").write_bytes(b"half")
    assert call("sweep", file, "--out", out).stdout.startswith("1 run: 0 done, 0 to go on with")
    assert planned.folder.run_id() != "broken off"
    assert not list(planned.folder.path.glob("*.part"))
    assert (rounds(planned.folder.path), plan.states_of([planned])) == (2, {"one": "done"})
