"""Create, read, renew and revoke the certificates of a federation, see docs/certificates.md."""

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
from fl_labelskew_plugins.machine.files import read_bytes, writing
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes.silo import keys
from fl_labelskew_plugins.runtimes.silo.keys import OLD, REVOKED, Files, Passphrase, content, named, silo_name

EXPIRY_NOTICE = timedelta(days=30)
HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650  # at least, so that silos can be added later
Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
DAMAGED = (
    *(ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion),
    *(x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType),
)
SHOWN = ("file", "owner", "until", "revoked", "fingerprint", "hosts")


def read(folder: Path, name: str, passphrase: Passphrase | None = None) -> Files:
    """Read the files of a process. Raises LabelSkewError for invalid or expired ones, or a wrong passphrase."""
    ca_path, path, key_path = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
    ca, certificate = load_certificate(ca_path), load_certificate(path)
    key = content(key_path)
    private = keys.load(key_path, key, passphrase or Passphrase())
    if keys.encrypted(key):
        key = keys.pem(private)
    if private.public_key() != certificate.public_key():
        raise mistake(key_path, f"is not the key of {name}.pem", "the pair that was created together")
    if (owner := _common_name(certificate)) != name:
        raise LabelSkewError(f"{path}: is the certificate of {owner}, not of {name}")
    try:
        certificate.verify_directly_issued_by(ca)
    except DAMAGED:
        what = f"was not issued by the authority of {ca_path}"
        raise mistake(path, what, "the pair that was created together") from None
    warnings = (*_expiring(ca_path, ca), *_expiring(path, certificate), *keys.readable_by_others(key_path))
    return Files(name, content(ca_path), content(path), key, warnings)


def show(folder: Path) -> tuple[list[list[str]], RevocationList, list[str]]:
    """Rows with the columns :data:`SHOWN`, the revocation list, and warnings."""
    rows: list[list[str]] = []
    warnings: list[str] = []
    files = [(path, load_certificate(path, expired=True)) for path in keys.paths(folder)]
    path = folder / REVOKED
    listed = revoked(path, load_certificate(folder / "ca.pem", expired=True)) if path.exists() else RevocationList()
    for path, certificate in files:
        until, since = certificate.not_valid_after_utc, listed.entries.get(certificate.serial_number)
        digest = certificate.fingerprint(hashes.SHA256()).hex()
        hosts = " ".join(str(host.value) for host in _hosts(certificate))
        dates = f"{until:%Y-%m-%d}", f"{since:%Y-%m-%d}" if since else "-"
        rows.append([path.name, _common_name(certificate), *dates, digest, hosts or "-"])
        warnings += _expiring(path, certificate)
    for key in sorted(folder.glob("*.key")):
        warnings += keys.readable_by_others(key)
    return rows, listed, warnings


def load_authority(folder: Path, passphrase: Passphrase) -> Issued:
    """Load the authority; raises as :func:`read`."""
    path = folder / "ca.key"
    if not path.exists():
        raise mistake(path, "does not exist", f"the machine on which {folder} was created")
    key = keys.load(path, content(path), passphrase)
    certificate = load_certificate(folder / "ca.pem")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise mistake(path, "is not the key of ca.pem", "the pair that was created together")
    return certificate, key


def load_certificate(path: Path, *, expired: bool = False) -> x509.Certificate:
    """Load a certificate. Raises LabelSkewError if it is unusable or, unless ``expired``, not valid now."""
    try:
        certificate = x509.load_pem_x509_certificate(content(path))
        _ = certificate.subject, certificate.extensions, certificate.public_key()  # parsed only here
    except DAMAGED:
        raise LabelSkewError(f"{path}: is not a PEM certificate from `labelskew certs new`") from None
    if expired:
        return certificate
    now, since, until = datetime.now(timezone.utc), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if until < now:
        use = "`labelskew certs renew` where it was created, and copy the new files here"
        raise mistake(path, f"expired on {until:%Y-%m-%d}", use)
    if since > now:
        raise LabelSkewError(f"{path}: is not valid before {since:%Y-%m-%d %H:%M} UTC; check this machine's clock")
    return certificate


def _hosts(certificate: x509.Certificate) -> Iterable[x509.GeneralName]:
    with contextlib.suppress(x509.ExtensionNotFound):
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ()


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return clean(names[0].value) if len(names) == 1 else "nobody"


def _expiring(path: Path, certificate: x509.Certificate) -> Iterator[str]:
    until = certificate.not_valid_after_utc
    left = until - datetime.now(timezone.utc)
    if left < timedelta(0):
        yield f"{path}: expired on {until:%Y-%m-%d}"
    elif left < EXPIRY_NOTICE:
        yield f"{path}: expires on {until:%Y-%m-%d}, in {left.days} days"


def new(
    folder: Path, silos: int, hosts: Sequence[str] = (), *, days: int = 825, add: bool = False, encrypt: bool = False
) -> list[str]:
    """Create the certificates of the authority and all processes; return their names.

    ``hosts``: of the server. ``days``: lifetime, except the authority's. ``add``: create only missing files.
    ``encrypt``: implied if the authority's key is encrypted. Raises LabelSkewError.
    """
    names = _names(hosts or HOSTS)
    wanted = ["ca", "server", *(silo_name(rank) for rank in range(1, silos + 1))]
    files = [folder / f"{name}.{ending}" for name in wanted for ending in ("pem", "key")]
    if not add and (existing := [path for path in files if path.exists()]):
        raise mistake(existing[0], "exists already", "--add to keep existing files, or another --out")
    missing = [name for name in wanted if not (folder / f"{name}.pem").exists()]
    if "ca" in missing and missing != wanted:
        raise mistake(folder / "ca.pem", "does not exist", f"--add where {folder} was created")
    if hosts and "server" not in missing:
        what = f"{folder / 'server.pem'} exists already"
        raise mistake("--server", what, "`labelskew certs renew server` with --server")
    passphrase = Passphrase()
    with writing(folder):
        if "ca" in missing:
            secret = passphrase.get(folder / "ca.key", new=True) if encrypt else b""
            # authorities need distinct names, or certificates of one would be checked against the other
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
    folder: Path, names: Sequence[str], hosts: Sequence[str] = (), *, days: int = 825, encrypt: bool = False
) -> list[str]:
    """Renew certificates and their keys; without ``hosts``, the server keeps its own. Raises LabelSkewError."""
    given = _names(hosts)
    names = named(folder, names)
    if hosts and "server" not in names:
        what = "applies only to the server's certificate; renew `server` too, or remove --server"
        raise LabelSkewError(f"--server: {what}")
    passphrase = Passphrase()
    authority = load_authority(folder, passphrase)
    secret = _secret(folder, passphrase, encrypt=encrypt)
    with writing(folder):
        (folder / OLD).mkdir(mode=0o700, exist_ok=True)
        for name in names:
            path = folder / f"{name}.pem"
            old = load_certificate(path, expired=True)
            keys.write(folder / OLD / f"{name}-{old.serial_number:x}.pem", content(path), 0o644)
            hosts_of_server = (given or list(_hosts(old))) if name == "server" else []
            _write(folder, name, _issued(name, days, authority, hosts_of_server), secret)
    return names


def _issued(name: str, days: int, authority: Issued | None = None, hosts: Sequence[x509.GeneralName] = ()) -> Issued:
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
        .not_valid_before(now - timedelta(hours=1))  # a silo's clock may be slow
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
                what = f"{host!r} is not a host name or an IP address such as fl.example.org or 192.0.2.1"
                raise LabelSkewError(f"--server: {what}") from None
            names.append(x509.DNSName(host))
    return names


def _write(folder: Path, name: str, issued: Issued, secret: bytes) -> None:
    certificate, key = issued
    keys.write(folder / f"{name}.key", keys.pem(key, secret), 0o600)  # first: no certificate lacks its key
    keys.write(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


@dataclass(frozen=True)
class RevocationList:
    """Times of revocation (UTC) by serial number; ``number`` is 0 without a list."""

    number: int = 0
    entries: Mapping[int, datetime] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"list {self.number} ({counted(len(self.entries), 'revoked certificate')})"

    def entry(self, serial: int) -> str:
        """Time of a revocation, for messages."""
        return f"revoked on {self.entries[serial]:%Y-%m-%d %H:%M} UTC"


def revoke(folder: Path, names: Sequence[str]) -> tuple[RevocationList, int]:
    """Revoke certificates, also earlier ones; return the list and its number of new entries. Raises LabelSkewError."""
    names = named(folder, names)
    authority, key = load_authority(folder, Passphrase())
    before = revoked(folder / REVOKED, authority)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    paths = [path for name in names for path in (folder / f"{name}.pem", *(folder / OLD).glob(f"{name}-*.pem"))]
    serials = {load_certificate(path, expired=True).serial_number for path in paths}
    added = dict.fromkeys(serials - before.entries.keys(), now)
    if not added:
        return before, 0
    listed = RevocationList(before.number + 1, {**before.entries, **added})
    with writing(folder):
        keys.write(folder / REVOKED, _signed(listed, authority, key), 0o644)
    return listed, len(added)


def revoked(path: Path, authority: x509.Certificate) -> RevocationList:
    """Read a list, empty without a file. Raises LabelSkewError if it is invalid."""
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return RevocationList()
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None
    copy = "copy it again from where the certificates were created"
    try:
        crl = x509.load_pem_x509_crl(content)
        signed = crl.issuer == authority.subject and crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = {line.serial_number: line.revocation_date_utc for line in crl}
    except DAMAGED:
        raise LabelSkewError(f"{path}: is damaged or not a list of revoked certificates; {copy}") from None
    if not signed:
        raise LabelSkewError(f"{path}: is not signed by the authority of ca.pem, or was changed; {copy}")
    return RevocationList(number, entries)


class Revocations:
    """A process's revocation list, read again if its file changes; thread-safe.

    ``copy``: file for the newest list; a restarted process accepts no older one. Raises LabelSkewError if the list is
    invalid or too old, or this process's certificate is revoked.
    """

    def __init__(
        self,
        folder: Path,
        tls: Files,
        *,
        copy: Path | None = None,
        print_line: Callable[[str], None] = lambda line: None,
        warn: Callable[[str], None] = log.warn,
    ) -> None:
        self._path, self._copy, self._print_line, self._warn = folder / REVOKED, copy, print_line, warn
        self._name = folder / f"{tls.name}.pem"
        self._authority = x509.load_pem_x509_certificate(tls.ca)
        self._serial = x509.load_pem_x509_certificate(tls.certificate).serial_number
        self._lock = threading.RLock()
        self._seen = self._state()
        before = RevocationList()
        if copy is not None:
            with contextlib.suppress(LabelSkewError):  # another authority's list
                before = revoked(copy, self._authority)
        self._listed = self._newer(before)
        if self._serial in self._listed.entries:
            raise LabelSkewError(self._own_revoked)
        if self._listed.number:
            self._print_line(f"{self._listed} applies from now on")

    def save_copy(self) -> None:
        """Copy the list, if the copy's folder exists."""
        with self._lock:
            if self._copy is not None and self._copy.parent.is_dir() and self._listed.number:
                with contextlib.suppress(OSError):  # at worst, a restart accepts an older list
                    keys.write(self._copy, read_bytes(self._path), 0o644)

    def look(self) -> RevocationList:
        """The newest valid list."""
        with self._lock:
            if (state := self._state()) == self._seen:
                return self._listed
            self._seen = state
            try:
                newer = self._newer(self._listed)
            except LabelSkewError as error:
                self._warn(f"{error}; the last valid list, {self._listed}, still applies")
                return self._listed
            if newer.number != self._listed.number:
                self._listed = newer
                self.save_copy()
                self._print_line(f"{self._listed} applies from now on")
                if self._serial in newer.entries:
                    self._warn(self._own_revoked)
            return self._listed

    def barred(self, pem: bytes) -> str:
        """Reason to reject a certificate, if any."""
        listed = self.look()
        serial = x509.load_pem_x509_certificate(pem).serial_number if listed.entries else 0
        return f"its certificate {keys.fingerprint(pem)} was {listed.entry(serial)}" if serial in listed.entries else ""

    @staticmethod
    def expired(pem: bytes) -> str:
        """Reason to reject an expired certificate, if it is; TLS does not check it when a session is resumed."""
        until = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        if until >= datetime.now(timezone.utc):
            return ""
        return f"its certificate {keys.fingerprint(pem)} expired on {until:%Y-%m-%d %H:%M} UTC"

    def _newer(self, before: RevocationList) -> RevocationList:
        listed = revoked(self._path, self._authority)
        if listed.number <= before.number and listed != before:
            what = f"list {listed.number} is not newer than" if listed.number else "is missing after"
            raise LabelSkewError(f"{self._path}: {what} list {before.number}, which was seen here; copy the newest one")
        return listed

    @property
    def _own_revoked(self) -> str:
        renew = f"use `labelskew certs renew {self._name.stem}` where it was created, and copy the new files here"
        return f"{self._name}: was {self._listed.entry(self._serial)}; {renew}"

    def _state(self) -> tuple[int, ...]:
        try:
            state = os.stat(self._path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (error.errno or 0,)
        return state.st_mtime_ns, state.st_size, state.st_ino


def _signed(listed: RevocationList, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
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
