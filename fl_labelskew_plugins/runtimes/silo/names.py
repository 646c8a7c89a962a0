"""Whose certificates there are: common names, ranks and files of a folder; all of it that needs no cryptography."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import extras

ALL = "all"
"""Stands for the server's and every silo's certificate."""
OLD = "old"
"""Where in the folder certificates are that were renewed."""
REVOKED = "revoked.crl"
"""The signed list of those that count no longer."""
UNSPECIFIED = "unspecified"
REASONS = (UNSPECIFIED, "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation")
"""Why a certificate is revoked, as X.509 calls it."""


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
        return path.read_bytes()
    except FileNotFoundError:
        raise mistake(path, "is not there", "`labelskew certs new` to make it, and copy it here") from None
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None
