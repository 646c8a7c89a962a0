"""Certificates of a federation (X.509, ECDSA P-256): read, made, renewed and revoked.

A peer is who its certificate says: the server's is good for a server alone, silo 3's for a client alone, and its
common name ``silo-3`` is the rank that the server believes. The authority's key makes further certificates and is
needed nowhere else. ``revoked.crl``, beside each process's certificate, is a certificate revocation list (RFC 5280)
that the authority has signed, with a number that only grows. It has no end: what a process does not know is only what
nobody has copied to it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import read_bytes
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes.silo import keys
from fl_labelskew_plugins.runtimes.silo.keys import OLD, REVOKED, Files, Passphrase, content, named, silo_name

SOON = timedelta(days=30)


HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
"""How long the authority lasts at least, so that silos can be added later."""
Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
"""A certificate and its key."""
DAMAGED = (
    *(ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion),
    *(x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType),
)
"""Errors of certificates and lists that are damaged, or not by the authority they are checked against."""
SHOWN = ("file", "who", "until", "revoked", "fingerprint", "hosts")
"""Columns of :func:`show`."""


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
    except DAMAGED:
        raise mistake(path, f"is not by the authority of {ca_path}", "the two that were made together") from None
    warnings = (*_expiring(ca_path, ca), *_expiring(path, certificate), *keys.readable_by_others(key_path))
    return Files(name, content(ca_path), content(path), key, warnings)


def show(folder: Path) -> tuple[list[list[str]], Listed, list[str]]:
    """The certificates of a folder as rows of :data:`SHOWN`, the list of revoked ones, and a line for each that ends
    soon and each key that others can read.

    Raises:
        LabelSkewError: the folder holds none, or one cannot be read; or as :func:`revoked`.
    """
    rows: list[list[str]] = []
    warnings: list[str] = []
    files = [(path, load_certificate(path, expired=True)) for path in keys.paths(folder)]
    path = folder / REVOKED
    listed = revoked(path, load_certificate(folder / "ca.pem", expired=True)) if path.exists() else Listed()
    for path, certificate in files:
        until, serial = certificate.not_valid_after_utc, certificate.serial_number
        since = f"{listed.entries[serial]:%Y-%m-%d}" if serial in listed.entries else "-"
        digest = certificate.fingerprint(hashes.SHA256()).hex()
        hosts = " ".join(str(host.value) for host in _alternatives(certificate))
        rows.append([path.name, _who(certificate), f"{until:%Y-%m-%d}", since, digest, hosts or "-"])
        warnings += _expiring(path, certificate)
    for key in sorted(folder.glob("*.key")):
        warnings += keys.readable_by_others(key)
    return rows, listed, warnings


def load_authority(folder: Path, passphrase: Passphrase) -> Issued:
    """The authority that is there, with its key.

    Raises:
        LabelSkewError: one of its two files is missing, unreadable, expired, or not the other's.
    """
    path = folder / "ca.key"
    if not path.exists():
        raise mistake(path, "is not there", f"the machine on which {folder} was made")
    key = keys.load(path, content(path), passphrase)
    certificate = load_certificate(folder / "ca.pem")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise mistake(path, "is not the key of ca.pem", "the two that were made together")
    return certificate, key


def load_certificate(path: Path, *, expired: bool = False) -> x509.Certificate:
    """A certificate that holds today; ``expired``: or held once.

    Raises:
        LabelSkewError: it is missing, unreadable, expired, or not yet good.
    """
    try:
        certificate = x509.load_pem_x509_certificate(content(path))
        _ = certificate.subject, certificate.extensions, certificate.public_key()  # parsed only here
    except DAMAGED:
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


def _alternatives(certificate: x509.Certificate) -> Iterable[x509.GeneralName]:
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


def new(
    folder: Path,
    silos: int,
    hosts: Sequence[str] = (),
    *,
    days: int = 825,
    add: bool = False,
    encrypt: bool = False,
) -> list[str]:
    """Make an authority, the server's certificate and one for each silo.

    Args:
        folder: where they are written; made, for its owner alone, where it is not there.
        silos: their number.
        hosts: names and addresses at which silos reach the server; none: this machine alone, :data:`HOSTS`.
        days: how long server's and silos' certificates hold.
        add: keep what is in ``folder`` and make what is missing, with the authority that is there.
        encrypt: encrypt the keys; those of an authority whose own is encrypted always are.

    Returns:
        Names of the certificates that were made: ``ca``, ``server``, ``silo-1`` and so on.

    Raises:
        LabelSkewError: files are there already, or cannot be written, or a host is neither name nor address, or a
            passphrase is missing or wrong.
    """
    names = _names(hosts or HOSTS)
    wanted = ["ca", "server", *(silo_name(rank) for rank in range(1, silos + 1))]
    files = [folder / f"{name}.{ending}" for name in wanted for ending in ("pem", "key")]
    if not add and (there := [path for path in files if path.exists()]):
        raise mistake(there[0], "exists already", "--add, which keeps what is there, or another --out")
    missing = [name for name in wanted if not (folder / f"{name}.pem").exists()]
    if "ca" in missing and missing != wanted:
        raise mistake(folder / "ca.pem", "is not there", f"--add where {folder} was made")
    if hosts and "server" not in missing:
        raise mistake(
            "--server", f"{folder / 'server.pem'} exists already", "`labelskew certs renew server` with --server"
        )
    passphrase = Passphrase()
    with keys.writing(folder):
        if "ca" in missing:
            secret = passphrase.get(folder / "ca.key", new=True) if encrypt else b""
            # A name of its own: two authorities of one name are confused with each other instead of told apart.
            authority = _issued(f"labelskew authority {secrets.token_hex(4)}", max(days, AUTHORITY_DAYS))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(folder, "ca", authority, secret)
        else:
            authority = load_authority(folder, passphrase)
            secret = _secret(folder, passphrase, encrypt=encrypt)
        for name in missing:
            if name != "ca":
                _write(folder, name, _issued(name, days, authority, names if name == "server" else ()), secret)
    return missing


def renew(
    folder: Path,
    names: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    days: int = 825,
    encrypt: bool = False,
) -> list[str]:
    """Make certificates anew, each with a new key; the old ones hold until they expire or are revoked.

    ``names`` are ``server``, ``silo-3`` or :data:`.keys.ALL`; all else is as for :func:`new`, but without ``hosts``
    the server keeps those that it had.

    Returns:
        Names of the certificates that were made.

    Raises:
        LabelSkewError: a name that is not there, or what :func:`new` raises.
    """
    given = _names(hosts)
    names = named(folder, names)
    if hosts and "server" not in names:
        raise LabelSkewError("--server: is for the server's certificate; name it, or leave --server away")
    passphrase = Passphrase()
    authority = load_authority(folder, passphrase)
    secret = _secret(folder, passphrase, encrypt=encrypt)
    with keys.writing(folder):
        (folder / OLD).mkdir(mode=0o700, exist_ok=True)
        for name in names:
            path = folder / f"{name}.pem"
            old = load_certificate(path, expired=True)
            keys.write(folder / OLD / f"{name}-{old.serial_number:x}.pem", content(path), 0o644)
            hosts_of = (given or list(_alternatives(old))) if name == "server" else []
            _write(folder, name, _issued(name, days, authority, hosts_of), secret)
    return names


def _issued(name: str, days: int, authority: Issued | None = None, hosts: Sequence[x509.GeneralName] = ()) -> Issued:
    """A certificate that proves one thing, to be this server or to be this silo; without an authority, one of those.

    It holds no longer than its authority. ``hosts``: names and addresses of the server; none for a silo.
    """
    key, ca = ec.generate_private_key(ec.SECP256R1()), authority is None
    now, subject = datetime.now(timezone.utc), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    until, issuer, signer = now + timedelta(days=days), subject, key
    if authority is not None:
        issuer, signer = authority[0].subject, authority[1]
        until = min(until, authority[0].not_valid_after_utc)
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= {"digital_signature": not ca, "key_cert_sign": ca, "crl_sign": ca}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # a silo's clock may be behind
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), critical=True)
    )
    if not ca:
        use = ExtendedKeyUsageOID.SERVER_AUTH if name == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True).add_extension(by, critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, hashes.SHA256()), key


def _secret(folder: Path, passphrase: Passphrase, *, encrypt: bool) -> bytes:
    """What encrypts further keys: the authority's passphrase where its key is encrypted."""
    path = folder / "ca.key"
    locked = keys.encrypted(content(path))
    return passphrase.get(path, new=not locked) if encrypt or locked else b""


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
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


def _write(folder: Path, name: str, issued: Issued, secret: bytes) -> None:
    """Key first: a certificate is there only with its key, and a key alone is what an interruption left."""
    certificate, key = issued
    keys.write(folder / f"{name}.key", keys.pem(key, secret), 0o600)
    keys.write(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


@dataclass(frozen=True)
class Listed:
    """A list: since when (UTC) certificates are revoked, by their serial numbers; number 0 if there is no list."""

    number: int = 0
    entries: Mapping[int, datetime] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"list {self.number} ({counted(len(self.entries), 'revoked certificate')})"

    def entry(self, serial: int) -> str:
        """The end of a certificate that is on the list, for messages."""
        return f"revoked on {self.entries[serial]:%Y-%m-%d %H:%M} UTC"


def revoke(folder: Path, names: Sequence[str]) -> tuple[Listed, int]:
    """Put certificates on the list of a folder, with the authority that is there.

    Args:
        folder: where the authority and the certificates are.
        names: ``server``, ``silo-3``: all that were made for them, renewed ones included; or :data:`.keys.ALL`.

    Returns:
        The list, and how many certificates are new on it; where none is, nothing is written.

    Raises:
        LabelSkewError: a name that is not there, an authority or a list that cannot be used, or nothing can be written.
    """
    names = named(folder, names)
    authority, key = load_authority(folder, Passphrase())
    before = revoked(folder / REVOKED, authority)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    paths = [path for name in names for path in (folder / f"{name}.pem", *(folder / OLD).glob(f"{name}-*.pem"))]
    serials = {load_certificate(path, expired=True).serial_number for path in paths}
    added = dict.fromkeys(serials - before.entries.keys(), now)
    if not added:
        return before, 0
    listed = Listed(before.number + 1, {**before.entries, **added})
    with keys.writing(folder):
        keys.write(folder / REVOKED, _signed(listed, authority, key), 0o644)
    return listed, len(added)


def revoked(path: Path, authority: x509.Certificate) -> Listed:
    """The list in a file; an empty one where the file is not there.

    Raises:
        LabelSkewError: it is none, or not this authority's.
    """
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return Listed()
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None
    copy = "copy it again from where the certificates were made"
    try:
        crl = x509.load_pem_x509_crl(content)
        signed = crl.issuer == authority.subject and crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = {line.serial_number: line.revocation_date_utc for line in crl}
    except DAMAGED:
        raise LabelSkewError(f"{path}: is no list of revoked certificates, or a damaged one; {copy}") from None
    if not signed:
        raise LabelSkewError(f"{path}: is not signed by the authority of ca.pem, or was changed; {copy}")
    return Listed(number, entries)


class Revocations:
    """The list beside a process's certificate, read again whenever the file changes; usable from any thread.

    Args:
        folder: of the certificates.
        tls: this process's own.
        kept: where the process keeps the newest list that it has seen, so that it takes no older one after a restart.
        say: told in a line which list counts, now and whenever there is a newer one.
        warn: told in a line what is wrong with the file, or that this process's own certificate is on it.

    Raises:
        LabelSkewError: the list cannot be trusted or is older than one that was seen, or this certificate is on it.
    """

    def __init__(
        self,
        folder: Path,
        tls: Files,
        *,
        kept: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
        warn: Callable[[str], None] = log.warn,
    ) -> None:
        self._path, self._kept, self._say, self._warn = folder / REVOKED, kept, say, warn
        self._name = folder / f"{tls.name}.pem"
        self._authority = x509.load_pem_x509_certificate(tls.ca)
        self._serial = x509.load_pem_x509_certificate(tls.certificate).serial_number
        self._lock = threading.RLock()
        self._seen = self._state()
        before = Listed()
        if kept is not None:
            with contextlib.suppress(LabelSkewError):  # of another authority
                before = revoked(kept, self._authority)
        self._listed = self._newer(before)
        if self._serial in self._listed.entries:
            raise LabelSkewError(self._ended)
        if self._listed.number:
            self._tell()

    def keep(self) -> None:
        """Write down which list was seen, from now on; the folder has to be there."""
        with self._lock:
            if self._kept is not None and self._kept.parent.is_dir() and self._listed.number:
                with contextlib.suppress(OSError):  # a restart would take an older list, no more
                    keys.write(self._kept, read_bytes(self._path), 0o644)

    def look(self) -> Listed:
        """The list that counts now: the newest that was good."""
        with self._lock:
            if (state := self._state()) == self._seen:
                return self._listed
            self._seen = state
            try:
                newer = self._newer(self._listed)
            except LabelSkewError as error:
                self._warn(f"{error}; the last good one, {self._listed}, still counts")
                return self._listed
            if newer.number != self._listed.number:
                self._listed = newer
                self.keep()
                self._tell()
                if self._serial in newer.entries:
                    self._warn(self._ended)
            return self._listed

    def barred(self, pem: bytes) -> str:
        """Why a certificate of the authority does not count, as a sentence's predicate; empty where it does."""
        listed = self.look()
        serial = x509.load_pem_x509_certificate(pem).serial_number if listed.entries else 0
        return f"its certificate {keys.fingerprint(pem)} was {listed.entry(serial)}" if serial in listed.entries else ""

    def _tell(self) -> None:
        self._say(f"{self._listed} counts from now on")

    def _newer(self, before: Listed) -> Listed:
        listed = revoked(self._path, self._authority)
        if listed.number <= before.number and listed != before:
            what = f"list {listed.number} is not newer than" if listed.number else "is not there any more, after"
            raise LabelSkewError(f"{self._path}: {what} list {before.number}, which was seen here; copy the newest one")
        return listed

    @property
    def _ended(self) -> str:
        renew = f"use `labelskew certs renew {self._name.stem}` where it was made, and copy what it makes here"
        return f"{self._name}: was {self._listed.entry(self._serial)}; {renew}"

    def _state(self) -> tuple[int, ...]:
        try:
            state = os.stat(self._path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (error.errno or 0,)
        return state.st_mtime_ns, state.st_size, state.st_ino


def _signed(listed: Listed, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(datetime.now(timezone.utc))
        .next_update(authority.not_valid_after_utc)
        .add_extension(x509.CRLNumber(listed.number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for serial, since in listed.entries.items():
        line = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
        builder = builder.add_revoked_certificate(line.build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
