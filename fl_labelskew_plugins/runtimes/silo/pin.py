"""The server's certificate, looked at before gRPC connects: gRPC tells a client nothing of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl

from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes.silo.names import Files

WAIT_S = 10.0


def shown(address: str, tls: Files) -> tuple[str, bytes]:
    """Fingerprint and PEM of the certificate that a server shows now.

    With that PEM in place of the authority's, gRPC then connects to a server of this certificate and no other.

    Args:
        address: ``host:port``.
        tls: this silo's certificate, which the server asks for.

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
        der = connection.getpeercert(binary_form=True) or b""
    return hashlib.sha256(der).hexdigest(), ssl.DER_cert_to_PEM_cert(der).encode()
