"""A silo's end of its stream: checks the server's certificate, connects and reconnects."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import addresses, compatibility
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.silo.flood import MAX_LINES, Flood
from fl_labelskew_plugins.runtimes.silo.keys import Files, fingerprint
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import Kind, Message, Transport
from fl_labelskew_plugins.runtimes.wire import Header, WireError

if TYPE_CHECKING:
    from fl_labelskew_plugins.runtimes.silo.certs import Revocations

FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 10.0
LOOK_S = 10.0
FROM_SERVER = (
    *(Kind.WELCOME, Kind.TRAIN, Kind.VERDICT, Kind.TEST, Kind.FINISH, Kind.SURVEY),
    *(Kind.KEYS, Kind.SHARES, Kind.CHECKED, Kind.MASKED, Kind.INCLUDED, Kind.REVEALED),
)


@dataclass
class Trust:
    """The check of the server's certificate over another connection, because gRPC does not show it."""

    address: str
    tls: Files | None
    audit: Audit
    pin: Callable[[str], None] | None
    revoked: Revocations | None
    certificate: bytes = b""
    """PEM of the last checked certificate, the only one that gRPC trusts."""
    connected: bool = False
    """Whether the server has accepted this silo before; then no other program at its address can end this silo."""

    def __post_init__(self) -> None:
        self.known: dict[str, Any] = {"rank": 0, "peer": self.address}

    def look(self) -> str:
        """Check the server, if it is pinned or some certificates are revoked; return a reason to connect later, if any.

        Raises LabelSkewError for the wrong server.
        """
        if self.tls is None or (self.pin is None and not self._any_revoked):
            return ""
        try:
            self.certificate = _shown(self.address, self.tls)
        except ssl.SSLError as error:
            final = _hopeless(str(error))
            if final and not self.connected:
                raise LabelSkewError(f"the server at {self.address}: {final}") from None
            return final or "it closes connections"
        except OSError as error:
            return error.strerror or str(error)
        self.known["fingerprint"] = fingerprint(self.certificate)
        try:
            if self.pin is not None:
                self.pin(self.known["fingerprint"])
        except LabelSkewError as error:
            self.refused(str(error))
            raise
        if reason := self.doubt():
            self.refused(reason)
        return reason

    def doubt(self) -> str:
        """Reason to distrust the server from now on, if any."""
        if self.revoked is None or not self._any_revoked:
            return ""
        if not self.certificate:
            return "certificates were revoked; checking its certificate"
        return self.revoked.barred(self.certificate)

    def refused(self, reason: str) -> None:
        """Note a refusal in the audit log."""
        self.audit.note("refused", **self.known, reason=reason)

    @property
    def _any_revoked(self) -> bool:
        return self.revoked is not None and bool(self.revoked.look().entries)


class SiloTransport(Transport):
    """A silo's end: connects, and reconnects after each lost connection, until it is stopped.

    It queues JOINED after an accepted HELLO, and LEFT after a lost connection. :meth:`receive` raises LabelSkewError if
    another attempt would be useless.

    ``print_line``: called in another thread. ``pin``: called with the server's fingerprint; raises if it is wrong.
    ``revoked``: the silo waits while the server's certificate is one of these. Raises LabelSkewError if the address is
    invalid, or needs certificates.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        *,
        tls: Files | None = None,
        spool: Spool | None = None,
        print_line: Callable[[str], None] = lambda line: None,
        audit: Audit | None = None,
        pin: Callable[[str], None] | None = None,
        revoked: Revocations | None = None,
    ) -> None:
        super().__init__()
        streams.checked(address, tls)
        self.audit = audit or Audit()
        self._grpc = compatibility.grpc()
        self.address, self.rank = address, rank
        self.limits = dict.fromkeys(FROM_SERVER, streams.LIMIT)
        """Maximum bytes of a message."""
        self.hello: Callable[[], Message] = lambda: Message(Kind.HELLO, rank, 0)
        """Called in another thread for every connection."""
        self.quiet = False
        """Whether to read and connect only when all messages are handled, so that times reveal nothing."""
        self.tls, self.revoked, self._trust = tls, revoked, Trust(address, tls, self.audit, pin, revoked)
        self._spool, self._flood = spool or Spool(), Flood(print_line)
        self._outbox: streams.Outbox | None = None
        self._cancel: Callable[[], Any] = lambda: None
        self._handling = False
        self._lock = threading.Lock()
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._connect_for_ever, name="silo", daemon=True)

    def start(self) -> None:
        """Start connecting."""
        self._thread.start()

    def send_message(self, msg: Message) -> None:
        """Queue a message, or drop it without a connection. Its tensors must not change meanwhile."""
        outbox = self._outbox
        if outbox is None:
            return
        if self._trust.doubt() or not outbox.put(msg):
            self._cancel()  # a new connection may work

    def stop_receive_message(self) -> None:
        """Send queued messages, then close the connection."""
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
            streams.wait_while_moving(self._ended, [outbox])
        cancel()
        self._ended.wait(streams.PATIENCE_S)

    def _next(self, timeout: float | None) -> Message:
        if self._handling:
            self.arrived.task_done()
        self._handling = False
        arrived = super()._next(timeout)
        self._handling = True
        if arrived.failure is not None:
            raise arrived.failure
        return arrived

    # -- the connecting thread, which also reads

    def _connect_for_ever(self) -> None:
        pause, reasons = FIRST_PAUSE_S, set[str]()
        jitter = secrets.SystemRandom()
        try:
            while not self._stopping.is_set():
                if self.quiet:
                    self._wait_for_handlers()
                reason = self._trust.look()
                joined, heard, reason = (False, False, reason) if reason else self._connect()
                if joined:
                    reasons.clear()
                if heard:
                    pause = FIRST_PAUSE_S
                if reason not in reasons and not self._stopping.is_set():
                    self._flood.print_event(f"waiting for the server at {self.address}:", reason, most=MAX_LINES)
                    reasons.add(reason)
                self._stopping.wait(pause * jitter.uniform(0.5, 1))
                pause = min(2 * pause, LAST_PAUSE_S)
        except Exception as error:  # raised again in the thread that receives
            self.arrived.put(Message(Kind.LEFT, 0, self.rank, failure=error))
        finally:
            self._flood.close()
            self._ended.set()

    def _connect(self) -> tuple[bool, bool, str]:
        """Run a connection; return whether it was accepted, whether a message arrived, and the reason of its end."""
        joined = heard = False
        known = self._trust.known
        outbox = streams.Outbox(self.audit, lambda: known)
        channel = self._channel()
        looked = ((streams.LOOKED, "1"),) if self._trust.certificate else None
        call = channel.stream_stream(f"/{streams.SERVICE}/{streams.METHOD}")(outbox.chunks(), metadata=looked)
        try:
            outbox.put(self.hello())
            with self._lock:
                self._cancel = call.cancel
                if self._stopping.is_set():
                    return False, False, ""
            joined = any(key == streams.TAKEN for key, _ in call.initial_metadata() or ())
            if joined:
                self._trust.connected = True
                self._flood.print_event("connected", f"to the server at {self.address}", most=MAX_LINES)
                self.audit.note("connected", **known)
                self._outbox = outbox
                self.arrived.put(Message(Kind.JOINED, 0, self.rank))
            hashing = streams.Hashing(call, wanted=self.audit.digests)
            while self._read(hashing):
                heard = True
                if self.quiet or self.arrived.qsize() > streams.QUEUED:
                    self._wait_for_handlers()
            reason = "it has closed the connection"
        except self._grpc.RpcError as error:
            error.__traceback__ = None  # gRPC keeps its errors, and a traceback the buffer of an incomplete message
            reason = self._ending(call, joined=joined)
        except streams.CutShortError:
            reason = "the connection was lost"
        except WireError as error:
            reason = streams.predicate(error)
            self.arrived.put(Message(Kind.REFUSED, 0, self.rank, meta={"reason": reason}))
            self._trust.refused(reason)
        except OSError as error:
            what = f"cannot store a message of the server: {error.strerror}"
            raise RunError(f"{what}; free disk space and start again") from None
        finally:
            self._outbox = None
            outbox.close(flush=False)
            call.cancel()
            channel.close()
            if joined:
                self.arrived.put(Message(Kind.LEFT, 0, self.rank))
                self.audit.note("left", **known)
        return joined, heard, reason

    def _ending(self, call: Any, *, joined: bool) -> str:
        """Reason of gRPC to end a connection. Raises LabelSkewError if a new one would fail, too."""
        code = call.code().name
        reason = (self._trust.doubt() if code == "CANCELLED" else "") or in_words(call.details())
        if not self._stopping.is_set() and (final := _hopeless(reason, code)):
            self._trust.refused(final)
            if self._trust.connected and code == "UNAVAILABLE":  # perhaps not the server, and it is back later
                return final
            raise LabelSkewError(f"the server at {self.address}: {final}") from None
        if code in ("RESOURCE_EXHAUSTED", "ALREADY_EXISTS"):
            return f"it refused this silo, which {reason}"
        if reason == "Socket closed" and not joined:
            return "it closes connections; check that both sides have certificates of the same authority"
        return reason

    def _channel(self) -> Any:
        options = [
            *streams.OPTIONS,
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),  # else gRPC would add its own pauses
        ]
        if self.tls is None:
            return self._grpc.insecure_channel(self.address, options)
        roots = self._trust.certificate or self.tls.ca
        credentials = self._grpc.ssl_channel_credentials(roots, self.tls.key, self.tls.certificate)
        return self._grpc.secure_channel(self.address, credentials, options)

    def _read(self, stream: streams.Hashing) -> bool:
        got = streams.received(stream, self._admit, self._spool)
        if got is None:
            return False
        if reason := self._trust.doubt():
            raise streams.RefusedError(reason)
        arrived, facts = got
        self.audit.note("received", **self._trust.known, **facts)
        self.arrived.put(arrived)
        return True

    def _admit(self, header: Header) -> None:
        if header.kind not in FROM_SERVER or header.sender != 0 or header.receiver != self.rank:
            raise WireError(f"a message of type {header.kind} from {header.sender} to {header.receiver}")
        if header.length > self.limits[Kind(header.kind)]:
            self._wait_for_handlers()  # WELCOME may raise the limit
        streams.bound(header, self.limits)

    def _wait_for_handlers(self) -> None:
        with self.arrived.all_tasks_done:
            self.arrived.all_tasks_done.wait_for(lambda: self._stopping.is_set() or not self.arrived.unfinished_tasks)


def _shown(address: str, tls: Files) -> bytes:
    """The server's certificate, as PEM. Raises OSError, or ``ssl.SSLError`` for another authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # gRPC checks it
    context.load_verify_locations(cadata=tls.ca.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    if hasattr(os, "memfd_create"):  # Python reads keys only from files, and this key must not be on disk
        key = os.memfd_create("key")
        with contextlib.closing(os.fdopen(key, "wb")) as file:
            file.write(tls.certificate + b"\n" + tls.key)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{key}")
    host, port = addresses.split(address)
    with (
        socket.create_connection((host, port), LOOK_S) as raw,
        context.wrap_socket(raw, server_hostname=host) as connection,
    ):
        return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()


def _hopeless(detail: str, code: str = "") -> str:
    """Reason to stop trying, if any, from gRPC's text and status."""
    if code == "UNIMPLEMENTED":
        return "another service answers there; use the server's own host and port"
    if code in ("PERMISSION_DENIED", "INVALID_ARGUMENT", "ABORTED"):
        return f"it refused this silo: {detail}"
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return f"its certificate was not issued by this silo's ca.pem ({detail.rpartition(': ')[2]})"
    if "Hostname Verification" in detail or "is not in peer certificate" in detail:
        return "its certificate is for another host; use `labelskew certs renew server --server HOST` there"
    if "WRONG_VERSION_NUMBER" in detail:
        return "it does not use TLS; remove comm_args.certs here, or set it there"
    return ""


def in_words(detail: str | None) -> str:
    """The cause in gRPC's text."""
    text = " ".join((detail or "no reason given").split()).rpartition("last error: ")[2]
    text = re.sub(r"^[A-Z_]+: (ipv4|ipv6|dns):\S+: ", "", text).removeprefix("Failed to connect to remote host: ")
    if unresolved := re.search(r"errors resolving \S+ .*: ([^:]+?)\]?$", text):
        text = f"its name cannot be resolved ({unresolved[1]})"
    elif text.startswith("Failed parsing HTTP/2"):
        text = "a program with another protocol answers there"
    elif "before receiving SETTINGS" in text:
        text = "the connection is accepted there, but nothing answers"
    return clean(text.removesuffix(": OK"), 300)
