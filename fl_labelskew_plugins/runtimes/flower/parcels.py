"""Our messages inside Flower's: each is an array of bytes, in the wire format of all transports."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Message
from fl_labelskew_plugins.runtimes.wire import Header, WireError

FORMAT = "fl_labelskew.wire"
RECORD = "messages"
MAX_MESSAGES = 64  # in one Flower message


def packed(message: Message) -> bytes:
    """One message as bytes."""
    fields = int(message.kind), message.sender, message.receiver, message.round
    return b"".join(wire.encode(*fields, message.meta, message.tensors))


def parcel(messages: Iterable[bytes]) -> RecordDict:
    """The content of a Flower message."""
    arrays = {f"{i:03d}": Array("uint8", (len(data),), FORMAT, data) for i, data in enumerate(messages)}
    return RecordDict({RECORD: ArrayRecord(arrays)})


def payloads(content: RecordDict) -> list[bytes]:
    """The messages in a Flower message, in order. Raises WireError."""
    arrays = content.array_records.get(RECORD, {})
    if len(arrays) > MAX_MESSAGES or any(array.stype != FORMAT for array in arrays.values()):
        raise WireError("a Flower message of another program")
    return [arrays[name].data for name in sorted(arrays)]


def unpacked(
    data: bytes, admit: Callable[[Header], None], spool: Spool, *, digest: bool
) -> tuple[Message, dict[str, Any]]:
    """Decode and check a message; return it with its entry for the audit log. Raises WireError."""
    chunks: Iterator[bytes] = streams.cut([data], streams.CHUNK)
    got = streams.received(streams.Hashing(chunks, wanted=digest), admit, spool)
    if got is None:
        raise WireError("an empty message")
    return got
