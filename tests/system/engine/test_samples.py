"""Samples that are streamed from files: in order, the same with any number of processes, and to a clean end."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from fl_labelskew_registry import LabelSkewError, RunError

sys.path.append(str(Path(__file__).parents[2] / "helpers"))  # which processes that decode have, too
reading = importlib.import_module("made_up_pictures")
read, streamed, SIZE = reading.read, reading.streamed, reading.SIZE
BATCHES = [torch.tensor([5, 0, 2]), torch.tensor([1]), torch.tensor([11, 3, 4, 5])]


def in_memory():
    x = np.repeat(np.arange(12, dtype=np.uint8), 48).reshape(12, *SIZE)
    return reading.parts(x, x[:7])


def flat(stream):
    return torch.cat([inputs for _, inputs in stream])


@pytest.fixture(scope="module", params=[(0, "fork"), (2, "fork"), (2, "forkserver")], ids=str)
def parts(request):
    """Both parts, decoded here, by forked processes, or as where gRPC's threads forbid to fork."""
    workers, method = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "grpc", raising=False)
        if method == "forkserver":
            patch.setitem(sys.modules, "grpc", types.ModuleType("grpc"))
        made = streamed(workers)
        made[0].inputs(slice(0, 1))  # now they start
    return made


def test_streamed_samples_equal_those_in_memory(parts):
    for part, known in zip(parts, in_memory(), strict=True):
        assert torch.equal(part.y, known.y)
        assert torch.equal(part.inputs(slice(2, 6)), known.inputs(slice(2, 6)))
        slices = [slice(0, 3), slice(3, 7)]
        found = list(part.stream(iter(slices)))
        assert [index for index, _ in found] == slices
        for (_, one), (_, other) in zip(found, known.stream(slices), strict=True):
            assert torch.equal(one, other)
    train, known = parts[0], in_memory()[0]
    for (index, inputs), expected in zip(train.stream(BATCHES), BATCHES, strict=True):
        assert torch.equal(index, expected)
        assert torch.equal(inputs, known.inputs(expected))


def test_augmentation_depends_only_on_seed_and_position(parts):
    train, _ = parts
    state = torch.get_rng_state()
    once, again, other = (flat(train.stream(BATCHES, seed=seed)) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), state)  # training draws what it would draw without
    assert torch.equal(once, again)
    assert torch.equal(once, flat(streamed(1)[0].stream(BATCHES, seed=7)))
    assert not torch.equal(once[:, 0], other[:, 0])
    assert torch.equal(once[:, 1:], other[:, 1:])
    drawn = once[:, 0, 0, 0]
    assert len(drawn.unique()) > 4  # every sample has a draw of its own, sample 5 has two
    assert drawn[0] != drawn[-1]


def test_a_half_read_stream_leaves_no_process(parts):
    train, test = parts
    assert list(train.stream([])) == []
    left = train.stream(BATCHES * 20)
    next(left)
    assert torch.equal(test.inputs(slice(0, 7)), in_memory()[1].inputs(slice(0, 7)))
    assert torch.equal(flat(train.stream(BATCHES)), flat(in_memory()[0].stream(BATCHES)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_a_one_line_error(workers):
    files = [str(number) for number in range(12)]
    files[4] = "broken"
    train, _ = streamed(workers, files)
    stream = train.stream(BATCHES)
    next(stream)
    next(stream)
    with pytest.raises(LabelSkewError, match=r"^broken: is not a valid picture$"):
        next(stream)
    assert torch.equal(train.inputs(torch.tensor([1])), in_memory()[0].inputs(torch.tensor([1])))


def test_a_killed_decoder_is_a_one_line_error():
    files = [str(number) for number in range(12)]
    files[4] = "killer"
    train, _ = streamed(1, files)
    with pytest.raises(RunError, match=r"^a process that decodes images has ended \(.*\); if memory was short, "):
        flat(train.stream(BATCHES))


READING = """
import sys, time, types
from fl_labelskew_plugins.machine.signals import interrupting
if sys.argv[2] == "forkserver":
    sys.modules["grpc"] = types.ModuleType("grpc")
sys.path.append(sys.argv[1])
import made_up_pictures, torch
stream = made_up_pictures.streamed(2)[0].stream([torch.arange(12)] * 50)
next(stream), next(stream)  # both processes have begun
try:
    with interrupting():
        print("reading", flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    time.sleep(1)  # as saving a checkpoint does
    print("saved", flush=True)
"""


@contextlib.contextmanager
def reader(method):
    """A process in a new session that reads with two others, and these two."""
    command = [sys.executable, "-c", READING, str(Path(__file__).parents[2] / "helpers"), method]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdout.readline() == "reading\n"
        yield process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_killed_process_leaves_no_decoder(method):
    with reader(method) as (process, family):
        assert len(family) == (2 if method == "fork" else 4)  # with the server itself, and what tracks its resources
        process.kill()
    assert psutil.wait_procs(family, timeout=30)[1] == []


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_signal_to_all_processes_lets_the_reader_save(method):
    with reader(method) as (process, family):
        os.killpg(process.pid, signal.SIGTERM)
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, said, "RuntimeError" in errors) == (0, "saved\n", False)
    assert psutil.wait_procs(family, timeout=30)[1] == []
