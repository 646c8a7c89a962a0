"""Which server a silo connects to: its certificate is looked at before, as gRPC tells a client nothing of it."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runs.audit import Audit
from fl_labelskew_plugins.runtimes.silo.names import Files, fingerprint

if TYPE_CHECKING:
    from fl_labelskew_plugins.runtimes.silo.revocation import Revocations

WAIT_S = 10.0


class Trust:
    """The server as a silo knows it, and whether it is the one to connect to and to go on with.

    Args:
        address: ``host:port``.
        tls: this silo's certificate, which the server asks for; None: nobody has any.
        audit: where it is noted that a server is not trusted.
        pin: raises where the server's certificate, by its SHA-256 fingerprint, is not the one to connect to.
        revoked: certificates that count no longer.
    """

    def __init__(
        self,
        address: str,
        tls: Files | None,
        audit: Audit,
        pin: Callable[[str], None] | None,
        revoked: Revocations | None,
    ) -> None:
        self._address, self._tls, self._audit, self._pin, self._revoked = address, tls, audit, pin, revoked
        self.known: dict[str, Any] = {"rank": 0, "peer": address}
        """What the audit log has of it; the certificate's fingerprint, too, once it was looked at."""
        self.certificate = b""
        """PEM of the certificate that it showed last. In place of the authority's, gRPC then connects to a server of
        this certificate and no other."""

    def look(self) -> str:
        """Look at the certificate where it matters; why one cannot connect now, empty where one can.

        Raises:
            LabelSkewError: it is not the one to connect to.
        """
        if self._tls is None or (self._pin is None and not self._any_revoked):
            return ""
        try:
            self.certificate = shown(self._address, self._tls)
        except ssl.SSLError as error:
            if final := hopeless(str(error)):
                raise LabelSkewError(f"the server at {self._address}: {final}") from None
            return "it closes connections"
        except OSError as error:
            return error.strerror or str(error)
        self.known["fingerprint"] = fingerprint(self.certificate)
        try:
            if self._pin is not None:
                self._pin(self.known["fingerprint"])
        except LabelSkewError as error:
            self.refused(str(error))
            raise
        if why := self.doubt():
            self.refused(why)
        return why

    def doubt(self) -> str:
        """Why nothing more is to be sent to this server or taken from it; empty where there is no reason."""
        if self._revoked is None or not self._any_revoked:
            return ""
        if not self.certificate:
            return "there are revoked certificates now; looking again"
        return self._revoked.barred(self.certificate)

    def refused(self, why: str) -> None:
        """Note it in the audit log."""
        self._audit.note("refused", **self.known, why=why)

    @property
    def _any_revoked(self) -> bool:
        return self._revoked is not None and bool(self._revoked.look().entries)


def shown(address: str, tls: Files) -> bytes:
    """PEM of the certificate that a server shows now.

    Raises:
        OSError: nobody answers, or the certificate is not by the silo's authority (``ssl.SSLError``).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # which gRPC checks
    context.load_verify_locations(cadata=tls.ca.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    if hasattr(os, "memfd_create"):  # Python reads a key from files alone, and this one is to be in none
        key = os.memfd_create("key")
        with contextlib.closing(os.fdopen(key, "wb")) as file:
            file.write(tls.certificate + b"\n" + tls.key)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{key}")
    host, port = addresses.split(address)
    with (
        socket.create_connection((host, port), WAIT_S) as raw,
        context.wrap_socket(raw, server_hostname=host) as connection,
    ):
        return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()


def hopeless(failure: str) -> str:
    """Why trying again is of no use after TLS has failed like this; empty where it may be."""
    if "CERTIFICATE_VERIFY_FAILED" in failure:
        return f"its certificate is not one that this silo's ca.pem vouches for ({failure.rpartition(': ')[2]})"
    if "Hostname Verification" in failure or "is not in peer certificate" in failure:
        return "its certificate is for another host; `labelskew certs new --server HOST` makes one for this"
    if "WRONG_VERSION_NUMBER" in failure:
        return "it does not speak TLS; no comm_args.certs here, or one there, would be right"
    return ""
