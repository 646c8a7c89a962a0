"""The port of a server: a gRPC server for the streams of silos, and what it shows to who connects."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes.silo import door, streams
from fl_labelskew_plugins.runtimes.silo.names import Files

SILENT = 2
"""Streams that one certificate may hold before HELLO; a further one takes the place of the oldest."""


class DaemonThreads(Executor):
    """A thread for each call, none of which keeps a failed process alive; gRPC bounds their number."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start ``call``."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
                raise

        threading.Thread(target=run, name="silo-stream", daemon=True).start()
        return future


def server(stream: Callable[[Iterator[bytes], Any], Iterator[bytes]], *, silos: int, places: int) -> Any:
    """A gRPC server.

    Args:
        stream: what a silo's stream is handed to, with gRPC's context.
        silos: their number.
        places: connections at a time, see :func:`.door.places`.
    """
    grpc = streams.package()
    made = grpc.server(
        DaemonThreads(),
        options=[
            *streams.OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            # Strangers have no stream, or soon none: they are gone after 10 s, or earlier; see Door.
            ("grpc.max_connection_idle_ms", 10_000),
            ("grpc.server_handshake_timeout_ms", int(1000 * door.HANDSHAKE_S)),
            ("grpc.max_concurrent_streams", 2),
            ("grpc.max_allowed_incoming_connections", places),
        ],
        maximum_concurrent_rpcs=(2 + SILENT) * silos + 256,  # a thread each; who has more than a share loses them
    )
    handler = grpc.stream_stream_rpc_method_handler(stream)
    service = grpc.method_handlers_generic_handler(streams.SERVICE, {streams.METHOD: handler})
    made.add_generic_rpc_handlers((service,))
    return made


def listen(server: Any, host: str, port: int, tls: Files | None, knock: Callable[[], None]) -> str:
    """Have a server listen.

    Args:
        server: gRPC's.
        host: a name or address of this machine.
        port: 0 takes a free one.
        tls: what is shown to silos, which have to show a certificate of the same authority.
        knock: called for each connection whose handshake begins.

    Returns:
        The address.

    Raises:
        LabelSkewError: it cannot be listened at; why not.
    """
    address = addresses.join(host, port)
    try:
        if tls is None:
            return addresses.join(host, server.add_insecure_port(address))
        grpc = streams.package()
        configuration = grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.ca)
        credentials = grpc.dynamic_ssl_server_credentials(configuration, knock, require_client_authentication=True)
        return addresses.join(host, server.add_secure_port(address, credentials))
    except RuntimeError:  # gRPC does not say why
        why, right = "it cannot be bound", "a free port of this machine would be right"
        try:
            passive = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, sockaddr = passive[0]
            with socket.socket(family) as probe:
                probe.bind(sockaddr)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                right = (
                    "an address of this machine would be right, such as comm_args.listen_address: "
                    f"0.0.0.0:{port} where silos reach it through a router"
                )
        raise LabelSkewError(f"cannot listen at {address}: {why}; {right}") from None
