"""Certificates that count no longer: a list signed by the authority, which lies beside each process's certificate.

``revoked.crl`` is a certificate revocation list of X.509 (RFC 5280) with a number that only grows. It has no end: what
a process does not know is only what nobody has copied to it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.runtimes.silo import certs, keys
from fl_labelskew_plugins.runtimes.silo.keys import Passphrase
from fl_labelskew_plugins.runtimes.silo.names import OLD, REVOKED, UNSPECIFIED, Files, fingerprint, named


@dataclass(frozen=True)
class Entry:
    """A certificate's end: since when (UTC), and why, as X.509 calls it."""

    since: datetime
    why: str

    def __str__(self) -> str:
        return f"revoked on {self.since:%Y-%m-%d %H:%M} UTC" + f" ({self.why})" * (self.why != UNSPECIFIED)


@dataclass(frozen=True)
class Listed:
    """A list, by certificates' serial numbers; number 0 where there is none."""

    number: int = 0
    entries: Mapping[int, Entry] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"list {self.number} ({counted(len(self.entries), 'revoked certificate')})"


def revoke(
    folder: Path,
    names: Sequence[str],
    *,
    why: str = UNSPECIFIED,
    old: bool = False,
    passphrase: Passphrase | None = None,
) -> tuple[Listed, int]:
    """Put certificates on the list of a folder, with the authority that is there.

    Args:
        folder: where the authority and the certificates are.
        names: ``server``, ``silo-3``: all that were made for them, renewed ones included; or :data:`.names.ALL`.
        why: one of :data:`.names.REASONS`.
        old: those alone that were renewed since.
        passphrase: opens the authority's key.

    Returns:
        The list, and how many certificates are new on it; where none is, nothing is written.

    Raises:
        LabelSkewError: a name that is not there, an authority or a list that cannot be used, or nothing can be written.
    """
    names = named(folder, names)
    authority, key = certs.load_authority(folder, passphrase or Passphrase())
    before = read(folder / REVOKED, authority)
    entry = Entry(datetime.now(timezone.utc).replace(microsecond=0), why.replace("-", " "))
    added: dict[int, Entry] = {}
    for name in names:
        paths = [*(folder / OLD).glob(f"{name}-*.pem"), *([] if old else [folder / f"{name}.pem"])]
        serials = [certs.load_certificate(path, expired=True).serial_number for path in paths]
        added |= {serial: entry for serial in serials if serial not in before.entries}
    if not added:
        return before, 0
    listed = Listed(before.number + 1, {**before.entries, **added})
    with keys.writing(folder):
        keys.write(folder / REVOKED, _signed(listed, authority, key), 0o644)
    return listed, len(added)


def shown(folder: Path) -> Listed:
    """The list of a folder of certificates.

    Raises:
        LabelSkewError: as :func:`read`.
    """
    path = folder / REVOKED
    return read(path, certs.load_certificate(folder / "ca.pem", expired=True)) if path.exists() else Listed()


def read(path: Path, authority: x509.Certificate) -> Listed:
    """The list in a file; an empty one where the file is not there.

    Raises:
        LabelSkewError: it is none, or not this authority's.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Listed()
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None
    copy = "copy it again from where the certificates were made"
    try:
        crl = x509.load_pem_x509_crl(content)
        signed = crl.issuer == authority.subject and crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = {line.serial_number: _entry(line) for line in crl}
    except (ValueError, TypeError, x509.ExtensionNotFound):
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
                before = read(kept, self._authority)
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
                    keys.write(self._kept, self._path.read_bytes(), 0o644)

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
        entries = self.look().entries
        if not entries:
            return ""
        entry = entries.get(x509.load_pem_x509_certificate(pem).serial_number)
        if entry is None:
            return ""
        return f"its certificate {fingerprint(pem)} was {entry}"

    def _tell(self) -> None:
        self._say(f"{self._listed} counts from now on")

    def _newer(self, before: Listed) -> Listed:
        listed = read(self._path, self._authority)
        if listed.number <= before.number and listed != before:
            what = f"list {listed.number} is not newer than" if listed.number else "is not there any more, after"
            raise LabelSkewError(f"{self._path}: {what} list {before.number}, which was seen here; copy the newest one")
        return listed

    @property
    def _ended(self) -> str:
        renew = f"use `labelskew certs renew {self._name.stem}` where it was made, and copy what it makes here"
        return f"{self._name}: was {self._listed.entries[self._serial]}; {renew}"

    def _state(self) -> tuple[int, ...]:
        try:
            state = os.stat(self._path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (error.errno or 0,)
        return state.st_mtime_ns, state.st_size, state.st_ino


def _entry(line: x509.RevokedCertificate) -> Entry:
    why = UNSPECIFIED
    with contextlib.suppress(x509.ExtensionNotFound):
        reason = line.extensions.get_extension_for_class(x509.CRLReason).value.reason
        why = reason.name.replace("_", " ")
    return Entry(line.revocation_date_utc, why)


def _signed(listed: Listed, authority: x509.Certificate, key: EllipticCurvePrivateKey) -> bytes:
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(datetime.now(timezone.utc))
        .next_update(authority.not_valid_after_utc)
        .add_extension(x509.CRLNumber(listed.number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for serial, entry in listed.entries.items():
        line = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(entry.since)
        if entry.why != UNSPECIFIED:
            reason = x509.ReasonFlags[entry.why.replace(" ", "_")]
            line = line.add_extension(x509.CRLReason(reason), critical=False)
        builder = builder.add_revoked_certificate(line.build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
