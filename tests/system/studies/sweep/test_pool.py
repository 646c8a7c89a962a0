"""The runs of a sweep: when another one may begin; interrupted, failed in part, gone on with, and then done."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest
from commands import call
from federations import wait_until
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.studies.sweep import plan, pool


def at_work(planned, slots, bound):
    """The first run is under way."""
    made = pool.Pool(planned, planned[1:], slots, bound, print)
    made.running.append(pool.RunProcess(planned[0], None, 0))
    return made


def test_runs_in_parallel_fit_in_memory(write, tmp_path):
    planned = plan.plan(write(), out=tmp_path / "out")
    assert not at_work(planned, 3, 10e9)._fits()  # nobody knows yet
    planned[0].folder.create()
    planned[0].folder.append(planned[0].folder.timings, {"round": 0, "seconds": 1.0, "peak_mb": 600.0})
    planned[0].folder.append(planned[0].folder.timings, {"round": 1, "seconds": 1.0, "peak_mb": 700.0})
    assert at_work(planned, 3, 1.4e9)._fits()
    assert not at_work(planned, 3, 1.39e9)._fits()
    assert not at_work(planned, 1, 1.4e9)._fits()
    other = plan.plan(write(), ["model_args.model=mlp"], tmp_path / "other")
    made = at_work(planned, 3, 10e9)
    made.waiting = other
    assert not made._fits()  # of another network nobody knows
    made.running.clear()
    assert made._fits()
    assert 0 < pool.free_memory() < 1e15


@pytest.mark.parametrize("line", [b'"x"', b"\xff\xfe", b'{"peak_mb": "much"}', b'{"peak_mb": null}', b"[1]"])
def test_damaged_timings_of_a_finished_run_stop_no_sweep(write, tmp_path, line):
    planned = plan.plan(write(), out=tmp_path / "out")
    for each in planned[:2]:
        each.folder.create()
        each.folder.timings.write_bytes(line + b"\n")
    assert at_work(planned, 3, 1e9)._peaks == {}
    planned[2].folder.create()
    planned[2].folder.append(planned[2].folder.timings, {"round": 0, "peak_mb": 600.0})
    assert list(at_work(planned, 3, 1e9)._peaks.values()) == [600e6]


def test_each_run_has_its_own_gpu(write, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    gpus = ["device_args.using_gpu=true", "device_args.gpu_ids=[3, 1]"]
    planned = plan.plan(write(), gpus, tmp_path / "out")
    assert {tuple(each.recipe.device.gpu_ids) for each in planned} == {(0,)}  # the only one that it will see
    assert pool.default_jobs(planned) == 2
    assert pool.Pool(planned, planned, 2, 1e9, print)._gpus == [3, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert pool._visible(3) == "3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-a,5,6")
    assert pool._visible(1) == "GPU-a"
    with pytest.raises(LabelSkewError, match="no GPU 4"):
        plan.plan(write(), [*gpus[:1], "device_args.gpu_ids=[4]"])


def test_threads_limit_the_number_of_parallel_runs(write, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "available_cores", lambda: 8)
    assert pool.default_jobs(plan.plan(write(), out=tmp_path)) == 8
    assert pool.default_jobs(plan.plan(write(), ["device_args.threads=3"], tmp_path)) == 2
    assert pool.default_jobs(plan.plan(write(), ["comm_args.backend=MPI"], tmp_path)) == 1


def rounds(folder):
    return len(read_lines(folder / "metrics.jsonl"))


def test_an_interrupted_and_partly_failed_sweep_completes(write, tmp_path):
    file, out = write(), tmp_path / "out"
    command = ["sweep", file, "--out", out, "--jobs", "2", "--host", "none", "--set", "train_args.comm_round=40"]
    names = ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0"]

    def interrupt():
        wait_until(lambda: rounds(out / names[0]) >= 5, 90)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    stopped = call(*command, code=130)
    assert re.search(r"interrupted: 0 of 3 runs finished; to resume: labelskew", stopped.stderr)
    assert "Traceback" not in stopped.output
    begun = out / names[0]
    checkpoint = begun / "checkpoint" / "latest.safetensors"
    assert 5 <= rounds(begun) < 40
    assert re.search(rf"^{names[0]} +stopped ", call("status", out).output, re.MULTILINE)

    good = checkpoint.read_bytes()
    checkpoint.write_bytes(b"junk")
    partly = call(*command, code=1)
    lines = partly.stdout.splitlines()
    assert lines[0].startswith("3 runs: 0 finished, ")
    assert {line.split()[1] for line in lines[1:4]} == set(names)
    assert lines[3].startswith("3/3  ")
    failed = re.search(rf"^failed: {names[0]}: (.*)$", partly.stderr, re.MULTILINE)[1]
    assert "latest.safetensors is not a checkpoint of a run" in failed
    assert partly.stderr.endswith("error: 1 of 3 runs failed; repeat the command to retry them\n")
    assert "is not a checkpoint" in (out / "_logs" / f"{names[0]}.txt").read_text()

    checkpoint.write_bytes(good)
    lines = call(*command).stdout.splitlines()
    assert lines[0].startswith("3 runs: 2 finished, 1 to resume")
    assert lines[1].startswith(f"3/3  {names[0]}  accuracy ")
    assert lines[2].split()[:3] == ["method", "data", "partition"]
    assert [line.split()[0] for line in lines[3:5]] == ["fedavg", "fedlc"]
    # names in a report, and no log if there is no output
    assert sorted(file.name for file in out.iterdir()) == [*names, "sweep.json"]

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = call(*command).stdout.splitlines()
    assert again[0].startswith("3 runs: 3 finished, 0 to resume")
    assert again[1:] == lines[2:]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    other = call("sweep", file, "--out", out, "--set", "train_args.comm_round=3", code=2)
    assert other.stderr == (
        f"error: {begun} and 2 more: holds another run, which differs in train_args.comm_round; use another --out, or "
        "the original settings\n"
    )


def test_an_interrupt_during_imports_prints_one_line(write, tmp_path, forker):
    slow = "import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(slow)
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from fl_labelskew_plugins.studies.sweep import pool\nfrom fl_labelskew_plugins.cli.main import main\n"
        "os.setsid()\npool.PRELOADED = ['slow']\nmain()\n"
    )
    out = tmp_path / "out"
    argv = ["sweep", write(), "--out", out, "--jobs", "2", "--host", "none"]
    process = forker.start(argv, tmp_path / "log", script=script, environment={"PYTHONPATH": str(tmp_path)})
    wait_until((tmp_path / "slow.begun").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    first, *rest = process.text.splitlines()
    assert first.startswith("3 runs: 0 finished")
    assert len(rest) == 1
    assert rest[0].startswith("interrupted: 0 of 3 runs finished; to resume: ")
    assert [file.name for file in out.iterdir()] == ["sweep.json"]
    wait_until(lambda: not processes_of(process.pid))  # the importing processes have ended, too


def processes_of(group):
    """The processes of a group, without zombies."""
    stats = [file.read_text().rpartition(")")[2].split() for file in Path("/proc").glob("[0-9]*/stat") if file.exists()]
    return [fields for fields in stats if int(fields[2]) == group and fields[0] != "Z"]


def test_error_in_log(tmp_path):
    log = tmp_path / "log.txt"
    assert pool.error_in_log(log) == ""
    log.write_text("warning: x\nerror: one\nerror: two\n")
    assert pool.error_in_log(log) == "one; two"
    log.write_text("Traceback (most recent call last):\n  a\nZeroDivisionError: b\n")
    assert pool.error_in_log(log) == f"ZeroDivisionError: b (full traceback: {log})"
