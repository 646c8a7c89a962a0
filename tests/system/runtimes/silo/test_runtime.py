"""The server and all silos on one machine, started by one command."""

import os
import shlex
import signal
import socket
from importlib.util import find_spec

import psutil
import pytest
from federations import same
from recipe_texts import SILOS
from safetensors.torch import load_file

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runtimes.silo import certs, keys

SLOW = [
    "method_args.method=fedphp", "train_args.epochs=20", "train_args.comm_round=4", "tracking_args.checkpoint_every=1",
    "train_args.client_num_in_total=2", "partition_args.classes_per_client=5",
]  # fmt: skip
PASSPHRASE = "s3cret of the test"


def words(overrides):
    return [word for override in overrides for word in ("--set", override)]


def resume_line(run):
    """The message about resuming: the command as it was typed, with ``--resume``."""
    return "to resume: " + shlex.join(
        ["labelskew", "run", str(run.parent / "here.yaml"), *words(SLOW), "--resume", str(run), "--host", "none"]
    )


def descendants(process):
    """Child processes of this one, and theirs, by kind."""
    results = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        command = child.cmdline()
        name = f"silo {command[command.index('--rank') + 1]}" if "--rank" in command else "server"
        results[name] = child
    return results


@pytest.fixture(scope="module")
def sittings(forker, tmp_path_factory):
    """One run that is stopped and killed in turn, and then finishes: its folder, and code and text of each part.

    Only the last sitting has FedML.
    """
    folder = tmp_path_factory.mktemp("here")
    recipe, run, ends = folder / "here.yaml", folder / "run", {}
    recipe.write_text(SILOS.replace("backend: GRPC", "backend: GRPC, certs: certs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keys.VARIABLE, PASSPHRASE)
        certs.new(folder / "certs", 2, encrypt=True)
    for name, number in (
        ("interrupt", signal.SIGINT), ("silo 2", signal.SIGKILL), ("terminate", signal.SIGTERM), ("end", None),
    ):  # fmt: skip
        where = ["--resume", run] if run.exists() else ["--run-dir", run, "--host", "none"]
        where += ["--host", "fedml"] if name == "end" and find_spec("fedml") else []
        more = {"environment": {keys.VARIABLE: PASSPHRASE}, "fork_children": True}
        process = forker.start(["run", recipe, *where, *words(SLOW)], folder / f"{name}.log", **more)
        if number is not None:
            process.says(": trained in")
            family = descendants(process)
            assert sorted(family) == ["server", "silo 1", "silo 2"]
            assert not any(PASSPHRASE in " ".join(child.cmdline()) for child in family.values())
            os.kill(family[name].pid if name in family else process.pid, number)
        code = process.wait()
        assert number is None or not [child for child in family.values() if child.is_running()]
        ends[name] = code, process.text
    return run, ends


def test_one_command_runs_everything_and_gives_the_weights_of_one_process(sittings, sp_weights):
    run, ends = sittings
    code, text = ends["end"]
    assert code == 0, text
    lines = ends["interrupt"][1].splitlines()
    assert lines[0].startswith("starting the server and 2 silos on this machine")
    assert {line.partition(" | ")[0] for line in lines[1:-1]} == {"server", "silo 1", "silo 2"}
    assert "server | silo 2 has connected" in text
    assert any(line.startswith("silo 2 | round 4: trained in") for line in text.splitlines())
    assert any(line.startswith("server | results: ") for line in text.splitlines())
    assert len(list(run.glob("silos/silo-*/*/personalised.safetensors"))) == 2
    for file in run.glob("silos/silo-*/*/metrics.jsonl"):
        assert [line["round"] for line in read_lines(file)] == [0, 1, 2, 3]
        assert all(line["personalised_accuracy"] > 0 for line in read_lines(file))
    same(load_file(run / "model.safetensors"), sp_weights(*SLOW))


def test_a_run_that_was_stopped_explains_how_to_resume(sittings):
    """By the command that was typed, not by that of the server that it has started."""
    run, ends = sittings
    for name in ("interrupt", "terminate"):
        code, text = ends[name]
        assert code == 130
        (line,) = [line for line in text.splitlines() if "to resume" in line]
        assert line.startswith("server | interrupted after ")
        assert line.endswith(f"; {resume_line(run)}")
        assert "Traceback" not in text
    code, text = ends["silo 2"]
    assert code == 1
    assert text.strip().splitlines()[-1] == f"error: silo 2 was killed by signal 9 (SIGKILL); {resume_line(run)}"


def test_a_passphrase_opens_the_keys_of_all_and_is_written_nowhere(sittings, forker, tmp_path):
    run, ends = sittings
    assert "(no TLS)" not in ends["end"][1]
    files = [path for path in run.parent.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"interrupt.log", "fedml.yaml", "environment.json", "audit.jsonl"}
    for path in files:
        assert PASSPHRASE.encode() not in path.read_bytes(), path
    argv = ["run", run.parent / "here.yaml", "--run-dir", tmp_path / "run", *words(SLOW)]
    wrong = forker.start(argv, tmp_path / "wrong.log", environment={keys.VARIABLE: "another"})
    assert wrong.wait() == 2
    line = f"{run.parent}/certs/server.key: the passphrase from {keys.VARIABLE} does not decrypt it, or it is damaged"
    assert wrong.text == f"error: {line}\n"


@pytest.mark.parametrize("role", [[], ["--role", "server"]])
def test_a_finished_run_does_not_wait_again(sittings, forker, role, tmp_path):
    run, _ = sittings
    other = forker.start(["run", run.parent / "here.yaml", "--resume", run, *role], tmp_path / "other")
    assert other.wait() == 2, other.text  # its recipe has another number of rounds
    again = forker.start(["run", "--resume", run, *role], tmp_path / "again")
    assert (again.wait(), again.text) == (0, f"{run}: all 4 rounds are done already\n")


def test_mistakes_are_reported_once_and_leave_no_folder(forker, tmp_path):
    (tmp_path / "here.yaml").write_text(SILOS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name, line, *more in (
            ("rank", "error: --rank 4: out of range; allowed: 1 to 3, one per silo", "--role", "client", "--rank", "4"),
            ("here", "error: --set train_args.epochs: 0 is out of range", "--set", "train_args.epochs=0"),
            ("listen", f"error: cannot listen at {address}: address already in use; use a free port of this machine",
             "--role", "server", "--server", address),
        ):  # fmt: skip
            process = forker.start(["run", "here.yaml", "--run-dir", "run", *more], tmp_path / name, cwd=tmp_path)
            assert process.wait() == 2
            assert process.text.startswith(line)
            assert process.text.count("\n") == 1
            assert not (tmp_path / "run").exists()
