"""Certificates of a federation as a process reads them: its authority's, its own, and all of a folder.

A peer is who its certificate says: the server's is good for a server alone, silo 3's for a client alone, and its
common name ``silo-3`` is the rank that the server believes. The authority's key makes further certificates and is
needed nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.x509.oid import NameOID
from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runtimes.silo import keys
from fl_labelskew_plugins.runtimes.silo.keys import Passphrase
from fl_labelskew_plugins.runtimes.silo.names import Files, content, paths

SOON = timedelta(days=30)


@dataclass(frozen=True)
class Shown:
    """A certificate as people look at it.

    Args:
        file: its name in the folder.
        who: its common name.
        hosts: names and addresses that a server's holds for.
        until: its last moment, UTC.
        fingerprint: SHA-256 in hexadecimal.
        serial: its number, which is no other's of its authority.
    """

    file: str
    who: str
    hosts: tuple[str, ...]
    until: datetime
    fingerprint: str
    serial: int


def read(folder: Path, name: str, passphrase: Passphrase | None = None) -> Files:
    """The three files of ``server`` or ``silo-3``: ``ca.pem`` and the certificate and key of that name.

    Raises:
        LabelSkewError: one is missing, unreadable, expired, or does not belong to the others; or a passphrase is
            missing or wrong.
    """
    ca_path, path, key_path = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
    ca, certificate = load_certificate(ca_path), load_certificate(path)
    key = content(key_path)
    private = keys.load(key_path, key, passphrase or Passphrase())
    if keys.encrypted(key):
        key = keys.pem(private)
    if private.public_key() != certificate.public_key():
        raise mistake(key_path, f"is not the key of {name}.pem", "the two that were made together")
    if (who := _who(certificate)) != name:
        raise LabelSkewError(f"{path}: is the certificate of {who}, not of {name}")
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise mistake(path, f"is not by the authority of {ca_path}", "the two that were made together") from None
    warnings = (*_expiring(ca_path, ca), *_expiring(path, certificate), *keys.readable_by_others(key_path))
    return Files(name, content(ca_path), content(path), key, warnings)


def show(folder: Path) -> tuple[list[Shown], list[str]]:
    """The certificates of a folder, and a line for each that ends soon and each key that others can read.

    Raises:
        LabelSkewError: the folder holds none, or one cannot be read.
    """
    shown: list[Shown] = []
    warnings: list[str] = []
    for path in paths(folder):
        certificate = load_certificate(path, expired=True)
        hosts = tuple(str(host.value) for host in alternatives(certificate))
        until, digest = certificate.not_valid_after_utc, certificate.fingerprint(hashes.SHA256()).hex()
        shown.append(Shown(path.name, _who(certificate), hosts, until, digest, certificate.serial_number))
        warnings += _expiring(path, certificate)
    for key in sorted(folder.glob("*.key")):
        warnings += keys.readable_by_others(key)
    return shown, warnings


def load_authority(folder: Path, passphrase: Passphrase) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The authority that is there, with its key.

    Raises:
        LabelSkewError: one of its two files is missing, unreadable, expired, or not the other's.
    """
    path = folder / "ca.key"
    if not path.exists():
        raise mistake(path, "is not there", f"the machine on which {folder} was made")
    key = keys.load(path, content(path), passphrase)
    certificate = load_certificate(folder / "ca.pem")
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise mistake(path, "is not the key of ca.pem", "the two that were made together")
    return certificate, key


def load_certificate(path: Path, *, expired: bool = False) -> x509.Certificate:
    """A certificate that holds today; ``expired``: or held once.

    Raises:
        LabelSkewError: it is missing, unreadable, expired, or not yet good.
    """
    try:
        certificate = x509.load_pem_x509_certificate(content(path))
    except ValueError:
        raise LabelSkewError(f"{path}: is no PEM certificate as `labelskew certs new` makes it") from None
    now = datetime.now(timezone.utc)
    if not expired and certificate.not_valid_after_utc < now:
        what = f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
        raise mistake(path, what, "`labelskew certs renew` where it was made, and copy what it makes here")
    if not expired and certificate.not_valid_before_utc > now:
        raise LabelSkewError(
            f"{path}: holds from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only; is this machine's clock "
            "right?"
        )
    return certificate


def alternatives(certificate: x509.Certificate) -> Iterable[x509.GeneralName]:
    """Names and addresses of the host that a certificate is for."""
    with contextlib.suppress(x509.ExtensionNotFound):
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ()


def _who(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return clean(names[0].value) if len(names) == 1 else "nobody"


def _expiring(path: Path, certificate: x509.Certificate) -> Iterator[str]:
    until = certificate.not_valid_after_utc
    left = until - datetime.now(timezone.utc)
    if left < timedelta(0):
        yield f"{path}: expired on {until:%Y-%m-%d}"
    elif left < SOON:
        yield f"{path}: expires on {until:%Y-%m-%d}, in {left.days} days"
