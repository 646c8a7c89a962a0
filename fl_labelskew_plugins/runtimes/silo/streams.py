"""What both ends of a silo's gRPC stream share: its options, its limits, and messages on their way in and out.

Only the server listens, see :mod:`.listening`; silos connect, see :mod:`.connecting`, each with one long-lived stream.
Every message is cut into chunks, so that its size is bounded by the receiver's ``limits`` alone. With TLS a silo is who
its certificate says; without, it is who it claims to be, and only this machine can connect. What a peer sends is
checked before room is made for it, and never unpickled.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fl_labelskew_registry import LabelSkewError
from torch import Tensor

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.chunks import Hashing, Sha256, assemble, cut, hashed, tensors_hashed
from fl_labelskew_plugins.runtimes.silo import names
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message, reason
from fl_labelskew_plugins.runtimes.wire import Header, WireError

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


def checked(address: str, tls: names.Files | None) -> tuple[str, int]:
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


def encoded(msg: Message, tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """A message's bytes, with these tensors."""
    kind, sender, receiver = int(msg.kind), msg.sender, msg.receiver
    return wire.encode(kind, sender, receiver, msg.round, msg.meta, tensors)


def decoded(header: Header, payload: wire.Buffer) -> Message:
    """The message, whose texts are fit to be shown from here on: the names of its tensors are so, or it is refused."""
    meta, tensors = wire.decode(payload)
    kind, meta = Kind(header.kind), wire.cleaned(meta)
    return Message(kind, header.sender, header.receiver, round=header.round, meta=meta, tensors=tensors)


def received(stream: Hashing, admit: Callable[[Header], None], spool: Spool) -> tuple[Message, dict[str, Any]] | None:
    """The next message of a stream, and what the audit log has of it; None at the stream's end.

    Raises:
        WireError, OSError: as :func:`.chunks.assemble` and :func:`.wire.decode`.
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
        self._queue: queue.SimpleQueue[tuple[list[bytes | memoryview], Sha256, str | None] | None] = queue.SimpleQueue()
        self._dropping = False
        self.moved = 0
        """Chunks that the peer has taken so far."""

    def put(self, parts: list[bytes | memoryview], why: str | None = None, tensors: Sha256 | None = None) -> bool:
        """Queue a message, the reason that is in it, and its tensors' hash where it is known.

        Returns:
            False where too many wait already.
        """
        if self._queue.qsize() >= QUEUED:
            return False
        self._queue.put((parts, tensors, why))
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

    def _chunks(self, parts: list[bytes | memoryview], tensors: Sha256 | None, why: str | None) -> Iterator[bytes]:
        header, digest = Header.unpack(parts[0]), hashed(parts, tensors) if self._audit.digests else None
        size, sent = Header.SIZE + header.length, 0
        try:
            for chunk in cut(parts, CHUNK):
                if self._dropping:
                    return
                sent += len(chunk)
                if sent == size:  # what follows a yield may never be reached
                    self._audit.note("sent", **self._receiver(), **_described(header, size, digest, why))
                yield chunk
                self.moved += 1
        finally:
            if 0 < sent < size:
                self._audit.note("sent in part", **self._receiver(), **_described(header, sent, None, why))


class Broadcast:
    """Messages of one sender to many: copies from a GPU, and the tensors' hash, are made once for all of them."""

    def __init__(self, *, digests: bool) -> None:
        self._digests = digests
        self._last: list[tuple[str, weakref.ref[Tensor], int]] = []
        """Which tensors were sent last."""
        self._copies: Mapping[str, Tensor] = {}
        self._state: Sha256 = None

    def prepared(self, msg: Message) -> tuple[list[bytes | memoryview], str | None, Sha256 | None]:
        """A message for :meth:`.Outbox.put`."""
        tensors = msg.tensors
        if not tensors:
            return encoded(msg, tensors), reason(msg), None
        same = len(tensors) == len(self._last) and all(
            name == before and tensor._version == version and sent() is tensor
            for (name, tensor), (before, sent, version) in zip(tensors.items(), self._last, strict=True)
        )
        copies = self._copies
        if not same:
            copies = {} if all(map(wire.dense, tensors.values())) else wire.plain(tensors)
        parts = encoded(msg, copies or tensors)
        if not same:
            self._copies, self._state = copies, tensors_hashed(parts) if self._digests else None
            # no more of them than that: what is sent would be kept in memory until the next broadcast
            self._last = [(name, weakref.ref(tensor), tensor._version) for name, tensor in tensors.items()]
        return parts, reason(msg), self._state


def wait_while_moving(ended: threading.Event, outboxes: Iterable[Outbox]) -> None:
    """Wait for the end, as long as peers take what is left to send."""
    outboxes = list(outboxes)
    before = -1
    while before != (moved := sum(outbox.moved for outbox in outboxes)):
        before = moved
        if ended.wait(PATIENCE_S):
            return
