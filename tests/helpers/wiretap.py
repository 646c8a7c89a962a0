"""A proxy that records bytes, and a parser of these bytes as our messages."""

import contextlib
import socket
import struct
import threading

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


class Proxy:
    """Forward connections to ``target`` and keep the bytes of each side.

    While ``up`` is false nobody gets through; the first ``cuts`` connections break once ``last`` came from the target.
    """

    def __init__(self, target):
        self.target = target
        self.sent, self.received = [], []
        self.open = []
        self.up, self.last, self.cuts = True, b"", 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            inner, _ = self.listener.accept()
            host, port = self.target.split(":")
            try:
                if not self.up:
                    raise OSError("the line is down")
                outer = socket.create_connection((host, int(port)))
            except OSError:
                inner.close()
                continue
            self.open += [inner, outer]
            for source, sink, kept in ((inner, outer, self.sent), (outer, inner, self.received)):
                kept.append(bytearray())
                last = self.last if source is outer and self.cuts > 0 else b""
                threading.Thread(target=self._pass, args=(source, sink, kept[-1], last), daemon=True).start()
            self.cuts -= 1

    def cut(self):
        """Break every connection; new ones are passed on again, if ``up``."""
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    @staticmethod
    def _pass(source, sink, kept, last):
        try:
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
                if last and last in kept:
                    source.shutdown(socket.SHUT_RDWR)
                    break
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def watched(federation, *more):
    """A federation's server, and the proxy through which silos will connect to it."""
    server = federation.server(*more)
    server.says("listening on")
    proxy = Proxy(federation.address)
    federation.address = proxy.address
    return server, proxy
