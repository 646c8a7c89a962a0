"""Messages over MPI. Its blocking calls keep a core busy, so a waiting process polls, at increasing intervals."""

import os
import queue
import time
from typing import Any

from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.mpi.rank import world
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message, Transport

HEADER, PAYLOAD = 1, 2  # MPI's tags
CHUNK = 2**30  # maximum bytes of one MPI message; MPI counts them in 32 bits
MIN_PAUSE_S, MAX_PAUSE_S = 0.0002, 0.002
EAGER_S, BYTES_PER_S = 0.002, 2e8
"""After each message, poll without sleep for this time and its duration at this rate: MPI may transfer it in pieces."""
STOP_S = 5.0


class MPITransport(Transport):
    """Messages between the ranks of ``COMM_WORLD``, in order from each sender."""

    def __init__(self) -> None:
        super().__init__()
        self.spool, self._comm = Spool(), world()
        from mpi4py import MPI

        self._mpi = MPI
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self._outgoing: list[tuple[memoryview, list[Any]]] = []
        self._incoming: list[tuple[wire.Header, wire.Buffer, list[Any]]] = []
        self._eager_until = 0.0

    def send_message(self, msg: Message) -> None:
        """Copy and start to send a message, which proceeds while this process receives, sends or stops."""
        receiver = msg.receiver
        parts = wire.encode(msg.kind, self.rank, receiver, msg.round, msg.meta, msg.tensors)
        data = memoryview(b"".join(parts))  # a copy
        send = self._comm.Isend
        requests = [send([data[: wire.Header.SIZE], self._mpi.BYTE], receiver, HEADER)]
        requests += [send([part, self._mpi.BYTE], receiver, PAYLOAD) for part in _cut(data[wire.Header.SIZE :])]
        self._outgoing.append((data, requests))
        self._expect(len(data))
        self._move()

    def stop_receive_message(self) -> None:
        """End the loop once the last messages are sent."""
        super().stop_receive_message()
        end = time.monotonic() + STOP_S
        while self._outgoing and time.monotonic() < end:
            self._move()
            self._rest(MIN_PAUSE_S)

    def _next(self, timeout: float | None) -> Message:
        end = None if timeout is None else time.monotonic() + timeout
        pause = MIN_PAUSE_S
        while True:
            moved = self._move()
            if not self.arrived.empty():
                return self.arrived.get_nowait()
            if end is not None and time.monotonic() >= end:
                raise queue.Empty
            pause = MIN_PAUSE_S if moved else min(pause * 1.2, MAX_PAUSE_S)
            self._rest(pause if end is None else max(0.0, min(pause, end - time.monotonic())))

    def _expect(self, size: int) -> None:
        self._eager_until = max(self._eager_until, time.monotonic() + EAGER_S) + size / BYTES_PER_S

    def _rest(self, seconds: float) -> None:
        if time.monotonic() < self._eager_until:
            os.sched_yield()
        else:
            time.sleep(seconds)

    def _move(self) -> bool:
        """Let MPI progress; return whether a message arrives."""
        done = self._mpi.Request.Testall
        self._outgoing = [(data, requests) for data, requests in self._outgoing if not done(requests)]
        status = self._mpi.Status()
        while self._comm.Iprobe(tag=HEADER, status=status):
            self._admit(status.Get_source())
        traffic = bool(self._incoming)
        held: set[int] = set()  # senders with an incomplete message, whose later messages must wait
        for coming in list(self._incoming):
            header, buffer, requests = coming
            if header.sender in held or not done(requests):
                held.add(header.sender)
                continue
            self._incoming.remove(coming)
            kind, (meta, tensors) = Kind(header.kind), wire.decode(buffer)
            self.arrived.put(Message(kind, header.sender, self.rank, round=header.round, meta=meta, tensors=tensors))
        return traffic

    def _admit(self, source: int) -> None:
        start = bytearray(wire.Header.SIZE)
        self._comm.Recv([start, self._mpi.BYTE], source, HEADER)
        header = wire.Header.unpack(start)
        if header.sender != source or header.receiver != self.rank:
            raise wire.WireError(f"a message from {header.sender} to {header.receiver}; it came from rank {source}")
        buffer = self.spool.buffer(header.length)
        receive = self._comm.Irecv
        requests = [receive([part, self._mpi.BYTE], source, PAYLOAD) for part in _cut(memoryview(buffer))]
        self._incoming.append((header, buffer, requests))
        self._expect(header.length)


def _cut(data: memoryview) -> list[memoryview]:
    return [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
