"""Certificate folders, private keys and their passphrase; imports cryptography only when needed."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import ssl
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.files import read_bytes, replacing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

ALL = "all"
OLD = "old"  # folder of replaced certificates
REVOKED = "revoked.crl"


@dataclass(frozen=True)
class Files:
    """A process's files as PEM, with the decrypted key."""

    name: str
    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    warnings: tuple[str, ...] = ()


def require() -> None:
    """Raise LabelSkewError unless cryptography is installed."""
    extras.load("grpc", "cryptography", what="a certificate")


def silo_name(rank: int) -> str:
    """Common name and file stem of a silo's certificate."""
    return f"silo-{rank}"


def rank_of(name: str) -> int:
    """The rank in a silo's common name; 0 for other names."""
    match = re.fullmatch("silo-([1-9][0-9]{0,8})", name)
    return int(match[1]) if match else 0


def fingerprint(pem: bytes) -> str:
    """Hexadecimal SHA-256 of a certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode(errors="replace"))).hexdigest()


def paths(folder: Path) -> list[Path]:
    """The folder's certificates by rank. Raises LabelSkewError if there are none."""
    found = sorted(folder.glob("*.pem"), key=lambda path: (rank_of(path.stem), path.stem))
    if not found:
        raise mistake(folder, "contains no certificate", "a folder from `labelskew certs new`")
    return found


def named(folder: Path, names: Sequence[str]) -> list[str]:
    """Unique names, with :data:`ALL` expanded. Raises LabelSkewError for unknown ones."""
    from fl_labelskew_plugins.recipe import mistakes

    known = [path.stem for path in paths(folder) if path.stem == "server" or rank_of(path.stem)]
    for name in names:
        if name == "ca":
            use = "`labelskew certs new` with another --out, and give all processes new certificates"
            raise mistake(name, "the authority cannot be revoked or renewed", use)
        if name not in (*known, ALL):
            raise LabelSkewError(f"{folder}: {mistakes.unknown(name, [*known, ALL])}")
    return known if ALL in names else list(dict.fromkeys(names))


def content(path: Path) -> bytes:
    """Read a file. Raises LabelSkewError."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise mistake(path, "does not exist", "`labelskew certs new` to create it, and copy it here") from None
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None


VARIABLE = "FL_LABELSKEW_KEY_PASSPHRASE"
MAX_PASSPHRASE = 1000  # bytes; OpenSSL's limit is slightly higher


class Passphrase:
    """The passphrase of all keys, read once from :data:`VARIABLE` or the terminal."""

    def __init__(self) -> None:
        self.source, self._value = "", b""

    def get(self, path: Path, *, new: bool = False) -> bytes:
        """The passphrase; ``new``: typed twice. Raises LabelSkewError if it is invalid or missing."""
        if not self._value:
            value = self._read(path, new=new)
            if not 0 < len(value) <= MAX_PASSPHRASE or b"\0" in value:
                raise mistake(self.source, "invalid passphrase", f"1 to {MAX_PASSPHRASE} bytes without NUL bytes")
            self._value = value
        return self._value

    def environment(self) -> dict[str, str]:
        """Environment variables with the passphrase, if known."""
        return {VARIABLE: os.fsdecode(self._value)} if self._value else {}

    def _read(self, path: Path, *, new: bool) -> bytes:
        if (value := os.environ.get(VARIABLE)) is not None:
            self.source = VARIABLE
            return os.fsencode(value)
        if not _terminal():
            raise LabelSkewError(f"{path}: needs a passphrase, and no terminal is available; set {VARIABLE}")
        self.source = "the terminal"
        try:
            value = getpass.getpass(f"{'new ' if new else ''}passphrase of {path}: ")
            if new and getpass.getpass("repeat it: ") != value:
                raise LabelSkewError("the two passphrases differ; nothing is written")
        except EOFError:
            raise LabelSkewError(f"{path}: no passphrase was typed") from None
        return value.encode()


def load(path: Path, content: bytes, passphrase: Passphrase) -> PrivateKeyTypes:
    """Load a private key. Raises LabelSkewError for a damaged key or a wrong passphrase."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    locked = encrypted(content)
    secret = passphrase.get(path) if locked else None
    try:
        return serialization.load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        what = "is not a private key from `labelskew certs new`"
        if locked:
            what = f"the passphrase from {passphrase.source} does not decrypt it, or it is damaged"
        raise LabelSkewError(f"{path}: {what}") from None


def encrypted(content: bytes) -> bool:
    """Whether a PEM contains an encrypted key."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content or b"Proc-Type: 4,ENCRYPTED" in content


def pem(key: PrivateKeyTypes, passphrase: bytes = b"") -> bytes:
    """A key as PKCS#8."""
    from cryptography.hazmat.primitives import serialization

    hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        hidden = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def readable_by_others(path: Path) -> Iterator[str]:
    """Warn if users other than its owner may open a file."""
    if path.stat().st_mode & 0o077:
        yield f"{path}: can be read by others; use chmod 600"


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with ``mode`` from the beginning."""
    with replacing(path, mode) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _terminal() -> bool:
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return sys.stdin is not None and sys.stdin.isatty()
