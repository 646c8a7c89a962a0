"""The server's end of the network."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import mistake

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.recipe import addresses, compatibility
from fl_labelskew_plugins.runtimes.silo import connection_limit, keys, streams
from fl_labelskew_plugins.runtimes.silo.connection_limit import ConnectionLimit
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message, Transport
from fl_labelskew_plugins.runtimes.wire import Buffer, Header, WireError

if TYPE_CHECKING:
    from fl_labelskew_plugins.runtimes.silo.certs import Revocations

UNREAD = 4  # queued messages of a silo, over all its connections
LOOK_S = 0.2  # between checks of a connection that waits
HELLO_S = 10.0
SILENT = 2  # streams of one certificate before HELLO; one more replaces the oldest
FROM_SILOS = (
    *(Kind.HELLO, Kind.OPENING, Kind.UPLOAD, Kind.TESTED, Kind.FAILED, Kind.FINISH, Kind.SURVEY),
    *(Kind.KEYS, Kind.SHARES, Kind.CHECKED, Kind.MASKED, Kind.INCLUDED, Kind.REVEALED),
)


class DaemonThreads(Executor):
    """One daemon thread per call, so that none keeps a failed process alive."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call in its own thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
                raise

        threading.Thread(target=run, name="silo-stream", daemon=True).start()
        return future


class _Connection:
    """A silo's stream; ``rank``: 0 until the certificate or HELLO gives one."""

    def __init__(self, context: Any, rank: int, audit: Audit) -> None:
        self.context = context
        self.rank = rank
        self.certificate = b"".join(context.auth_context().get("x509_pem_cert", ()))
        self.known = {"peer": addresses.join(*addresses.of_peer(context.peer()))}
        if self.certificate:
            self.known["fingerprint"] = keys.fingerprint(self.certificate)
        self.outbox = streams.Outbox(audit, lambda: {"rank": self.rank, **self.known})
        self.greeted = self.closed = self.ended = self.receiving = False
        self.peer = ""  # for ConnectionLimit, once the certificate is checked

    def close(self, code: Any, reason: str) -> None:
        """End the stream with a reason for the peer."""
        self.closed = True
        self.context.set_code(code)
        self.context.set_details(reason)
        self.outbox.close(flush=False)
        # cancel later: a peer that reads nothing never receives the reason
        _later(streams.PATIENCE_S, self.context.cancel)


class ServerTransport(Transport):
    """The server's end of the network; it listens at once.

    It queues LEFT at the end of a connection. A refused message closes its connection, and REFUSED is queued with the
    silo's rank or -1. Messages to a silo use the connection of the last HELLO that :meth:`receive` has returned.

    ``address``: ``host:port``; port 0 selects a free one. Raises LabelSkewError for an unusable address.
    """

    def __init__(
        self,
        address: str,
        *,
        silos: int,
        tls: keys.Files | None = None,
        spool: Spool | None = None,
        audit: Audit | None = None,
        revoked: Revocations | None = None,
    ) -> None:
        super().__init__()
        self.audit = audit or Audit()
        self.revoked, self._listed = revoked, 0
        host, port = streams.checked(address, tls)
        self._grpc = compatibility.grpc()
        self.silos = silos
        self.limits = dict.fromkeys(FROM_SILOS, streams.LIMIT)
        self.tls = tls
        self._spool = spool or Spool()
        self._lock = threading.Lock()
        self._connections: dict[_Connection, None] = {}  # oldest first
        self._slots = {rank: threading.Semaphore(UNREAD) for rank in range(1, silos + 1)}
        self._decoding = {rank: threading.Lock() for rank in self._slots}
        # held while a message arrives, because its space is reserved
        self._receiving = {rank: threading.Lock() for rank in self._slots}
        self._present: dict[int, _Connection] = {}
        self._open: dict[int, _Connection] = {}
        self._shown: dict[int, bytes] = {}
        places = connection_limit.places()
        self._limit = ConnectionLimit(places, self._report_failed, tls=tls is not None)
        self._server = _server(self._stream, silos, places)
        self.address = _listen(self._server, host, port, tls, self._limit.connected)
        self._server.start()
        self._limit.open(addresses.split(self.address)[1])

    def send_message(self, msg: Message) -> None:
        """Queue a message, with tensors that must not change meanwhile."""
        connection = self._open.get(msg.receiver)
        if connection is None or connection.closed:
            return
        if not connection.outbox.put(msg):
            self._refuse(connection, "does not receive the messages sent to it", "UNAVAILABLE")

    def stop_receive_message(self) -> None:
        """Send queued messages, and close all connections."""
        super().stop_receive_message()
        self._limit.close()
        ended = self._server.stop(3600)
        with self._lock:
            outboxes = [connection.outbox for connection in self._connections]
        for outbox in outboxes:
            outbox.close(flush=True)
        streams.wait_while_moving(ended, outboxes)
        self._server.stop(0).wait(streams.PATIENCE_S)

    def _end_revoked(self) -> None:
        if self.revoked is None or (number := self.revoked.look().number) == self._listed:
            return
        self._listed = number
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if reason := self.revoked.barred(connection.certificate):
                self._refuse(connection, reason, "PERMISSION_DENIED")
        with self._lock:
            for rank, shown in self._shown.items():
                if self.revoked.barred(shown):
                    self.arrived.put(Message(Kind.LEFT, rank, 0, meta={"revoked": True}))

    def _next(self, timeout: float | None) -> Message:
        self._end_revoked()
        arrived = super()._next(timeout)
        connection: _Connection | None = arrived.connection
        if connection is not None:
            if arrived.kind == Kind.HELLO:
                self._open[connection.rank] = connection
            if arrived.kind == Kind.LEFT:
                self._open.pop(connection.rank, None)
            else:
                self._slots[arrived.sender].release()
        return arrived

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        rank, refusal = 0, ""
        if self.tls is not None:
            name = b"".join(context.auth_context().get("x509_common_name", ())).decode(errors="replace")
            rank = keys.rank_of(name)
            if not 1 <= rank <= self.silos:
                rank = 0
                refusal = f"its certificate is not one of silo-1 to silo-{self.silos}"
        connection = _Connection(context, rank, self.audit)
        with self._lock:
            self._connections[connection] = None
            silent = [c for c in self._connections if c.rank == rank and not (c.greeted or c.closed)]
        # after the connection was added, so that a newer list also finds it
        if not refusal and self.revoked is not None:
            refusal = self.revoked.barred(connection.certificate) or self.revoked.expired(connection.certificate)
            silent = [] if refusal else silent
        looked = any(key == streams.LOOKED for key, _ in context.invocation_metadata())
        self._limit.begin_stream(context.peer(), member=not refusal, looked=looked)
        if not refusal:
            connection.peer = context.peer()
        for oldest in silent[: -SILENT if rank else -2 * self.silos - 16]:
            others = "has opened other connections with this certificate without sending HELLO"
            text = others if rank else "exceeds the limit"
            self._refuse(oldest, text, "RESOURCE_EXHAUSTED")
        if not context.add_callback(lambda: self._ended(connection)):
            self._ended(connection)
            return
        if refusal:
            self._refuse(connection, refusal, "PERMISSION_DENIED")
        else:
            arguments = connection, requests
            # this thread sends
            threading.Thread(target=self._read_all, args=arguments, name="silo-reader", daemon=True).start()
        yield from connection.outbox.chunks()

    def _read_all(self, connection: _Connection, requests: Iterator[bytes]) -> None:
        timer = _later(HELLO_S, partial(self._refuse_silent, connection))
        try:
            hashing = streams.Hashing(requests, wanted=self.audit.digests)
            while self._read(connection, hashing, timer):
                pass
        except (streams.CutShortError, self._grpc.RpcError) as error:  # the connection is lost, which is queued as LEFT
            error.__traceback__ = None  # it keeps the buffer of an incomplete message
        except WireError as error:
            self._refuse(connection, streams.predicate(error), getattr(error, "code", "INVALID_ARGUMENT"))
        except OSError as error:
            self._refuse(connection, f"sent a message that does not fit on the disk: {error.strerror}", "UNAVAILABLE")
        finally:
            timer.cancel()
            connection.outbox.close(flush=False)
            self._received(connection)  # only now is its buffer free

    def _received(self, connection: _Connection) -> None:
        if connection.receiving:
            connection.receiving = False
            self._receiving[connection.rank].release()

    def _read(self, connection: _Connection, requests: streams.Hashing, timer: threading.Timer) -> bool:
        admit, decode = partial(self._admit, connection), partial(self._decoded, connection)
        got = streams.received(requests, admit, self._spool, decode)
        self._received(connection)
        if got is None:
            return False
        arrived, facts = got
        self.audit.note("received", rank=arrived.sender, **connection.known, **facts)
        arrived.connection = connection
        timer.cancel()
        slots = self._slots[arrived.sender]
        while not slots.acquire(timeout=LOOK_S):
            if connection.closed or connection.ended:
                return False
        with self._lock, contextlib.ExitStack() as undo:
            undo.callback(slots.release)
            if connection.closed or connection.ended:
                return False
            if not connection.greeted:
                self._greet(connection, arrived.sender)
            self.arrived.put(arrived)
            undo.pop_all()
        return True

    def _decoded(self, connection: _Connection, header: Header, payload: Buffer) -> Message:
        with self._decoding[header.sender]:  # HELLO, too: decoding blocks other threads
            if connection.closed or connection.ended:
                raise streams.CutShortError("closed meanwhile")
            return streams.decoded(header, payload)

    def _admit(self, connection: _Connection, header: Header) -> None:
        if header.kind not in FROM_SILOS:
            raise WireError(f"a message of type {header.kind}, which no silo sends")
        kind = Kind(header.kind)
        if (kind == Kind.HELLO) == connection.greeted:
            raise WireError("a second HELLO" if connection.greeted else f"{kind.name} before HELLO")
        rank = connection.rank or header.sender
        if not 1 <= rank <= self.silos:
            text = f"claims to be silo {rank}; 1 to {self.silos} are expected"
            raise streams.RefusedError(text, "PERMISSION_DENIED")
        if header.sender != rank:
            raise streams.RefusedError(f"claims to be silo {header.sender}", "PERMISSION_DENIED")
        if header.receiver != 0:
            raise WireError(f"a message to {header.receiver}, not to the server")
        streams.bound(header, self.limits)
        while connection.greeted and not connection.receiving:  # one message per silo, over all its connections
            if connection.closed or connection.ended:
                raise streams.CutShortError("closed meanwhile")
            connection.receiving = self._receiving[rank].acquire(timeout=LOOK_S)

    def _greet(self, connection: _Connection, rank: int) -> None:
        """Accept a HELLO; call with the lock held."""
        old = self._present.get(rank)
        if old is not None and self.tls is None:
            # without a certificate, a silo cannot replace another connection
            raise streams.RefusedError(f"claims to be silo {rank}, which is already connected", "ALREADY_EXISTS")
        connection.context.send_initial_metadata(((streams.TAKEN, "1"),))
        connection.rank, connection.greeted = rank, True
        if old is not None:
            self._leave(old)
            old.close(self._grpc.StatusCode.ABORTED, "another process with this certificate has connected")
        self._present[rank], self._shown[rank] = connection, connection.certificate
        self.audit.note("connected", rank=rank, **connection.known)

    def _leave(self, connection: _Connection) -> None:
        """Queue the end of a connection, once; call with the lock held."""
        if self._present.get(connection.rank) is connection:
            del self._present[connection.rank]
            self.arrived.put(Message(Kind.LEFT, connection.rank, 0, connection=connection))
            self.audit.note("left", rank=connection.rank, **connection.known)

    def _ended(self, connection: _Connection) -> None:
        with self._lock:
            connection.ended = True
            self._connections.pop(connection, None)
            self._leave(connection)
        if connection.peer:
            self._limit.end_stream(connection.peer)
        connection.outbox.close(flush=False)

    def _report_failed(self, count: int) -> None:
        shown = "" if self.tls is None else "showed no certificate of this federation's authority, or "
        meta = {"reason": f"{shown}opened no stream", "times": count}
        self.audit.note("refused", reason=meta["reason"], times=count)
        self.arrived.put(Message(Kind.REFUSED, -1, 0, meta=meta))

    def _refuse_silent(self, connection: _Connection) -> None:
        if not connection.greeted:
            self._refuse(connection, f"sent no HELLO within {HELLO_S:g} s", "DEADLINE_EXCEEDED")

    def _refuse(self, connection: _Connection, reason: str, code: str) -> None:
        with self._lock:
            if connection.closed or connection.ended:
                return
            connection.close(getattr(self._grpc.StatusCode, code), reason)
            self.audit.note("refused", rank=connection.rank or None, **connection.known, reason=reason)
            self.arrived.put(Message(Kind.REFUSED, connection.rank or -1, 0, meta={"reason": reason}))
            self._leave(connection)


def _later(seconds: float, call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def _server(stream: Callable[[Iterator[bytes], Any], Iterator[bytes]], silos: int, places: int) -> Any:
    grpc = compatibility.grpc()
    server = grpc.server(
        DaemonThreads(),
        options=[
            *streams.OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            # without a stream; ConnectionLimit may close such connections earlier
            ("grpc.max_connection_idle_ms", 10_000),
            ("grpc.server_handshake_timeout_ms", int(1000 * connection_limit.HANDSHAKE_S)),
            ("grpc.max_concurrent_streams", 2),
            ("grpc.max_allowed_incoming_connections", places),
        ],
        maximum_concurrent_rpcs=(2 + SILENT) * silos + 256,  # one thread each
    )
    handler = grpc.stream_stream_rpc_method_handler(stream)
    service = grpc.method_handlers_generic_handler(streams.SERVICE, {streams.METHOD: handler})
    server.add_generic_rpc_handlers((service,))
    return server


def _listen(server: Any, host: str, port: int, tls: keys.Files | None, connected: Callable[[], None]) -> str:
    address = addresses.join(host, port)
    try:
        if tls is None:
            return addresses.join(host, server.add_insecure_port(address))
        grpc = compatibility.grpc()
        configuration = grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.ca)
        credentials = grpc.dynamic_ssl_server_credentials(configuration, connected, require_client_authentication=True)
        return addresses.join(host, server.add_secure_port(address, credentials))
    except RuntimeError:  # gRPC gives no reason
        problem, use = "it cannot be bound", "a free port of this machine"
        try:
            passive = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, sockaddr = passive[0]
            with socket.socket(family) as probe:
                probe.bind(sockaddr)
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                use = f"comm_args.listen_address: 0.0.0.0:{port} if silos reach it through a router"
                use = f"an address of this machine, such as {use}"
        raise mistake(f"cannot listen at {address}", problem, use) from None
