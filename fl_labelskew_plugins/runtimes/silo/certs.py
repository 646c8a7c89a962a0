"""Certificates of a federation: its own authority, one certificate for the server, one for each silo.

A peer is who its certificate says: the server's is good for a server alone, silo 3's for a client alone, and its
common name ``silo-3`` is the rank that the server believes. The authority's key makes further certificates and is
needed nowhere else.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes.silo import issuing, keys
from fl_labelskew_plugins.runtimes.silo.keys import Passphrase

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
"""How long the authority lasts at least, so that silos can be added later."""
SOON = timedelta(days=30)
ALL = "all"
"""Stands for the server's and every silo's certificate."""
OLD = "old"
"""Where in the folder certificates are that were renewed."""


@dataclass(frozen=True)
class Files:
    """What one process needs to prove who it is and to check its peers; PEM bytes.

    Args:
        name: ``server`` or ``silo-3``.
        ca: the authority's certificate.
        certificate: this process's own.
        key: its private key, decrypted; no representation shows it.
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
        serial: its number, which is no other's of its authority.
    """

    file: str
    who: str
    hosts: tuple[str, ...]
    until: datetime
    fingerprint: str
    serial: int


def silo_name(rank: int) -> str:
    """The common name of a silo's certificate, and its files' stem."""
    return f"silo-{rank}"


def rank_of(name: str) -> int:
    """The rank in a silo's common name; 0 where it is none."""
    stem, _, digits = name.partition("-")
    fits = stem == "silo" and digits.isascii() and digits.isdigit() and len(digits) < 10 and digits[0] != "0"
    return int(digits) if fits else 0


def new(
    folder: Path,
    silos: int,
    hosts: Sequence[str] = (),
    *,
    days: int = 825,
    add: bool = False,
    encrypt: bool = False,
    passphrase: Passphrase | None = None,
) -> list[str]:
    """Make an authority, the server's certificate and one for each silo.

    Args:
        folder: where they are written; made, for its owner alone, where it is not there.
        silos: their number.
        hosts: names and addresses at which silos reach the server; none: this machine alone, :data:`HOSTS`.
        days: how long server's and silos' certificates hold.
        add: keep what is in ``folder`` and make what is missing, with the authority that is there.
        encrypt: encrypt the keys; those of an authority whose own is encrypted always are.
        passphrase: opens the authority's key, and encrypts.

    Returns:
        Names of the certificates that were made: ``ca``, ``server``, ``silo-1`` and so on.

    Raises:
        LabelSkewError: files are there already, or cannot be written, or a host is neither name nor address, or a
            passphrase is missing or wrong.
    """
    require()
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
            f"--server: {folder / 'server.pem'} exists already; use `labelskew certs renew server` with --server"
        )
    made = [name for name in wanted if name not in present]
    passphrase = passphrase or Passphrase()
    with writing(folder):
        if "ca" in present:
            authority, authority_key = load_authority(folder, passphrase)
            secret = _secret(folder, passphrase, encrypt=encrypt)
        else:
            secret = passphrase.get(folder / "ca.key", new=True) if encrypt else b""
            authority, authority_key = issuing.authority(max(days, AUTHORITY_DAYS))
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True)
            _write(folder, "ca", authority, authority_key, secret)
            made.insert(0, "ca")
        for name in made:
            if name != "ca":
                hosts_of = names if name == "server" else []
                _write(folder, name, *issuing.issue(name, hosts_of, days, authority, authority_key), secret)
    return made


def renew(
    folder: Path,
    names: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    days: int = 825,
    encrypt: bool = False,
    passphrase: Passphrase | None = None,
) -> list[str]:
    """Make certificates anew, each with a new key; the old ones hold until they expire or are revoked.

    Args:
        folder: where the authority and the certificates are.
        names: ``server``, ``silo-3``; or :data:`ALL`.
        hosts: the server's, as for :func:`new`; none: those that it had.
        days: how long they hold.
        encrypt: as for :func:`new`.
        passphrase: as for :func:`new`.

    Returns:
        Names of the certificates that were made.

    Raises:
        LabelSkewError: a name that is not there, or what :func:`new` raises.
    """
    require()
    given = _names(hosts)
    names = named(folder, names)
    if hosts and "server" not in names:
        raise LabelSkewError("--server: is for the server's certificate; name it, or leave --server away")
    passphrase = passphrase or Passphrase()
    authority, authority_key = load_authority(folder, passphrase)
    secret = _secret(folder, passphrase, encrypt=encrypt)
    with writing(folder):
        (folder / OLD).mkdir(mode=0o700, exist_ok=True)
        for name in names:
            path = folder / f"{name}.pem"
            old = load_certificate(path, expired=True)
            keys.write(folder / OLD / f"{name}-{old.serial_number:x}.pem", _bytes(path), 0o644)
            hosts_of = (given or list(_alternatives(old))) if name == "server" else []
            _write(folder, name, *issuing.issue(name, hosts_of, days, authority, authority_key), secret)
    return names


def named(folder: Path, names: Sequence[str]) -> list[str]:
    """Names of certificates in a folder, each once, with :data:`ALL` spelt out.

    Raises:
        LabelSkewError: one is not there, or is the authority's.
    """
    from fl_labelskew_plugins.recipe import mistakes

    there = [path.stem for path in _paths(folder) if path.stem == "server" or rank_of(path.stem)]
    for name in names:
        if name == "ca":
            raise LabelSkewError(
                "ca: the authority can be neither revoked nor renewed; use `labelskew certs new` with another --out, "
                "and give everybody new certificates"
            )
        if name not in (*there, ALL):
            raise LabelSkewError(f"{folder}: {mistakes.unknown(name, [*there, ALL])}")
    return there if ALL in names else list(dict.fromkeys(names))


def read(folder: Path, name: str, passphrase: Passphrase | None = None) -> Files:
    """The three files of ``server`` or ``silo-3``: ``ca.pem`` and the certificate and key of that name.

    Raises:
        LabelSkewError: one is missing, unreadable, expired, or does not belong to the others; or a passphrase is
            missing or wrong.
    """
    require()
    from cryptography.exceptions import InvalidSignature

    ca, certificate = load_certificate(folder / "ca.pem"), load_certificate(folder / f"{name}.pem")
    path = folder / f"{name}.key"
    key = _bytes(path)
    private = keys.load(path, key, passphrase or Passphrase())
    if keys.encrypted(key):
        key = keys.pem(private)
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
    warnings += keys.readable_by_others(path)
    return Files(name, _bytes(folder / "ca.pem"), _bytes(folder / f"{name}.pem"), key, tuple(warnings))


def locked(folder: Path, name: str) -> bool:
    """Whether the key of ``server`` or ``silo-3`` needs a passphrase.

    Raises:
        LabelSkewError: it is missing or unreadable.
    """
    return keys.encrypted(_bytes(folder / f"{name}.key"))


def show(folder: Path) -> tuple[list[Shown], list[str]]:
    """The certificates of a folder, and a line for each that ends soon and each key that others can read.

    Raises:
        LabelSkewError: the folder holds none, or one cannot be read.
    """
    require()
    from cryptography.hazmat.primitives import hashes

    shown: list[Shown] = []
    warnings: list[str] = []
    for path in _paths(folder):
        certificate = load_certificate(path, expired=True)
        hosts = tuple(str(host.value) for host in _alternatives(certificate))
        until, digest = certificate.not_valid_after_utc, certificate.fingerprint(hashes.SHA256()).hex()
        shown.append(Shown(path.name, _who(certificate), hosts, until, digest, certificate.serial_number))
        warnings += _expiring(path, certificate)
    for key in sorted(folder.glob("*.key")):
        warnings += keys.readable_by_others(key)
    return shown, warnings


def _paths(folder: Path) -> list[Path]:
    """The folder's certificates, silos' by rank; raises LabelSkewError where there is none."""
    paths = sorted(folder.glob("*.pem"), key=lambda path: (rank_of(path.stem), path.stem))
    if not paths:
        raise LabelSkewError(f"{folder}: holds no certificate; use a folder that `labelskew certs new` made")
    return paths


def _alternatives(certificate: x509.Certificate) -> Iterable[x509.GeneralName]:
    """Names and addresses of the host that a certificate is for."""
    from cryptography import x509

    with contextlib.suppress(x509.ExtensionNotFound):
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ()


def _secret(folder: Path, passphrase: Passphrase, *, encrypt: bool) -> bytes:
    """What encrypts further keys: the authority's passphrase where its key is encrypted."""
    path = folder / "ca.key"
    locked = keys.encrypted(_bytes(path))
    return passphrase.get(path, new=not locked) if encrypt or locked else b""


def require() -> None:
    """Raise LabelSkewError where cryptography is not installed."""
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


def load_authority(folder: Path, passphrase: Passphrase) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The authority that is there, with its key.

    Raises:
        LabelSkewError: one of its two files is missing, unreadable, expired, or not the other's.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    path = folder / "ca.key"
    if not path.exists():
        raise LabelSkewError(f"{path}: is not there; it is needed for this, where {folder} was made")
    key = keys.load(path, _bytes(path), passphrase)
    certificate = load_certificate(folder / "ca.pem")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise LabelSkewError(f"{path}: is not the key of ca.pem; the two that were made together would be right")
    return certificate, key


def load_certificate(path: Path, *, expired: bool = False) -> x509.Certificate:
    """A certificate that holds today; ``expired``: or held once.

    Raises:
        LabelSkewError: it is missing, unreadable, expired, or not yet good.
    """
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(_bytes(path))
    except ValueError:
        raise LabelSkewError(f"{path}: is no PEM certificate as `labelskew certs new` makes it") from None
    now = datetime.now(timezone.utc)
    if not expired and certificate.not_valid_after_utc < now:
        raise LabelSkewError(
            f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; use `labelskew certs renew` where it was "
            "made, and copy what it makes here"
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


def _write(folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey, secret: bytes) -> None:
    """Key first: a certificate is there only with its key, and a key alone is what an interruption left."""
    from cryptography.hazmat.primitives import serialization

    keys.write(folder / f"{name}.key", keys.pem(key, secret), 0o600)
    keys.write(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of writing to a folder as a line."""
    try:
        yield
    except OSError as error:
        raise LabelSkewError(f"{folder}: cannot be written: {error.strerror}") from None
