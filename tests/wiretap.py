"""Reads the bytes that a proxy kept as messages of ours, for all tests of what travels."""

import struct

from http2 import frames

from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.transport import Kind


def grpc_messages(stream, *, client, whole=False):
    """The messages of a connection's HTTP/2 DATA frames, joined: gRPC prefixes each with a flag and its length."""
    sent = [frame for frame in frames(stream, client=client, whole=whole) if frame.kind == "DATA"]
    assert not any(frame.flags & 8 for frame in sent), "padding"
    data = b"".join(frame.payload for frame in sent)
    chunks, at = [], 0
    while at < len(data):
        compressed, length = struct.unpack_from(">BI", data, at)
        assert not compressed
        chunks.append(data[at + 5 : at + 5 + length])
        at += 5 + length
    assert at == len(data) or not whole
    return b"".join(chunks)


def payloads(stream, *, client, whole=False):
    """Header and payload of each of our messages."""
    data, at, found = bytearray(grpc_messages(bytes(stream), client=client, whole=whole)), 0, []
    while at < len(data):
        header = wire.Header.unpack(data[at : at + wire.Header.SIZE])
        at += wire.Header.SIZE
        found.append((header, data[at : at + header.length]))
        at += header.length
    return found


def messages(stream, *, client=True):
    """Header, meta and tensors of each of our messages."""
    return [(Kind(header.kind), header, *wire.decode(payload)) for header, payload in payloads(stream, client=client)]
