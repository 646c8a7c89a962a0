"""Tasks for a cluster's scheduler: one combination by its number, and several processes in one folder."""

import re
import signal
import time

from commands import call, errors

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.studies.sweep import plan

FOUR = """
base: base.yaml
set: {train_args.comm_round: 25}
grid:
- {fedavg: {method_args.method: fedavg}, fedlc: {method_args: {method: fedlc, tau: 2.0}}}
- common_args.random_seed: [0, 1]
"""
NAMES = ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0", "fedlc-seed1"]
SAME = ("metrics.jsonl", "model.safetensors", "recipe.yaml")


def test_tasks_are_numbered_from_0_in_the_file_s_order(write, tmp_path):
    file, out = write(FOUR), tmp_path / "out"
    assert call("sweep", file, "--tasks").output == "4\n"
    assert call("sweep", file, "--tasks", "--only", "fedlc").output == "2\n"
    assert [(run.number, run.name) for run in plan.plan(file, out=out)] == [*enumerate(NAMES)]


def test_an_invalid_task_is_one_line(write):
    file = write(FOUR)
    assert errors("sweep", file, "--task", "4") == ["--task: task 4 does not exist; use numbers from 0 to 3"]
    use = "use it without --jobs and --memory"
    assert errors("sweep", file, "--task=0", "--jobs=2") == [f"--task: runs one combination in this process; {use}"]


def test_tasks_can_be_counted_without_data_and_gpu(write, tmp_path):
    gone = ["--set", "data_args.dataset=cifar10", "--set", f"data_args.data_cache_dir={tmp_path}"]
    gone += ["--set", "device_args.using_gpu=true", "--set", "device_args.gpu_ids=[7]"]
    file = write(FOUR)
    assert call("sweep", file, "--tasks", *gone).output == "4\n"
    assert all(str(tmp_path) in line or "no GPU 0" in line for line in errors("sweep", file, "--task", "1", *gone))


def test_four_processes_share_a_folder_and_each_run_is_done_once(write, tmp_path, forker):
    file, out, quiet = write(FOUR), tmp_path / "out", tmp_path / "quiet"
    for number, name in enumerate(NAMES):
        (line,) = call("sweep", file, "--out", quiet, "--task", number, "--host", "none").output.splitlines()
        assert re.fullmatch(rf"task {number}  {name}  accuracy .*  0:\d\d", line)
    (again,) = call("sweep", file, "--out", quiet, "--task", "1", "--host", "none").output.splitlines()
    assert again == "task 1  fedavg-seed1  already finished"

    command = ["sweep", file, "--out", out, "--host", "none"]
    victim = forker.start([*command, "--task", "1"], tmp_path / "victim")
    rounds = out / NAMES[1] / "metrics.jsonl"
    while len(read_lines(rounds)) < 3:
        time.sleep(0.005)
    victim.kill(signal.SIGSTOP)
    late = forker.start([*command, "--task", "1"], tmp_path / "late")
    others = [forker.start(command, tmp_path / f"other{n}") for n in range(2)]
    for process in others:  # the other runs are done, and a run has only one process
        process.says(f"waiting for 1 run of other processes: {NAMES[1]} (process {victim.pid})")
    assert len(rounds.read_text().splitlines()) < 25
    victim.kill()
    assert victim.wait() < 0
    assert [process.wait() for process in (late, *others)] == [0, 0, 0]
    assert late.text == f"task 1  {NAMES[1]}  skipped: process {victim.pid} is running it\n"
    said = "".join(process.text for process in others)
    for name in NAMES:
        assert len(re.findall(rf"^\d/4  {name}  accuracy ", said, re.MULTILINE)) == 1
        for file in SAME:
            assert (out / name / file).read_bytes() == (quiet / name / file).read_bytes()
        for file in ("metrics.jsonl", "timings.jsonl"):
            assert [line["round"] for line in read_lines(out / name / file)] == [*range(25)]
    assert sorted(path.name for path in out.iterdir()) == [*NAMES, "sweep.json"]
    assert not [*out.glob("*/.lock*")]
