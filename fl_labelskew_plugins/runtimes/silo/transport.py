"""Messages between a server and silos on other machines: one long-lived gRPC stream for each silo.

Only the server listens. Every message is cut into chunks, so that its size is bounded by the receiver's ``limits``
alone. With TLS a silo is who its certificate says; without, it is who it claims to be, and only this machine can
connect. What a peer sends is checked before room is made for it, and never unpickled.
"""

from __future__ import annotations

import errno
import os
import queue
import re
import secrets
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import LabelSkewError, RunError
from torch import Tensor

from fl_labelskew_plugins.host import Message
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runs.audit import Audit, certificate, peer
from fl_labelskew_plugins.runtimes import chunks, wire
from fl_labelskew_plugins.runtimes.chunks import CutShortError, Hashing, Sha256
from fl_labelskew_plugins.runtimes.silo import door, names, pin
from fl_labelskew_plugins.runtimes.silo.door import Door, places
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Transport, message
from fl_labelskew_plugins.runtimes.wire import Header, WireError

if TYPE_CHECKING:
    from fl_labelskew_plugins.runtimes.silo.revocation import Revocations

SERVICE, METHOD = "fl_labelskew.Silos", "Connect"
CHUNK = 2**20
"""Bytes of a gRPC message; smaller ones cost time, larger ones win none."""
QUEUED = 8
"""Messages that wait for one peer to take them; more than that, and it is treated as gone."""
UNREAD = 4
"""Messages of one silo that wait for their turn; after that, nothing more is read from it."""
HELLO_S = 10.0
SILENT = 2
"""Streams that one certificate may hold before HELLO; a further one takes the place of the oldest."""
PATIENCE_S = 2.0
"""How long the end waits for a peer that takes nothing of what is left to send."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 10.0
LIMIT = 2**20
FROM_SILOS = (Kind.HELLO, Kind.OPENING, Kind.UPLOAD, Kind.FAILED, Kind.FINISH)
FROM_SERVER = (Kind.WELCOME, Kind.TRAIN, Kind.VERDICT, Kind.FINISH)
TAKEN = "labelskew-taken"
"""The initial metadata with which the server says that it has taken a HELLO."""
LOOKED = "labelskew-looked"
"""With which a silo says that it has opened another connection before, to look at the server's certificate."""

_OPTIONS = [
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

    Args:
        reason: what it did.
        code: gRPC's name of the status that it gets; it tries again only after some of them.
    """

    def __init__(self, reason: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(reason)
        self.code = code


def _grpc() -> Any:
    """The grpc package, imported when first needed."""
    # Its core writes a line of its own for every stranger that connects; GRPC_VERBOSITY=info shows them again.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError:
        raise LabelSkewError(
            "cross-silo runs need grpcio, which is not installed; pip install 'fl-labelskew-plugins[grpc]' would be "
            "right"
        ) from None
    return grpc


def _checked(address: str, tls: names.Files | None) -> tuple[str, int]:
    """Host and port; raises LabelSkewError where others could listen in."""
    try:
        host, port = addresses.split(address)
    except ValueError as error:
        raise LabelSkewError(str(error)) from None
    if tls is None and not addresses.loopback(address):
        raise LabelSkewError(
            f"{address} leaves this machine, and there are no certificates; comm_args.certs with a folder of "
            "`labelskew certs new`, or an address such as 127.0.0.1:8890, would be right"
        )
    return host, port


def _encoded(msg: Message, tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    kind, sender, receiver = int(msg.get_type()), msg.get_sender_id(), msg.get_receiver_id()
    return wire.encode(kind, sender, receiver, msg.get("round"), msg.get("meta"), tensors)


def _decoded(header: Header, payload: wire.Buffer) -> Message:
    """The message, whose texts are fit to be shown from here on: the names of its tensors are so, or it is refused."""
    meta, tensors = wire.decode(payload)
    kind, meta = Kind(header.kind), wire.cleaned(meta)
    return message(kind, header.sender, header.receiver, round=header.round, meta=meta, tensors=tensors)


def _described(header: Header) -> dict[str, Any]:
    """A message as the audit log has it."""
    return {"kind": Kind(header.kind).name, "round": header.round if header.round >= 0 else None}


def _reason(msg: Message) -> str | None:
    reason = msg.get("meta").get("reason")
    return None if reason is None else str(reason)


class Outbox:
    """Messages on their way to one peer; copied out of the tensors' memory chunk by chunk, as the peer takes them.

    Args:
        audit: where it is noted what has been sent.
        to: the receiver's rank, as the log has it.
        of: what the log has of the receiver beside that, once something is sent.
    """

    def __init__(self, audit: Audit, to: Callable[[], int], of: Callable[[], Mapping[str, str]]) -> None:
        self._audit, self._to, self._of = audit, to, of
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
        header, digest = Header.unpack(parts[0]), chunks.hashed(parts, tensors) if self._audit.digests else None
        size, sent = Header.SIZE + header.length, 0
        try:
            for chunk in chunks.cut(parts, CHUNK):
                if self._dropping:
                    return
                sent += len(chunk)
                if sent == size:  # what follows a yield may never be reached
                    self._note("sent", header, size, digest, why)
                yield chunk
                self.moved += 1
        finally:
            if 0 < sent < size:
                self._note("sent in part", header, sent, None, why)

    def _note(self, event: str, header: Header, size: int, digest: str | None, why: str | None) -> None:
        where = {"rank": self._to(), **self._of()}
        self._audit.note(event, **where, **_described(header), bytes=size, sha256=digest, why=why)


def _wait_while_moving(ended: threading.Event, outboxes: Iterable[Outbox]) -> None:
    """Wait for the end, as long as peers take what is left to send."""
    outboxes = list(outboxes)
    before = -1
    while before != (moved := sum(outbox.moved for outbox in outboxes)):
        before = moved
        if ended.wait(PATIENCE_S):
            return


class _DaemonThreads(Executor):
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


class _Connection:
    """A silo's stream, as the server sees it.

    Args:
        context: gRPC's.
        rank: from the peer's certificate; 0 until HELLO claims one.
        audit: where it is noted what is sent.
    """

    def __init__(self, context: Any, rank: int, audit: Audit) -> None:
        self.context = context
        self.rank = rank
        self.known = peer(context)
        """What the audit log has of it: its address, and its certificate's fingerprint."""
        self.certificate = certificate(context)
        self.outbox = Outbox(audit, lambda: self.rank, lambda: self.known)
        self.slots = threading.Semaphore(UNREAD)
        self.greeted = self.closed = self.gone = False
        self.peer = ""
        """What the door knows it by, once its certificate is one of the federation's."""

    def close(self, code: Any, reason: str) -> None:
        """End the stream with a reason for the peer."""
        self.closed = True
        self.context.set_code(code)
        self.context.set_details(reason)
        self.outbox.close(flush=False)
        # A peer that takes nothing would not even take the reason.
        timer = threading.Timer(PATIENCE_S, self.context.cancel)
        timer.daemon = True
        timer.start()


class ServerTransport(Transport):
    """The server's end: listens at once, and queues what silos send.

    Before anything else of a silo its HELLO is queued, and when its connection ends for whatever reason, LEFT. What
    is thrown away unread is told as REFUSED, from the silo's rank, or from -1 where it is not known; the connection
    is closed then. Messages go to the connection whose HELLO :meth:`receive` has handed out.

    Args:
        address: ``host:port`` to listen at; port 0 takes a free one.
        silos: their number; ranks are 1 to ``silos``.
        tls: the server's certificate; without it, the address must be this machine's own.
        spool: where messages wait for their turn.
        audit: where connections and messages are noted.
        revoked: certificates that count no longer; who shows one is refused, who has shown one before is turned out.

    Raises:
        LabelSkewError: the address cannot be listened at, or must not be.
    """

    def __init__(
        self,
        address: str,
        *,
        silos: int,
        tls: names.Files | None = None,
        spool: Spool | None = None,
        audit: Audit | None = None,
        revoked: Revocations | None = None,
    ) -> None:
        super().__init__()
        self.audit = audit or Audit()
        self._revoked, self._listed = revoked, 0
        host, port = _checked(address, tls)
        self._grpc = _grpc()
        self.silos = silos
        self.limits = dict.fromkeys(FROM_SILOS, LIMIT)
        """Bytes of a message of each kind, at most; may be changed at any time."""
        self._tls = tls
        self._spool = spool or Spool()
        self._lock = threading.Lock()
        self._connections: dict[_Connection, None] = {}  # the oldest first
        self._present: dict[int, _Connection] = {}
        self._open: dict[int, _Connection] = {}
        self._shown: dict[int, bytes] = {}
        """The certificate that each silo came with last."""
        self._last: tuple[list[tuple[str, weakref.ref[Tensor], int]], dict[str, Tensor], Sha256] = ([], {}, None)
        """Which tensors were sent last, copies of them where they cannot travel as they are, and their hash."""
        most = places()
        self._door = Door(most, self._turned_out, tls=tls is not None)
        self._server = self._grpc.server(
            _DaemonThreads(),
            options=[
                *_OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
                # Strangers have no stream, or soon none: they are gone after 10 s, or earlier; see Door.
                ("grpc.max_connection_idle_ms", 10_000),
                ("grpc.server_handshake_timeout_ms", int(1000 * door.HANDSHAKE_S)),
                ("grpc.max_concurrent_streams", 2),
                ("grpc.max_allowed_incoming_connections", most),
            ],
            maximum_concurrent_rpcs=(2 + SILENT) * silos + 256,  # a thread each; who has more than a share loses them
        )
        handler = self._grpc.stream_stream_rpc_method_handler(self._stream)
        self._server.add_generic_rpc_handlers((self._grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self.address = addresses.join(host, self._listen(host, port))
        """Where it listens."""
        self._server.start()
        self._door.open(addresses.split(self.address)[1])

    def send_message(self, msg: Message) -> None:
        """Queue a message for its receiver; quietly nothing where that silo is not there.

        Its tensors must not change any more: they are read while they are sent.
        """
        connection = self._open.get(msg.get_receiver_id())
        if connection is None or connection.closed:
            return
        if not connection.outbox.put(*self._prepared(msg)):
            self._refuse(connection, RefusedError("does not take what is sent to it", "UNAVAILABLE"))

    def stop_receive_message(self) -> None:
        """Send what is queued, then close all connections."""
        super().stop_receive_message()
        self._door.close()
        ended = self._server.stop(3600)
        with self._lock:
            outboxes = [connection.outbox for connection in self._connections]
        for outbox in outboxes:
            outbox.close(flush=True)
        _wait_while_moving(ended, outboxes)
        self._server.stop(0).wait(PATIENCE_S)

    def _listen(self, host: str, port: int) -> int:
        address = addresses.join(host, port)
        try:
            if self._tls is None:
                return int(self._server.add_insecure_port(address))
            pair = [(self._tls.key, self._tls.certificate)]
            configuration = self._grpc.ssl_server_certificate_configuration(pair, self._tls.ca)
            credentials = self._grpc.dynamic_ssl_server_credentials(
                configuration, self._door.knock, require_client_authentication=True
            )
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError:  # gRPC does not say why
            why, right = "it cannot be bound", "a free port of this machine would be right"
            try:
                family, *_, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
                    0
                ]
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

    def _prepared(self, msg: Message) -> tuple[list[bytes | memoryview], str | None, Sha256 | None]:
        """A message for :meth:`Outbox.put`; copies from a GPU, and the tensors' hash, are made once for all silos."""
        tensors = msg.get("tensors")
        if not tensors:
            return _encoded(msg, tensors), _reason(msg), None
        key, last, copies, state = [(name, t, t._version) for name, t in tensors.items()], *self._last
        same = len(key) == len(last) and all(
            name == before and tensor is sent() and version == old
            for (name, tensor, version), (before, sent, old) in zip(key, last, strict=True)
        )
        if not same:
            copies = {} if all(map(wire.dense, tensors.values())) else wire.plain(tensors)
        parts = _encoded(msg, copies or tensors)
        if not same:
            state = chunks.tensors_hashed(parts) if self.audit.digests else None
            # no more of them than that: what is sent would be kept in memory until the next broadcast
            self._last = [(name, weakref.ref(tensor), version) for name, tensor, version in key], copies, state
        return parts, _reason(msg), state

    def _turn_out(self) -> None:
        """Once there is a newer list of revoked certificates: end the connections of who is on it.

        LEFT then says ``revoked``, also of a silo whose connection was lost before: with that it cannot come back.
        """
        if self._revoked is None or (number := self._revoked.look().number) == self._listed:
            return
        self._listed = number
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if why := self._revoked.barred(connection.certificate):
                self._refuse(connection, RefusedError(why, "PERMISSION_DENIED"))
        with self._lock:
            for rank, shown in self._shown.items():
                if self._revoked.barred(shown):
                    self.arrived.put(message(Kind.LEFT, rank, 0, meta={"revoked": True}))

    def _next(self, timeout: float | None) -> Message:
        self._turn_out()
        arrived = super()._next(timeout)
        connection: _Connection | None = getattr(arrived, "connection", None)
        if connection is not None:
            # From here on the owner means this connection when it names the rank.
            if arrived.get_type() == Kind.HELLO:
                self._open[connection.rank] = connection
            elif arrived.get_type() == Kind.LEFT:
                self._open.pop(connection.rank, None)
            connection.slots.release()
        return arrived

    # -- one thread that sends and one that reads for each connection

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        rank, refusal = 0, None
        if self._tls is not None:
            name = b"".join(context.auth_context().get("x509_common_name", ())).decode(errors="replace")
            rank = names.rank_of(name)
            if not 1 <= rank <= self.silos:
                rank = 0
                text = f"its certificate is not one of silo-1 to silo-{self.silos}"
                refusal = RefusedError(text, "PERMISSION_DENIED")
        connection = _Connection(context, rank, self.audit)
        with self._lock:
            self._connections[connection] = None
            silent = [c for c in self._connections if c.rank == rank and not (c.greeted or c.closed)]
        # only now that a newer list would find it among the others
        if refusal is None and self._revoked is not None and (why := self._revoked.barred(connection.certificate)):
            refusal, silent = RefusedError(why, "PERMISSION_DENIED"), []
        looked = any(key == LOOKED for key, _ in context.invocation_metadata())
        self._door.enter(context.peer(), member=refusal is None, looked=looked)
        if refusal is None:
            connection.peer = context.peer()
        for oldest in silent[: -SILENT if rank else -2 * self.silos - 16]:
            text = "has opened others with this certificate and not said HELLO" if rank else "is one of too many"
            self._refuse(oldest, RefusedError(text, "RESOURCE_EXHAUSTED"))
        if not context.add_callback(lambda: self._ended(connection)):
            self._ended(connection)
            return
        if refusal is not None:
            self._refuse(connection, refusal)
        else:
            threading.Thread(
                target=self._read_all, args=(connection, requests), name="silo-reader", daemon=True
            ).start()
        yield from connection.outbox.chunks()

    def _read_all(self, connection: _Connection, requests: Iterator[bytes]) -> None:
        timer = threading.Timer(HELLO_S, self._too_late, [connection])
        timer.daemon = True
        timer.start()
        try:
            hashing = Hashing(requests, wanted=self.audit.digests)
            while self._read(connection, hashing):
                timer.cancel()
        except (CutShortError, self._grpc.RpcError):
            pass  # the connection is lost, which is told as LEFT
        except WireError as error:
            self._refuse(connection, error)
        except OSError as error:
            self._refuse(connection, RefusedError(f"sent what there is no room for: {error.strerror}", "UNAVAILABLE"))
        finally:
            timer.cancel()
            connection.outbox.close(flush=False)

    def _read(self, connection: _Connection, requests: Hashing) -> bool:
        got = chunks.assemble(requests, lambda header: self._admit(connection, header), self._spool)
        if got is None:
            return False
        header, digest, arrived = got[0], requests.digest(), _decoded(*got)
        facts = {"bytes": Header.SIZE + header.length, "sha256": digest, "why": _reason(arrived)}
        self.audit.note("received", rank=header.sender, **connection.known, **_described(header), **facts)
        arrived.connection = connection
        connection.slots.acquire()
        with self._lock:
            if connection.closed or connection.gone:
                return False
            if not connection.greeted:
                self._greet(connection, arrived.get_sender_id())
            self.arrived.put(arrived)
        return True

    def _admit(self, connection: _Connection, header: Header) -> None:
        if header.kind not in FROM_SILOS:
            raise WireError(f"a message of type {header.kind}, which no silo sends")
        kind = Kind(header.kind)
        if (kind == Kind.HELLO) == connection.greeted:
            raise WireError("a second HELLO" if connection.greeted else f"{kind.name} before HELLO")
        rank = connection.rank or header.sender
        if not 1 <= rank <= self.silos:
            raise RefusedError(f"claims to be silo {rank}; 1 to {self.silos} are expected", "PERMISSION_DENIED")
        if header.sender != rank:
            raise RefusedError(f"claims to be silo {header.sender}", "PERMISSION_DENIED")
        if header.receiver != 0:
            raise WireError(f"a message to {header.receiver}, not to the server")
        if header.length > self.limits[kind]:
            text = f"sent {kind.name} of {header.length} bytes; {self.limits[kind]} are expected at most"
            raise RefusedError(text, "RESOURCE_EXHAUSTED")

    def _greet(self, connection: _Connection, rank: int) -> None:
        """Take a HELLO; the lock is held."""
        old = self._present.get(rank)
        if old is not None and self._tls is None:
            # Who is not known by a certificate cannot push another one out.
            raise RefusedError(f"claims to be silo {rank}, which is here already", "ALREADY_EXISTS")
        connection.context.send_initial_metadata(((TAKEN, "1"),))
        connection.rank, connection.greeted = rank, True
        if old is not None:
            self._leave(old)
            old.close(self._grpc.StatusCode.ABORTED, "another process with this certificate has connected")
        self._present[rank], self._shown[rank] = connection, connection.certificate
        self.audit.note("connected", rank=rank, **connection.known)

    def _leave(self, connection: _Connection) -> None:
        """Tell of a connection's end, once; the lock is held."""
        if self._present.get(connection.rank) is connection:
            del self._present[connection.rank]
            left = message(Kind.LEFT, connection.rank, 0)
            left.connection = connection
            self.arrived.put(left)
            self.audit.note("left", rank=connection.rank, **connection.known)

    def _ended(self, connection: _Connection) -> None:
        """GRPC calls this at the end of every stream."""
        with self._lock:
            connection.gone = True
            self._connections.pop(connection, None)
            self._leave(connection)
        if connection.peer:
            self._door.leave(connection.peer)
        connection.outbox.close(flush=False)
        connection.slots.release()

    def _turned_out(self, count: int) -> None:
        shown = "" if self._tls is None else "showed no certificate of this federation's authority, or "
        meta = {"reason": f"{shown}asked for nothing", "times": count}
        self.audit.note("refused", why=meta["reason"], times=count)
        self.arrived.put(message(Kind.REFUSED, -1, 0, meta=meta))

    def _too_late(self, connection: _Connection) -> None:
        if not connection.greeted:
            self._refuse(connection, RefusedError(f"did not say HELLO within {HELLO_S:g} s", "DEADLINE_EXCEEDED"))

    def _refuse(self, connection: _Connection, error: WireError) -> None:
        reason = str(error) if isinstance(error, RefusedError) else f"sent {error}"
        code = error.code if isinstance(error, RefusedError) else "INVALID_ARGUMENT"
        with self._lock:
            if connection.closed or connection.gone:
                return
            connection.close(getattr(self._grpc.StatusCode, code), reason)
            self.audit.note("refused", rank=connection.rank or None, **connection.known, why=reason)
            self.arrived.put(message(Kind.REFUSED, connection.rank or -1, 0, meta={"reason": reason}))
            self._leave(connection)


class SiloTransport(Transport):
    """A silo's end: connects, and connects again whenever the connection is lost, until it is stopped.

    Each connection begins with the HELLO that :attr:`hello` makes. Once the server has taken it, JOINED is queued;
    when the connection is lost, LEFT. :meth:`receive` raises LabelSkewError where trying again is of no use.

    Args:
        address: ``host:port`` of the server.
        rank: which silo, from 1.
        tls: this silo's certificate; without it, the server must be on this machine.
        spool: where messages wait for their turn.
        say: told in a line, in another thread, that the server is waited for and that it is there.
        audit: where connections and messages are noted.
        pin: raises where the server's certificate, by its SHA-256 fingerprint, is not the one to connect to.
        revoked: certificates that count no longer; a server with one is not connected to, until it has another.

    Raises:
        LabelSkewError: the address is none, or must not be used without certificates.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        *,
        tls: names.Files | None = None,
        spool: Spool | None = None,
        say: Callable[[str], None] = lambda line: None,
        audit: Audit | None = None,
        pin: Callable[[str], None] | None = None,
        revoked: Revocations | None = None,
    ) -> None:
        super().__init__()
        _checked(address, tls)
        self._pin, self._revoked = pin, revoked
        self.audit = audit or Audit()
        self._known = {"peer": address}
        self._roots = b""
        self._grpc = _grpc()
        self._codes = self._grpc.StatusCode
        self.address, self.rank = address, rank
        self.limits = dict.fromkeys(FROM_SERVER, LIMIT)
        """Bytes of a message of each kind, at most; may be changed at any time, as by the handler of WELCOME."""
        self.hello: Callable[[], Message] = lambda: message(Kind.HELLO, rank, 0)
        """Makes the first message of every connection, in another thread."""
        self._tls = tls
        self._spool = spool or Spool()
        self._say = say
        self._outbox: Outbox | None = None
        self._cancel: Callable[[], Any] = lambda: None
        self._handling = False
        self._lock = threading.Lock()
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._connect_for_ever, name="silo", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send_message(self, msg: Message) -> None:
        """Queue a message for the server; quietly nothing where there is no connection.

        Its tensors must not change any more: they are read while they are sent.
        """
        outbox = self._outbox
        if outbox is not None and (self._doubt() or not outbox.put(_encoded(msg, msg.get("tensors")), _reason(msg))):
            self._cancel()  # the server takes nothing any more, or should get nothing: a new connection may

    def stop_receive_message(self) -> None:
        """Send what is queued, then close the connection."""
        super().stop_receive_message()
        with self._lock:
            self._stopping.set()
            outbox, cancel = self._outbox, self._cancel
        with self.arrived.all_tasks_done:
            self.arrived.all_tasks_done.notify_all()
        if not self._thread.is_alive():
            return
        if outbox is not None:
            outbox.close(flush=True)
            _wait_while_moving(self._ended, [outbox])
        cancel()
        self._ended.wait(PATIENCE_S)

    def _next(self, timeout: float | None) -> Message:
        if self._handling:
            self.arrived.task_done()
        self._handling = False
        arrived = super()._next(timeout)
        self._handling = True
        failure: Exception | None = getattr(arrived, "failure", None)
        if failure is not None:
            raise failure
        return arrived

    # -- the connecting thread, which also reads

    def _connect_for_ever(self) -> None:
        pause, told = FIRST_PAUSE_S, set[str]()
        jitter = secrets.SystemRandom()
        try:
            while not self._stopping.is_set():
                why = self._pinned()
                joined, heard, why = (False, False, why) if why else self._connect()
                if joined:
                    told.clear()
                if heard:
                    pause = FIRST_PAUSE_S
                if why not in told and not self._stopping.is_set():
                    self._say(f"waiting for the server at {self.address}: {why}")
                    told.add(why)
                self._stopping.wait(pause * jitter.uniform(0.5, 1))
                pause = min(2 * pause, LAST_PAUSE_S)
        except Exception as error:  # whatever it is, it belongs to the thread that waits
            ended = message(Kind.LEFT, 0, self.rank)
            ended.failure = error
            self.arrived.put(ended)
        finally:
            self._ended.set()

    def _connect(self) -> tuple[bool, bool, str]:
        """One connection, to its end: whether it stood, whether the server said anything, and why it ended.

        Raises:
            LabelSkewError: a further one would end in the same way.
        """
        joined = heard = False
        outbox = Outbox(self.audit, lambda: 0, lambda: self._known)
        channel = self._channel()
        looked = ((LOOKED, "1"),) if self._roots else None
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(outbox.chunks(), metadata=looked)
        try:
            outbox.put(_encoded(hello := self.hello(), hello.get("tensors")))
            with self._lock:
                self._cancel = call.cancel
                if self._stopping.is_set():
                    return False, False, ""
            joined = any(key == TAKEN for key, _ in call.initial_metadata() or ())
            if joined:
                self._say(f"connected to the server at {self.address}")
                self.audit.note("connected", rank=0, **self._known)
                self._outbox = outbox
                self.arrived.put(message(Kind.JOINED, 0, self.rank))
            hashing = Hashing(call, wanted=self.audit.digests)
            while self._read(hashing):
                heard = True
            why = "it has closed the connection"
        except self._grpc.RpcError:
            cancelled = call.code() == self._codes.CANCELLED
            why = (self._doubt() if cancelled else "") or _why(call.details())
            if not self._stopping.is_set() and (final := self._hopeless(call.code(), why)):
                self.audit.note("refused", rank=0, **self._known, why=final)
                raise LabelSkewError(f"the server at {self.address}: {final}") from None
            if call.code() in (self._codes.RESOURCE_EXHAUSTED, self._codes.ALREADY_EXISTS):
                why = f"it refused this silo, which {why}"
            elif why == "Socket closed" and not joined:  # all that TLS lets us know
                why = "it closes connections; does one of the two have no certificates, or another authority's?"
        except CutShortError:
            why = "the connection was lost"
        except WireError as error:
            why = str(error) if isinstance(error, RefusedError) else f"sent {error}"
            self.arrived.put(message(Kind.REFUSED, 0, self.rank, meta={"reason": why}))
            self.audit.note("refused", rank=0, **self._known, why=why)
        except OSError as error:
            raise RunError(f"no room for a message of the server: {error.strerror}; make some, start again") from None
        finally:
            self._outbox = None
            outbox.close(flush=False)
            call.cancel()
            channel.close()
            if joined:
                self.arrived.put(message(Kind.LEFT, 0, self.rank))
                self.audit.note("left", rank=0, **self._known)
        return joined, heard, why

    def _pinned(self) -> str:
        """Look at the server's certificate where it matters, to connect to that one alone; why that cannot be now.

        Raises:
            LabelSkewError: it is not the one to connect to.
        """
        if self._tls is None or (self._pin is None and not self._any_revoked):
            return ""
        try:
            fingerprint, self._roots = pin.shown(self.address, self._tls)
        except ssl.SSLError as error:
            if final := self._hopeless(None, str(error)):
                raise LabelSkewError(f"the server at {self.address}: {final}") from None
            return "it closes connections"
        except OSError as error:
            return error.strerror or str(error)
        self._known["fingerprint"] = fingerprint
        try:
            if self._pin is not None:
                self._pin(fingerprint)
        except LabelSkewError as error:
            self.audit.note("refused", rank=0, **self._known, why=str(error))
            raise
        if why := self._doubt():
            self.audit.note("refused", rank=0, **self._known, why=why)
        return why

    @property
    def _any_revoked(self) -> bool:
        return self._revoked is not None and bool(self._revoked.look().entries)

    def _doubt(self) -> str:
        """Why nothing more is to be sent to this server or taken from it; empty where there is no reason."""
        if self._revoked is None or not self._any_revoked:
            return ""
        return self._revoked.barred(self._roots) if self._roots else "there are revoked certificates now; looking again"

    def _channel(self) -> Any:
        options = [
            *_OPTIONS,
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),  # or gRPC's own pauses between attempts would add to ours
        ]
        if self._tls is None:
            return self._grpc.insecure_channel(self.address, options)
        roots = self._roots or self._tls.ca
        credentials = self._grpc.ssl_channel_credentials(roots, self._tls.key, self._tls.certificate)
        return self._grpc.secure_channel(self.address, credentials, options)

    def _read(self, call: Hashing) -> bool:
        got = chunks.assemble(call, self._admit, self._spool)
        if got is None:
            return False
        if why := self._doubt():
            raise RefusedError(why)
        header, digest, arrived = got[0], call.digest(), _decoded(*got)
        facts = {"bytes": Header.SIZE + header.length, "sha256": digest, "why": _reason(arrived)}
        self.audit.note("received", rank=0, **self._known, **_described(header), **facts)
        self.arrived.put(arrived)
        return True

    def _admit(self, header: Header) -> None:
        if header.kind not in FROM_SERVER or header.sender != 0 or header.receiver != self.rank:
            raise WireError(f"a message of type {header.kind} from {header.sender} to {header.receiver}")
        kind = Kind(header.kind)
        if header.length > self.limits[kind]:
            # Handling what came before, such as WELCOME, may raise the limit.
            with self.arrived.all_tasks_done:
                self.arrived.all_tasks_done.wait_for(
                    lambda: self._stopping.is_set() or not self.arrived.unfinished_tasks
                )
        if header.length > self.limits[kind]:
            raise RefusedError(f"sent {kind.name} of {header.length} bytes; {self.limits[kind]} are expected at most")

    def _hopeless(self, code: Any, why: str) -> str:
        """Why trying again is of no use; empty where it may be."""
        if code == self._codes.UNIMPLEMENTED:
            return "another service answers there; the server's own host and port would be right"
        if code in (self._codes.PERMISSION_DENIED, self._codes.INVALID_ARGUMENT, self._codes.ABORTED):
            return f"it refused this silo: {why}"
        if "CERTIFICATE_VERIFY_FAILED" in why:
            return f"its certificate is not one that this silo's ca.pem vouches for ({why.rpartition(': ')[2]})"
        if "Hostname Verification" in why or "is not in peer certificate" in why:
            return "its certificate is for another host; `labelskew certs new --server HOST` makes one for this"
        if "WRONG_VERSION_NUMBER" in why:
            return "it does not speak TLS; no comm_args.certs here, or one there, would be right"
        return ""


def _why(detail: str | None) -> str:
    """What gRPC says of a failure, without its own words around it."""
    text = " ".join((detail or "no reason given").split()).rpartition("last error: ")[2]
    text = re.sub(r"^[A-Z_]+: (ipv4|ipv6|dns):\S+: ", "", text).removeprefix("Failed to connect to remote host: ")
    if found := re.search(r"errors resolving \S+ .*: ([^:]+?)\]?$", text):
        text = f"its name cannot be resolved ({found[1]})"
    elif text.startswith("Failed parsing HTTP/2"):
        text = "what answers there speaks another protocol"
    elif "before receiving SETTINGS" in text:
        text = "what takes the connection there says nothing"
    return clean(text.removesuffix(": OK"), 300)
