"""examples/fedml_script, started as its README says, with FedML's own managers and messages."""

import itertools
import re
import runpy
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from federations import wait_until
from recipe_texts import DIGITS

import fl_labelskew_plugins as fl

pytestmark = [pytest.mark.host]
EXAMPLE = Path(__file__).parents[3] / "examples" / "fedml_script"
SCRIPT = EXAMPLE / "main.py"
ROUNDS = 2
ONE_SAMPLE = 1.1 / 360
"""Rounding may change the class of a test sample."""


def configuration(name, folder, method, **changed):
    """The example's own configuration with another method and other values."""
    text = (EXAMPLE / name).read_text()
    for key, value in {"method": method, "comm_round": ROUNDS, **changed}.items():
        text, found = re.subn(rf"^(  {key}:).*$", rf"\1 {value}", text, flags=re.MULTILINE)
        assert found == 1, key
    file = folder / f"{method}.yaml"
    file.write_text(text)
    return file


def own(method, folder):
    """Accuracy after each round of our own runtime, on the clients and from the weights of the example."""
    import torch

    example = runpy.run_path(str(SCRIPT))
    _, _, _, tests, _, train, _, _ = example["digits"](SimpleNamespace(batch_size=16, client_num_in_total=3))
    torch.manual_seed(0)  # as fedml.init does
    model = example["network"]()
    parts = {k: [torch.cat(part) for part in zip(*batches, strict=True)] for k, batches in train.items()}
    x, y = (torch.cat([part[i] for part in parts.values()]) for i in (0, 1))
    ends = torch.tensor([0, *(len(part[1]) for part in parts.values())]).cumsum(0).tolist()
    lists = [list(range(start, end)) for start, end in itertools.pairwise(ends)]
    train_args = {"client_num_in_total": 3, "comm_round": ROUNDS, "epochs": 2}
    recipe = DIGITS | {"train_args": DIGITS["train_args"] | train_args, "method_args": {"method": method}}
    recipe["partition_args"] = {}
    data = ((x, y), tuple(torch.cat(part) for part in zip(*tests, strict=True)))
    run = fl.run(recipe, folder, model=model, dataset=data, partition=lists, host="none", quiet=True)
    return run.metrics.accuracy.tolist()


def printed(text):
    return [float(number) for number in re.findall(r"^round \d+: accuracy ([\d.]+)", text, flags=re.MULTILINE)]


def test_example_over_mpi(forker, tmp_path):
    file = configuration("mpi.yaml", tmp_path, "fedmr")
    done = forker.mpirun(SCRIPT, ["--cf", file], ranks=4, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed(done.stdout + done.stderr) == pytest.approx(own("fedmr", tmp_path / "own"), abs=ONE_SAMPLE)


def test_diverged_training_ends_all_processes_of_mpi_in_one_line(forker, tmp_path):
    file = configuration("mpi.yaml", tmp_path, "fedlc", learning_rate="1.0e+30")
    done = forker.mpirun(SCRIPT, ["--cf", file], ranks=4, timeout=120, cwd=tmp_path)
    assert done.returncode != 0
    assert re.search(r"^error: round 1: upload of client \d: .* is not finite, training diverged", done.stderr, re.M)
    assert "Traceback" not in done.stderr


def listens(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_example_across_silos(forker, tmp_path):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    rows = [f"{rank},{rank},127.0.0.1,{each.getsockname()[1]}" for rank, each in enumerate(sockets)]
    (tmp_path / "silos.csv").write_text("\n".join([(EXAMPLE / "silos.csv").read_text().splitlines()[0], *rows]) + "\n")
    for each in sockets:
        each.close()
    file = configuration("silo.yaml", tmp_path, "fedshift", grpc_ipconfig_path=tmp_path / "silos.csv")

    def start(rank, role):
        argv = ["--cf", file, "--rank", rank, "--role", role]
        return forker.start(argv, tmp_path / f"{rank}.log", script=SCRIPT, cwd=tmp_path)

    server = start(0, "server")
    port = int(rows[0].rpartition(",")[2])
    wait_until(lambda: listens(port), 90)  # FedML's client ends if it starts before the server
    silos = [start(rank, "client") for rank in (1, 2, 3)]
    assert server.wait(timeout=120) == 0, server.text
    assert [silo.wait(timeout=60) for silo in silos] == [0, 0, 0], silos[0].text
    assert printed(server.text) == pytest.approx(own("fedshift", tmp_path / "own"), abs=ONE_SAMPLE)
