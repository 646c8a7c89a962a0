"""Shared parts of both ends of a silo's gRPC stream.

Messages are cut into chunks, so that only the receiver's ``limits`` bound their size, before memory is allocated.
"""

import hashlib
import mmap
import queue
import threading
import time
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
CHUNK = 2**20  # bytes of a gRPC message; smaller ones are slower
QUEUED = 8  # messages for one peer
PATIENCE_S = 2.0  # to wait at the end for a peer that accepts no more chunks
LAST_S = 600.0  # to wait at the end for peers that accept chunks slowly
LIMIT = 2**20
TAKEN = "labelskew-taken"  # the server's metadata after an accepted HELLO
LOOKED = "labelskew-looked"  # a silo's metadata after Trust.look

OPTIONS = [
    ("grpc.max_receive_message_length", CHUNK + 4096),
    ("grpc.max_send_message_length", CHUNK + 4096),
    # a silent peer's kernel has 10 s to answer, and its process gRPC's 60 s
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class CutShortError(WireError):
    """The stream ended within a message."""


class RefusedError(WireError):
    """A refusal, as a predicate such as "sent ..."; the gRPC ``code`` decides whether the peer reconnects."""

    def __init__(self, reason: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(reason)
        self.code = code


def predicate(error: WireError) -> str:
    """The error as a predicate about the peer."""
    return str(error) if isinstance(error, RefusedError) else f"sent {error}"


def checked(address: str, tls: keys.Files | None) -> tuple[str, int]:
    """Host and port. Raises LabelSkewError for an invalid address, or one that needs certificates."""
    try:
        host, port = addresses.split(address)
    except ValueError as error:
        raise LabelSkewError(str(error)) from None
    if tls is None and not addresses.loopback(address):
        what = f"{address} can be reached from other machines, and there are no certificates"
        use = "comm_args.certs with a folder of `labelskew certs new`, or an address such as 127.0.0.1:8890"
        raise LabelSkewError(f"{what}; use {use}")
    return host, port


def decoded(header: Header, payload: wire.Buffer) -> Message:
    """Decode a message."""
    meta, tensors = wire.decode(payload)
    kind, meta = Kind(header.kind), wire.cleaned(meta)
    return Message(kind, header.sender, header.receiver, round=header.round, meta=meta, tensors=tensors)


def cut(parts: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of ``size``."""
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
    """Chunks with the SHA-256 of each message."""

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
        """SHA-256 of the bytes since the last call, if ``wanted``."""
        state, self._state = self._state, hashlib.sha256()
        return state.hexdigest() if self._wanted else None


def assemble(
    chunks: Iterator[bytes], admit: Callable[[Header], None], spool: Spool
) -> tuple[Header, bytearray | mmap.mmap] | None:
    """The next message of a stream; None at its end. ``admit`` raises for an unwanted header.

    Raises WireError for invalid chunks, CutShortError for an incomplete message, and OSError if the disk is full.
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
                raise WireError("more bytes than its header states")
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
                raise CutShortError("fewer bytes than its header states")
            if not chunk:
                raise WireError("a chunk of no bytes")
            rest = memoryview(chunk)


def received(
    stream: Hashing,
    admit: Callable[[Header], None],
    spool: Spool,
    decode: Callable[[Header, wire.Buffer], Message] = decoded,
) -> tuple[Message, dict[str, Any]] | None:
    """As :func:`assemble`, with the message's entry for the audit log."""
    got = assemble(stream, admit, spool)
    if got is None:
        return None
    header, digest, arrived = got[0], stream.digest(), decode(*got)
    return arrived, _described(header, Header.SIZE + header.length, digest, reason(arrived))


def bound(header: Header, limits: Mapping[Kind, int]) -> None:
    """Raise RefusedError for a message that is too large."""
    kind = Kind(header.kind)
    if header.length > limits[kind]:
        text = f"sent {kind.name} of {header.length} bytes; at most {limits[kind]} are expected"
        raise RefusedError(text, "RESOURCE_EXHAUSTED")


def _described(header: Header, size: int, digest: str | None, cause: str | None) -> dict[str, Any]:
    round = None if header.round == -1 else header.round
    return {"kind": Kind(header.kind).name, "round": round, "bytes": size, "sha256": digest, "reason": cause}


class Outbox:
    """Queue of messages to one peer; ``receiver``: returns facts for the audit log."""

    def __init__(self, audit: Audit, receiver: Callable[[], Mapping[str, Any]]) -> None:
        self._audit, self._receiver = audit, receiver
        self._queue: queue.SimpleQueue[tuple[list[bytes | memoryview], str | None] | None] = queue.SimpleQueue()
        self._dropping = False
        self.moved = 0  # chunks that the peer has accepted

    def put(self, msg: Message) -> bool:
        """Queue a message; False if there are too many."""
        if self._queue.qsize() >= QUEUED:
            return False
        parts = wire.encode(int(msg.kind), msg.sender, msg.receiver, msg.round, msg.meta, msg.tensors)
        self._queue.put((parts, reason(msg)))
        return True

    def close(self, *, flush: bool) -> None:
        """End the stream; ``flush``: after queued messages."""
        self._dropping |= not flush
        self._queue.put(None)

    def chunks(self) -> Iterator[bytes]:
        """Chunks for gRPC, until :meth:`close`."""
        while (queued := self._queue.get()) is not None:
            yield from self._chunks(*queued)
            del queued  # free the memory before the next message

    def _chunks(self, parts: list[bytes | memoryview], cause: str | None) -> Iterator[bytes]:
        header, hashing = Header.unpack(parts[0]), Hashing(cut(parts, CHUNK), wanted=self._audit.digests)
        size, sent = Header.SIZE + header.length, 0
        try:
            for chunk in hashing:
                if self._dropping:
                    return
                sent += len(chunk)
                if sent == size:  # code after the last yield may never run
                    self._audit.note("sent", **self._receiver(), **_described(header, size, hashing.digest(), cause))
                yield chunk
                self.moved += 1
        finally:
            if 0 < sent < size:
                self._audit.note("sent in part", **self._receiver(), **_described(header, sent, None, cause))


def wait_while_moving(ended: threading.Event, outboxes: Iterable[Outbox]) -> None:
    """Wait for ``ended`` while peers accept chunks, at most :data:`LAST_S`."""
    outboxes, until = list(outboxes), time.monotonic() + LAST_S
    before = -1
    while before != (moved := sum(outbox.moved for outbox in outboxes)) and time.monotonic() < until:
        before = moved
        if ended.wait(PATIENCE_S):
            return
