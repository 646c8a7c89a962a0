"""Certificates of a federation: its own authority, one certificate for the server, one for each silo.

A peer is who its certificate says: the server's is good for a server alone, silo 3's for a client alone, and its
common name ``silo-3`` is the rank that the server believes. The authority's key makes further certificates and is
needed nowhere else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins import addresses
from fl_labelskew_plugins.words import clean

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
"""How long the authority lasts at least, so that silos can be added later."""
SOON = timedelta(days=30)


@dataclass(frozen=True)
class Files:
    """What one process needs to prove who it is and to check its peers; PEM bytes.

    Args:
        name: ``server`` or ``silo-3``.
        ca: the authority's certificate.
        certificate: this process's own.
        key: its private key; no representation shows it.
        warnings: a line for each thing that is not yet wrong.
    """

    name: str
    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A certificate as people look at it.

    Args:
        file: its name in the folder.
        who: its common name.
        hosts: names and addresses that a server's holds for.
        until: its last moment, UTC.
        fingerprint: SHA-256 in hexadecimal.
    """

    file: str
    who: str
    hosts: tuple[str, ...]
    until: datetime
    fingerprint: str


def silo_name(rank: int) -> str:
    """The common name of a silo's certificate, and its files' stem."""
    return f"silo-{rank}"


def rank_of(name: str) -> int:
    """The rank in a silo's common name; 0 where it is none."""
    stem, _, digits = name.partition("-")
    fits = stem == "silo" and digits.isascii() and digits.isdigit() and len(digits) < 10 and digits[0] != "0"
    return int(digits) if fits else 0


def new(folder: Path, silos: int, hosts: Sequence[str] = (), *, days: int = 825, add: bool = False) -> list[str]:
    """Make an authority, the server's certificate and one for each silo.

    Args:
        folder: where they are written; made, for its owner alone, where it is not there.
        silos: their number.
        hosts: names and addresses at which silos reach the server; none: this machine alone, :data:`HOSTS`.
        days: how long server's and silos' certificates hold.
        add: keep what is in ``folder`` and make what is missing, with the authority that is there.

    Returns:
        Names of the certificates that were made: ``ca``, ``server``, ``silo-1`` and so on.

    Raises:
        LabelSkewError: files are there already, or cannot be written, or a host is neither name nor address.
    """
    _require()
    names = _names(hosts or HOSTS)
    wanted = ["server", *(silo_name(rank) for rank in range(1, silos + 1))]
    files = [folder / f"{name}.{ending}" for name in ["ca", *wanted] for ending in ("pem", "key")]
    if not add and (there := [path for path in files if path.exists()]):
        raise LabelSkewError(
            f"{there[0]}: exists already; --add, which keeps what is there, or another --out would be right"
        )
    present = [name for name in ["ca", *wanted] if (folder / f"{name}.pem").exists()]
    if present and "ca" not in present:
        raise LabelSkewError(f"{folder / 'ca.pem'}: is not there; --add goes on where {folder} was made")
    if hosts and "server" in present:
        raise LabelSkewError(
            f"--server: {folder / 'server.pem'} exists already; removing it and server.key, so that they are made "
            "anew, would be right"
        )
    made = [name for name in wanted if name not in present]
    with _writing(folder):
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
        if "ca" in present:
            authority, authority_key = _authority(folder)
        else:
            authority, authority_key = _new_authority(max(days, AUTHORITY_DAYS))
            _write(folder, "ca", authority, authority_key)
            made.insert(0, "ca")
        for name in made:
            if name != "ca":
                _write(folder, name, *_issue(name, names if name == "server" else [], days, authority, authority_key))
    return made


def read(folder: Path, name: str) -> Files:
    """The three files of ``server`` or ``silo-3``: ``ca.pem`` and the certificate and key of that name.

    Raises:
        LabelSkewError: one is missing, unreadable, expired, or does not belong to the others.
    """
    _require()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    ca, certificate = _certificate(folder / "ca.pem"), _certificate(folder / f"{name}.pem")
    path = folder / f"{name}.key"
    key = _bytes(path)
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError):  # TypeError: it asks for a password
        raise LabelSkewError(f"{path}: is no private key as `labelskew certs new` makes it") from None
    if private.public_key() != certificate.public_key():
        raise LabelSkewError(f"{path}: is not the key of {name}.pem; the two that were made together would be right")
    if _who(certificate) != name:
        raise LabelSkewError(f"{folder / name}.pem: is the certificate of {_who(certificate)}, not of {name}")
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise LabelSkewError(
            f"{folder / name}.pem: is not by the authority of {folder / 'ca.pem'}; the two that were made together "
            "would be right"
        ) from None
    warnings = [*_expiring(folder / "ca.pem", ca), *_expiring(folder / f"{name}.pem", certificate)]
    warnings += _readable_by_others(path)
    return Files(name, _bytes(folder / "ca.pem"), _bytes(folder / f"{name}.pem"), key, tuple(warnings))


def show(folder: Path) -> tuple[list[Shown], list[str]]:
    """The certificates of a folder, and a line for each that ends soon and each key that others can read.

    Raises:
        LabelSkewError: the folder holds none, or one cannot be read.
    """
    _require()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    paths = sorted(folder.glob("*.pem"), key=lambda path: (rank_of(path.stem), path.stem))
    if not paths:
        raise LabelSkewError(f"{folder}: holds no certificate; a folder that `labelskew certs new` made would be right")
    shown: list[Shown] = []
    warnings: list[str] = []
    for path in paths:
        certificate = _certificate(path, expired=True)
        hosts: tuple[str, ...] = ()
        with contextlib.suppress(x509.ExtensionNotFound):
            alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            hosts = tuple(str(alternative.value) for alternative in alternatives)
        digest = certificate.fingerprint(hashes.SHA256()).hex()
        shown.append(Shown(path.name, _who(certificate), hosts, certificate.not_valid_after_utc, digest))
        warnings += _expiring(path, certificate)
    for key in sorted(folder.glob("*.key")):
        warnings += _readable_by_others(key)
    return shown, warnings


def _require() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise LabelSkewError(
            "certificates need cryptography, which is not installed; pip install 'fl-labelskew-plugins[grpc]' "
            "would be right"
        ) from None


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            try:
                addresses.split(f"{host}:1")
            except ValueError:
                raise LabelSkewError(
                    f"--server: {host!r} is neither a host's name nor an IP address, such as fl.example.org or "
                    "192.0.2.1"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _new_authority(days: int) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own: two authorities of one name are confused with each other instead of told apart.
    name = _named(f"labelskew authority {secrets.token_hex(4)}")
    builder = (
        _builder(key, name, name, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


def _issue(
    name: str,
    hosts: list[x509.GeneralName],
    days: int,
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """A certificate that proves one thing: to be this server, or to be this silo."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    use = ExtendedKeyUsageOID.SERVER_AUTH if name == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(key, _named(name), authority.subject, days, authority.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(authority_key, hashes.SHA256()), key


def _builder(
    key: EllipticCurvePrivateKey, name: x509.Name, issuer: x509.Name, days: int, latest: datetime | None = None
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(timezone.utc)
    until = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # a silo's clock may be behind
        .not_valid_after(until if latest is None else min(until, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The authority that is there, with its key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    path = folder / "ca.key"
    if not path.exists():
        raise LabelSkewError(f"{path}: is not there; adding needs the authority's key, where {folder} was made")
    try:
        key = serialization.load_pem_private_key(_bytes(path), None)
    except (ValueError, TypeError):
        key = None
    certificate = _certificate(folder / "ca.pem")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise LabelSkewError(f"{path}: is not the key of ca.pem; the two that were made together would be right")
    return certificate, key


def _certificate(path: Path, *, expired: bool = False) -> x509.Certificate:
    """A certificate that holds today; ``expired``: or held once."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(_bytes(path))
    except ValueError:
        raise LabelSkewError(f"{path}: is no PEM certificate as `labelskew certs new` makes it") from None
    now = datetime.now(timezone.utc)
    if not expired and certificate.not_valid_after_utc < now:
        raise LabelSkewError(
            f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; a new one would be right: remove it and "
            "its key where it was made, then `labelskew certs new --add`"
        )
    if not expired and certificate.not_valid_before_utc > now:
        raise LabelSkewError(
            f"{path}: holds from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only; is this machine's clock "
            "right?"
        )
    return certificate


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LabelSkewError(
            f"{path}: is not there; `labelskew certs new` makes it, and it is to be copied here"
        ) from None
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None


def _who(certificate: x509.Certificate) -> str:
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return clean(names[0].value) if len(names) == 1 else "nobody"


def _expiring(path: Path, certificate: x509.Certificate) -> Iterator[str]:
    until = certificate.not_valid_after_utc
    left = until - datetime.now(timezone.utc)
    if left < timedelta(0):
        yield f"{path}: expired on {until:%Y-%m-%d}"
    elif left < SOON:
        yield f"{path}: expires on {until:%Y-%m-%d}, in {left.days} days"


def _readable_by_others(path: Path) -> Iterator[str]:
    if path.stat().st_mode & 0o077:
        yield f"{path}: can be read by others; chmod 600 would be right"


def _write(folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    """Key first: a certificate is there only with its key, and a key alone is what an interruption left."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    _write_atomic(folder / f"{name}.key", pem, 0o600)
    _write_atomic(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _write_atomic(path: Path, content: bytes, mode: int) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        # Never, not for a moment, is a key in a file that others can open.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabelSkewError(f"{folder}: cannot be written: {error.strerror}") from None
