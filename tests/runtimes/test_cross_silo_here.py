"""The server and all silos on one machine, started by one command."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fl_labelskew_plugins.results import read_lines


@pytest.fixture
def command(tmp_path, base_recipe):
    recipe = tmp_path / "here.yaml"
    recipe.write_text(base_recipe)

    def command(*more):
        return [sys.executable, "-m", "fl_labelskew_plugins.cli.main", "run", str(recipe), *map(str, more)]

    return command


def descendants(pid):
    """Processes that this one has started, with theirs."""
    found = []
    for child in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split():
        found += [int(child), *descendants(int(child))]
    return found


def alive(pids):
    return [
        pid for pid in pids if os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split()[2]
    ]


def started(command, tmp_path):
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
    return process, (tmp_path / "log").read_text


def until(condition, timeout=150):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_command_runs_everything_and_prefixes_the_lines(command, tmp_path, sp_weights):
    from safetensors.torch import load_file

    run = tmp_path / "run"
    done = subprocess.run(
        command("--run-dir", run, "--set", "method_args.method=map"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("starting the server and 3 silos on this machine")
    assert {line.partition(" | ")[0] for line in lines} == {"server", "silo 1", "silo 2", "silo 3"}
    assert "server | silo 2 is here" in done.stdout
    assert any(line.startswith("silo 3 | round 3: trained in") for line in lines)
    assert any(line.startswith("server | results: ") for line in lines)
    expected = sp_weights("method_args.method=map")
    assert all(torch.equal(value, expected[key]) for key, value in load_file(run / "model.safetensors").items())
    assert len(list(run.glob("silos/silo-*/*/personalised.safetensors"))) == 3
    for file in run.glob("silos/silo-*/*/metrics.jsonl"):
        assert [line["round"] for line in read_lines(file)] == [0, 1, 2]
        assert all(line["personalised_accuracy"] > 0 for line in read_lines(file))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_ends_all_and_goes_on_later(number, command, tmp_path, sp_weights):
    from safetensors.torch import load_file

    run = tmp_path / "run"
    slow = ["--set", "train_args.epochs=40", "--set", "train_args.comm_round=4", "--set", "method_args.method=fedphp"]
    process, text = started(command("--run-dir", run, *slow), tmp_path)
    until(lambda: "round 2: trained" in text())
    children = descendants(process.pid)
    assert len(children) >= 4
    process.send_signal(number)
    assert process.wait(60) == 130
    assert alive(children) == []
    assert "to go on: fedml run --resume" in text()
    assert "Traceback" not in text()
    done = subprocess.run(command("--resume", run, *slow), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = sp_weights(*slow[1::2])
    assert all(torch.equal(value, expected[key]) for key, value in load_file(run / "model.safetensors").items())


def test_a_run_that_is_done_is_not_waited_for_again(command, tmp_path):
    run = tmp_path / "run"
    once = command("--run-dir", run, "--set", "train_args.comm_round=1")
    subprocess.run(once, capture_output=True, check=True)
    for role in ([], ["--role", "server"]):
        done = subprocess.run(command("--resume", run, *role), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2  # its recipe has another number of rounds
        again = [word for word in command("--resume", run, *role) if not word.endswith("here.yaml")]
        done = subprocess.run(again, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, f"{run}: all 1 rounds are done already\n")


def test_a_server_that_cannot_listen_leaves_no_folder(command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            command("--role", "server", "--server", address, "--run-dir", tmp_path / "run"),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot listen at {address}: address already in use; a free port of this machine would be right\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_process_that_fails_ends_the_others(command, tmp_path):
    run = tmp_path / "run"
    slow = ["--set", "train_args.epochs=40", "--set", "train_args.comm_round=40"]
    process, text = started(command("--run-dir", run, *slow), tmp_path)
    until(lambda: "round 1: trained" in text())
    children = descendants(process.pid)
    victim = next(pid for pid in children if b"--rank\0002\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    assert process.wait(60) == 1
    assert alive(children) == []
    *_, last = text().strip().splitlines()
    assert last == f"error: silo 2 was killed by signal 9 (SIGKILL); to go on: fedml run --resume {run}"


def test_a_mistake_is_told_once_before_anything_starts(command, tmp_path):
    done = subprocess.run(command("--set", "train_args.epochs=0"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    done = subprocess.run(
        command("--role", "client", "--rank", "4", "--run-dir", tmp_path / "x"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "error: --rank 4: out of range; allowed: 1 to 3, one a silo"
