"""Streams of bytes to a server, of peers that are no silos of this package."""

import contextlib
import threading

import grpc

from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.silo.keys import Files
from fl_labelskew_plugins.runtimes.silo.streams import METHOD, SERVICE, cut

RPC = f"/{SERVICE}/{METHOD}"


def connect(address, tls):
    """A channel with its own connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate), options)


def raw(address, chunks=(), *, tls=None, hold=None, path=RPC):
    """gRPC's status and details for a stream of these bytes."""

    def requests():
        yield from chunks
        if hold is not None:
            hold.wait(60)

    with connect(address, tls) as channel:
        try:
            for _ in channel.stream_stream(path)(requests()):
                pass
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""


@contextlib.contextmanager
def unread(address, chunks, *, tls=None):
    """A stream of these bytes that reads nothing, and is cancelled at the end."""
    over = threading.Event()

    def requests():
        yield from chunks
        over.wait(60)

    with connect(address, tls) as channel:
        call = channel.stream_stream(RPC)(requests())
        yield
        call.cancel()
        over.set()


def chunks(kind, sender=1, receiver=0, meta=None, **tensors):
    """The bytes of one message."""
    return cut(wire.encode(kind, sender, receiver, 0, meta or {}, tensors), 2**20)


def files(certificates, name, ca=None):
    """As :func:`certs.read`, for files that do not belong together."""
    read = [(certificates / f"{name}.{ending}").read_bytes() for ending in ("pem", "key")]
    return Files(name, ((ca or certificates) / "ca.pem").read_bytes(), *read)
