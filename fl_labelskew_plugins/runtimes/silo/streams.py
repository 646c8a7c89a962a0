"""What both ends of a silo's gRPC stream share: its options, its limits, and messages on their way in and out.

Only the server listens, see :mod:`.listening`; silos connect, see :mod:`.connecting`, each with one long-lived stream.
Every message is cut into chunks, so that its size is bounded by the receiver's ``limits`` alone. With TLS a silo is who
its certificate says; without, it is who it claims to be, and only this machine can connect. What a peer sends is
checked before room is made for it, and never unpickled.
"""

from __future__ import annotations

import hashlib
import mmap
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.silo import keys
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message, reason
from fl_labelskew_plugins.runtimes.wire import Header, WireError
from fl_labelskew_plugins.tensors import PIECE, OnDisk

SERVICE, METHOD = "fl_labelskew.Silos", "Connect"
CHUNK = 2**20
"""Bytes of a gRPC message; smaller ones cost time, larger ones win none."""
QUEUED = 8
"""Messages that wait for one peer to take them; more than that, and it is treated as gone."""
PATIENCE_S = 2.0
"""How long the end waits for a peer that takes nothing of what is left to send."""
LIMIT = 2**20
TAKEN = "labelskew-taken"
"""The initial metadata with which the server says that it has taken a HELLO."""
LOOKED = "labelskew-looked"
"""With which a silo says that it has opened another connection before, to look at the server's certificate."""

OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK + 4096),
    ("grpc.max_send_message_length", CHUNK + 4096),
    # A peer that says nothing is asked after 20 s. If its machine is gone, the kernel knows after 10 s more. Its
    # process has gRPC's 60 s to answer: on a slow line the answer waits behind megabytes of weights.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class CutShortError(WireError):
    """A message whose stream ended before it did: a lost connection, more often than a wrong peer."""


class RefusedError(WireError):
    """A peer that is turned away; the text is a whole sentence's predicate.

    It gets a status of gRPC's, by its name ``code``, and tries again only after some of them.
    """

    def __init__(self, reason: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(reason)
        self.code = code


def predicate(error: WireError) -> str:
    """What the peer did that this is the error of."""
    return str(error) if isinstance(error, RefusedError) else f"sent {error}"


def checked(address: str, tls: keys.Files | None) -> tuple[str, int]:
    """Host and port; raises LabelSkewError where others could listen in."""
    try:
        host, port = addresses.split(address)
    except ValueError as error:
        raise LabelSkewError(str(error)) from None
    if tls is None and not addresses.loopback(address):
        raise LabelSkewError(
            f"{address} leaves this machine, and there are no certificates; use comm_args.certs with a folder of "
            "`labelskew certs new`, or an address such as 127.0.0.1:8890"
        )
    return host, port


def encoded(msg: Message) -> list[bytes | memoryview]:
    """A message's bytes."""
    return wire.encode(int(msg.kind), msg.sender, msg.receiver, msg.round, msg.meta, msg.tensors)


def decoded(header: Header, payload: wire.Buffer) -> Message:
    """The message, whose texts are fit to be shown from here on: the names of its tensors are so, or it is refused."""
    meta, tensors = wire.decode(payload)
    kind, meta = Kind(header.kind), wire.cleaned(meta)
    return Message(kind, header.sender, header.receiver, round=header.round, meta=meta, tensors=tensors)


def cut(parts: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of ``size``, the last one shorter."""
    pending: list[memoryview] = []
    room = size
    for part in parts:
        view = memoryview(part)
        while view:
            pending.append(view[:room])
            view = view[room:]
            room -= len(pending[-1])
            if not room:
                yield b"".join(pending)
                pending, room = [], size
    if pending:
        yield b"".join(pending)


class Hashing:
    """Chunks on their way through, and the SHA-256 of the message that they make; each message has its own chunks."""

    def __init__(self, chunks: Iterable[bytes], *, wanted: bool = True) -> None:
        self._chunks, self._wanted, self._state = iter(chunks), wanted, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = next(self._chunks)
        if self._wanted:
            self._state.update(chunk)
        return chunk

    def digest(self) -> str | None:
        """SHA-256 of all bytes since this was called last; None if it is not wanted."""
        state, self._state = self._state, hashlib.sha256()
        return state.hexdigest() if self._wanted else None


def assemble(
    chunks: Iterator[bytes], admit: Callable[[Header], None], spool: Spool
) -> tuple[Header, bytearray | mmap.mmap] | None:
    """The next message of a stream of chunks, each message in chunks of its own; None at the stream's end.

    ``admit`` raises for a header whose message is not wanted, before the spool makes room for it.

    Raises:
        WireError: the chunks are no message; CutShortError where they end before it does.
        OSError: there is no room for the payload.
    """
    first = next(chunks, None)
    if first is None:
        return None
    header = Header.unpack(first)
    admit(header)
    buffer = spool.buffer(header.length)
    rest = memoryview(first)[Header.SIZE :]
    at = resident = 0
    with memoryview(buffer) as view:
        while True:
            if at + len(rest) > header.length:
                raise WireError("more bytes than its header tells")
            view[at : at + len(rest)] = rest
            at += len(rest)
            resident += len(rest)
            if isinstance(buffer, OnDisk) and (resident > PIECE or at == header.length):
                buffer.evict()
                resident = 0
            if at == header.length:
                return header, buffer
            chunk = next(chunks, None)
            if chunk is None:
                raise CutShortError("fewer bytes than its header tells")
            if not chunk:
                raise WireError("a chunk of no bytes")
            rest = memoryview(chunk)


def received(stream: Hashing, admit: Callable[[Header], None], spool: Spool) -> tuple[Message, dict[str, Any]] | None:
    """The next message of a stream, and what the audit log has of it; None at the stream's end.

    Raises:
        WireError, OSError: as :func:`assemble` and :func:`.wire.decode`.
    """
    got = assemble(stream, admit, spool)
    if got is None:
        return None
    header, digest, arrived = got[0], stream.digest(), decoded(*got)
    return arrived, _described(header, Header.SIZE + header.length, digest, reason(arrived))


def bound(header: Header, limits: Mapping[Kind, int]) -> None:
    """Raise RefusedError for a message of more bytes than its kind may have."""
    kind = Kind(header.kind)
    if header.length > limits[kind]:
        text = f"sent {kind.name} of {header.length} bytes; {limits[kind]} are expected at most"
        raise RefusedError(text, "RESOURCE_EXHAUSTED")


def _described(header: Header, size: int, digest: str | None, why: str | None) -> dict[str, Any]:
    """A message as the audit log has it."""
    round = header.round if header.round >= 0 else None
    return {"kind": Kind(header.kind).name, "round": round, "bytes": size, "sha256": digest, "why": why}


class Outbox:
    """Messages on their way to one peer; copied out of the tensors' memory chunk by chunk, as the peer takes them.

    ``receiver`` gives rank and more of the peer, as the audit log has it once something is sent.
    """

    def __init__(self, audit: Audit, receiver: Callable[[], Mapping[str, Any]]) -> None:
        self._audit, self._receiver = audit, receiver
        self._queue: queue.SimpleQueue[tuple[list[bytes | memoryview], str | None] | None] = queue.SimpleQueue()
        self._dropping = False
        self.moved = 0
        """Chunks that the peer has taken so far."""

    def put(self, msg: Message) -> bool:
        """Queue a message; False if too many wait already."""
        if self._queue.qsize() >= QUEUED:
            return False
        self._queue.put((encoded(msg), reason(msg)))
        return True

    def close(self, *, flush: bool) -> None:
        """End the stream, after what is queued or at once."""
        self._dropping |= not flush
        self._queue.put(None)

    def chunks(self) -> Iterator[bytes]:
        """What gRPC sends; waits for messages until :meth:`close`."""
        while (queued := self._queue.get()) is not None:
            yield from self._chunks(*queued)
            del queued  # or the last message would be kept until the next

    def _chunks(self, parts: list[bytes | memoryview], why: str | None) -> Iterator[bytes]:
        header, hashing = Header.unpack(parts[0]), Hashing(cut(parts, CHUNK), wanted=self._audit.digests)
        size, sent = Header.SIZE + header.length, 0
        try:
            for chunk in hashing:
                if self._dropping:
                    return
                sent += len(chunk)
                if sent == size:  # what follows a yield may never be reached
                    self._audit.note("sent", **self._receiver(), **_described(header, size, hashing.digest(), why))
                yield chunk
                self.moved += 1
        finally:
            if 0 < sent < size:
                self._audit.note("sent in part", **self._receiver(), **_described(header, sent, None, why))


def wait_while_moving(ended: threading.Event, outboxes: Iterable[Outbox]) -> None:
    """Wait for the end, as long as peers take what is left to send."""
    outboxes = list(outboxes)
    before = -1
    while before != (moved := sum(outbox.moved for outbox in outboxes)):
        before = moved
        if ended.wait(PATIENCE_S):
            return
