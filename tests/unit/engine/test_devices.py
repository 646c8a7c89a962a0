"""The GPU of each process, on a machine with simulated GPUs."""

import pytest
import torch
from error_messages import message
from recipe_texts import text_with

from fl_labelskew_plugins.engine import devices
from fl_labelskew_plugins.machine.place import LAUNCHER
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session


def asked(ids="[0]", *overrides):
    text = text_with(device_args={"using_gpu": True, "threads": 1})
    return parse.parse(text, overrides=[f"device_args.gpu_ids={ids}", *overrides])


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


CASES = [
    # gpu_ids, workers_per_gpu, workers, the workers' GPUs
    ("[2]", 3, 3, [2, 2, 2]),
    ("[0, 1]", 4, 2, [0, 1]),
    ("[0, 1]", 4, 5, [0, 0, 0, 1, 1]),
    ("[3, 1]", 2, 3, [1, 3, 3]),
    ("[1, 1]", 2, 2, [1, 1]),
]


@pytest.mark.parametrize(("ids", "each", "workers", "slots"), CASES)
def test_gpu_slots(ids, each, workers, slots):
    assert devices.gpu_slots(asked(ids, f"device_args.workers_per_gpu={each}"), workers) == slots


@pytest.mark.parametrize(("rank", "gpu"), [(0, 1), (1, 1), (2, 3), (3, 3)])
def test_the_device_of_a_rank(monkeypatch, rank, gpu):
    over_mpi = asked("[3, 1]", "device_args.workers_per_gpu=2", "comm_args.backend=MPI")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert devices.device(over_mpi) == devices.device(over_mpi, rank) == torch.device("cuda", gpu)


@pytest.mark.parametrize(("here", "gpu"), [((0, 3), 3), ((1, 3), 1), ((2, 3), 3), ((0, 2), 3), ((1, 2), 1)])
def test_every_node_has_its_own_gpus(monkeypatch, here, gpu):
    over_mpi = asked("[3, 1]", "comm_args.backend=MPI")
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    for name, value in zip(names, (here[0] + 3, 8, *here), strict=True):
        monkeypatch.setenv(name, str(value))
    assert devices.device(over_mpi) == torch.device("cuda", gpu)
    monkeypatch.setenv(names[3], "4")  # three and the server, or four
    assert message(lambda: devices.device(over_mpi)) == (
        "device_args.workers_per_gpu: 3 workers are more than 2 GPU(s) with 1 each; use workers_per_gpu: 2, or "
        "fewer workers"
    )


def test_one_process_uses_the_first_gpu_named(monkeypatch):
    assert devices.device(asked("[3, 1]")) == torch.device("cuda", 3)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")  # of somebody else's mpirun
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert devices.device(asked("[3, 1]")) == torch.device("cuda", 3)


def test_the_cpu_needs_no_mapping():
    plain = asked("[0]", "device_args.using_gpu=false")
    assert devices.gpus(plain) == devices.gpu_slots(plain, 3) == []
    assert devices.device(plain) == devices.device(plain, 2) == torch.device("cpu")


def test_a_missing_gpu_is_a_one_line_error_or_falls_back_to_the_cpu(monkeypatch, capsys):
    lack = "device_args.gpu_ids: no GPU 4 on this machine, which has 4"
    for check in (devices.gpus, devices.device, session.build, lambda r: devices.gpu_slots(r, 1)):
        line = message(lambda check=check: check(asked("[0, 4]")))
        assert line == f"{lack}; use using_gpu: false, or fallback: cpu"
    patient = asked("[0, 4]", "device_args.fallback=cpu")
    assert devices.gpu_slots(patient, 3) == []
    assert capsys.readouterr().err == ""
    assert devices.device(patient) == torch.device("cpu")
    assert capsys.readouterr().err == f"warning: {lack}; training on the CPU\n"
    # a job prints it once: rank 0 if it was started by hand, else the launching process
    assert devices.device(patient, 1) == torch.device("cpu")
    monkeypatch.setenv(LAUNCHER, "here")
    assert devices.device(patient, 0) == torch.device("cpu")
    assert capsys.readouterr().err == ""
