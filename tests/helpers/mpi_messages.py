"""The program of the ranks in test_transport.py: ``mpirun -np 3 python mpi_messages.py SCENE ...``; rank 0 prints."""

import pickle
import sys
import time

import pytest
import torch
from federations import Peer

from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.mpi import transport
from fl_labelskew_plugins.runtimes.mpi.rank import as_rank, world
from fl_labelskew_plugins.runtimes.mpi.transport import MPITransport
from fl_labelskew_plugins.runtimes.transport import Kind


class Box(Peer):
    """A transport, and the messages that it has delivered."""

    def send(self, receiver, kind=Kind.TRAIN, **content):
        super().send(kind, receiver, **content)

    def next(self):
        assert self.transport.receive(60.0)
        return self.got.pop(0)


def order(box, rank):
    sizes = [0, 10, 100_000, 3, 1_000_000, 1, 5000]
    if rank:
        for number in range(140):
            box.send(0, meta={"number": number}, tensors={"x": torch.ones(sizes[number % 7])})
        return
    numbers = {1: [], 2: []}
    for _ in range(2 * 140):
        came = box.next()
        numbers[came.sender].append(came.meta["number"])
    assert numbers[1] == numbers[2] == list(range(140))


def large(box, rank):
    """100 MB from each to each."""
    big = torch.arange(25_000_000, dtype=torch.float32)
    for peer in {0, 1, 2} - {rank}:
        box.send(peer, tensors={"big": big + rank})
        box.send(peer, meta={"after": True})
    seen = set()
    for _ in range(4):
        came = box.next()
        sender = came.sender
        if sender in seen:
            assert came.meta == {"after": True}
        else:
            assert torch.equal(came.tensors["big"], big + sender)
        seen.add(sender)


def changed(box, rank):
    """The sender may change a tensor after it was sent."""
    if rank:
        time.sleep(0.2)
        assert bool((box.next().tensors["x"] == 1).all())
        return
    x = torch.ones(3_000_000)
    for worker in (1, 2):
        box.send(worker, tensors={"x": x})
    x.zero_()


def waiting(box, rank):
    """CPU time per second, of a server with an unread message on its way and of a worker with none."""
    cpu, clock = time.process_time(), time.monotonic()
    if rank == 0:
        box.send(1, tensors={"unread": torch.ones(2_000_000)})
        assert not box.transport.receive(3.0)
        print("server", (time.process_time() - cpu) / (time.monotonic() - clock))
        box.send(2)
        print("worker", box.next().meta["share"])
    elif rank == 1:
        time.sleep(4)
        box.next()
    else:
        box.next()
        box.send(0, meta={"share": (time.process_time() - cpu) / (time.monotonic() - clock)})


def huge(box, rank):
    """More than 2 GiB, there."""
    size = 2**31 + 2**27
    if rank == 0:
        big = torch.empty(size, dtype=torch.uint8)  # most of it is never touched, so it costs no memory
        big[2**31] = big[-1] = 9
        box.send(1, tensors={"big": big, "small": torch.arange(3)})
        box.next()
    elif rank == 1:
        came = box.next().tensors
        assert len(came["big"]) == size
        assert came["big"][2**31] == came["big"][-1] == 9
        assert came["small"].tolist() == [0, 1, 2]
        box.send(0)


def parts(box, rank):
    transport.CHUNK, before = 1000, transport.CHUNK
    sizes = (0, 1, 100, 12345)
    if rank == 0:
        for size in sizes:
            box.send(1, tensors={"x": torch.arange(size)})
    elif rank == 1:
        for size in sizes:
            assert torch.equal(box.next().tensors["x"], torch.arange(size))
    transport.CHUNK = before


def stop(box, rank):
    """Stopping waits for the last messages, but not for ever."""
    if rank:
        time.sleep(0.5 if rank == 1 else 2.5)
        box.next()
        return
    big = {"x": torch.ones(3_000_000)}
    box.send(1, tensors=big)
    box.transport.stop_receive_message()
    assert not box.transport._outgoing
    assert not box.transport.running
    transport.STOP_S, before = 0.3, transport.STOP_S
    box.send(2, tensors=big)
    box.transport.stop_receive_message()
    assert box.transport._outgoing
    transport.STOP_S = before


def stray(box, rank):
    """Bytes that are no message."""
    from mpi4py import MPI

    comm = world()
    if rank == 1:
        comm.Send([bytes(wire.Header.SIZE), MPI.BYTE], 0, transport.HEADER)
        header = wire.Header(Kind.UPLOAD, 2, 0, 0, 5)  # as if from rank 2
        comm.Send([header.pack(), MPI.BYTE], 0, transport.HEADER)
    elif rank == 0:
        for said in ("not a message of this package", "it came from rank 1"):
            with pytest.raises(wire.WireError, match=said):
                box.transport.receive(60.0)


def main():
    def refuse(*_, **__):
        raise AssertionError("pickled")

    comm = world()
    from mpi4py import MPI

    MPI.pickle.__init__(refuse, refuse)
    pickle.dumps = pickle.loads = pickle.dump = pickle.load = refuse
    for name in sys.argv[1:]:
        comm.Barrier()
        begun = time.monotonic()
        box = Box(MPITransport())
        globals()[name](box, box.transport.rank)
        box.transport.stop_receive_message()
        assert not box.transport._outgoing
        comm.Barrier()
        print(name, round(time.monotonic() - begun, 3), flush=True)


if __name__ == "__main__":
    with as_rank():
        main()
