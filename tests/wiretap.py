"""Reads the bytes that a proxy kept as messages of ours, for all tests of what travels."""

import struct

from fl_labelskew_plugins import wire
from fl_labelskew_plugins.runtimes.transport import Kind


def grpc_messages(stream, *, client):
    """The messages of a connection's HTTP/2 DATA frames, joined: gRPC prefixes each with a flag and its length."""
    at, data = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") if client else 0, b""
    while at + 9 <= len(stream):
        length, kind, flags = int.from_bytes(stream[at : at + 3], "big"), stream[at + 3], stream[at + 4]
        if kind == 0:
            assert not flags & 8, "padding"
            data += stream[at + 9 : at + 9 + length]
        at += 9 + length
    chunks, at = [], 0
    while at < len(data):
        compressed, length = struct.unpack_from(">BI", data, at)
        assert not compressed
        chunks.append(data[at + 5 : at + 5 + length])
        at += 5 + length
    return b"".join(chunks)


def messages(stream, *, client=True):
    """Header, meta and tensors of each of our messages."""
    data, at, found = bytearray(grpc_messages(bytes(stream), client=client)), 0, []
    while at < len(data):
        header = wire.Header.unpack(data[at : at + wire.Header.SIZE])
        at += wire.Header.SIZE
        found.append((Kind(header.kind), header, *wire.decode(data[at : at + header.length])))
        at += header.length
    return found
