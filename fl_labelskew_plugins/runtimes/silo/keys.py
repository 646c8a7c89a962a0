"""Files of a folder of certificates, common names and ranks, private keys, and the passphrase that opens them.

Nothing here imports cryptography before it is needed. Encrypted keys are PKCS#8 (AES-256, PBKDF2), which OpenSSL reads
and writes too. A passphrase is on no command line and in no log: it is typed, or comes from an environment variable.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
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
"""Stands for the server's and every silo's certificate."""
OLD = "old"
"""Where in the folder certificates are that were renewed."""
REVOKED = "revoked.crl"
"""The signed list of those that count no longer."""


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


def require() -> None:
    """Raise LabelSkewError unless what certificates are made of is installed."""
    extras.load("grpc", "cryptography", what="a certificate")


def silo_name(rank: int) -> str:
    """The common name of a silo's certificate, and its files' stem."""
    return f"silo-{rank}"


def rank_of(name: str) -> int:
    """The rank in a silo's common name; 0 where it is none."""
    stem, _, digits = name.partition("-")
    fits = stem == "silo" and digits.isascii() and digits.isdigit() and len(digits) < 10 and digits[0] != "0"
    return int(digits) if fits else 0


def fingerprint(pem: bytes) -> str:
    """SHA-256 of a certificate, in hexadecimal."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode(errors="replace"))).hexdigest()


def paths(folder: Path) -> list[Path]:
    """The folder's certificates, silos' by rank.

    Raises:
        LabelSkewError: there is none.
    """
    there = sorted(folder.glob("*.pem"), key=lambda path: (rank_of(path.stem), path.stem))
    if not there:
        raise mistake(folder, "holds no certificate", "a folder that `labelskew certs new` made")
    return there


def named(folder: Path, names: Sequence[str]) -> list[str]:
    """Names of certificates in a folder, each once, with :data:`ALL` spelt out.

    Raises:
        LabelSkewError: one is not there, or is the authority's.
    """
    from fl_labelskew_plugins.recipe import mistakes

    there = [path.stem for path in paths(folder) if path.stem == "server" or rank_of(path.stem)]
    for name in names:
        if name == "ca":
            use = "`labelskew certs new` with another --out, and give everybody new certificates"
            raise mistake(name, "the authority can be neither revoked nor renewed", use)
        if name not in (*there, ALL):
            raise LabelSkewError(f"{folder}: {mistakes.unknown(name, [*there, ALL])}")
    return there if ALL in names else list(dict.fromkeys(names))


def content(path: Path) -> bytes:
    """A file of a folder of certificates.

    Raises:
        LabelSkewError: it is missing or unreadable.
    """
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise mistake(path, "is not there", "`labelskew certs new` to make it, and copy it here") from None
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None


VARIABLE = "FL_LABELSKEW_KEY_PASSPHRASE"
MOST = 1000
"""Bytes of a passphrase; OpenSSL takes few more."""


class Passphrase:
    """The one passphrase of all encrypted keys that a command reads or makes, from :data:`VARIABLE` or the terminal;
    got when it is first needed.
    """

    def __init__(self) -> None:
        self._source, self._value = "", b""

    def get(self, path: Path, *, new: bool = False) -> bytes:
        """The passphrase.

        Args:
            path: the key's file, for the question and for errors.
            new: the key is still to be made, so what is typed is typed twice.

        Raises:
            LabelSkewError: there is none, and nobody to ask.
        """
        if not self._value:
            value = self._read(path, new=new)
            if not 0 < len(value) <= MOST or b"\0" in value:
                raise LabelSkewError(f"{self._source}: is no passphrase; use 1 to {MOST} bytes without zeros")
            self._value = value
        return self._value

    def environment(self) -> dict[str, str]:
        """What a process of ours needs to know it too; empty where it was not needed."""
        return {VARIABLE: os.fsdecode(self._value)} if self._value else {}

    def wrong(self, path: Path) -> LabelSkewError:
        """The error of a key that it does not open."""
        return LabelSkewError(f"{path}: does not open with the passphrase of {self._source}, or it is damaged")

    def _read(self, path: Path, *, new: bool) -> bytes:
        if (value := os.environ.get(VARIABLE)) is not None:
            self._source = VARIABLE
            return os.fsencode(value)
        if not _terminal():
            raise LabelSkewError(f"{path}: needs a passphrase, and there is no terminal to ask for it; set {VARIABLE}")
        self._source = "the terminal"
        try:
            value = getpass.getpass(f"{'new ' if new else ''}passphrase of {path}: ")
            if new and getpass.getpass("once more: ") != value:
                raise LabelSkewError("the two passphrases differ; nothing is written")
        except EOFError:
            raise LabelSkewError(f"{path}: no passphrase was typed") from None
        return value.encode()


def load(path: Path, content: bytes, passphrase: Passphrase) -> PrivateKeyTypes:
    """The private key in a file's PEM.

    Raises:
        LabelSkewError: it is none, or the passphrase is missing or wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    locked = encrypted(content)
    word = passphrase.get(path) if locked else None
    try:
        return serialization.load_pem_private_key(content, word)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if locked:
            raise passphrase.wrong(path) from None
        raise LabelSkewError(f"{path}: is no private key as `labelskew certs new` makes it") from None


def encrypted(content: bytes) -> bool:
    """Whether a PEM is of an encrypted key, in either of OpenSSL's forms."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content or b"Proc-Type: 4,ENCRYPTED" in content


def pem(key: PrivateKeyTypes, passphrase: bytes = b"") -> bytes:
    """A private key as PKCS#8; encrypted where there is a passphrase."""
    from cryptography.hazmat.primitives import serialization

    hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        hidden = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def readable_by_others(path: Path) -> Iterator[str]:
    """A warning where others than its owner may open a file that holds a secret."""
    if path.stat().st_mode & 0o077:
        yield f"{path}: can be read by others; use chmod 600"


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a file as a whole or not at all."""
    # Never, not for a moment, is a key in a file that others can open.
    with replacing(path, mode) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of writing to a folder as a line."""
    try:
        yield
    except OSError as error:
        raise LabelSkewError(f"{folder}: cannot be written: {error.strerror}") from None


def _terminal() -> bool:
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return sys.stdin is not None and sys.stdin.isatty()
