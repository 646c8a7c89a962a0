"""Certificates of a federation as they are made: an authority, and what it vouches for (X.509, ECDSA P-256)."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.runtimes.silo import keys
from fl_labelskew_plugins.runtimes.silo.certs import alternatives, load_authority, load_certificate
from fl_labelskew_plugins.runtimes.silo.keys import Passphrase
from fl_labelskew_plugins.runtimes.silo.names import OLD, content, named, silo_name

HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS = 3650
"""How long the authority lasts at least, so that silos can be added later."""

Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
"""A certificate and its key."""


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
    passphrase = passphrase or Passphrase()
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
    passphrase: Passphrase | None = None,
) -> list[str]:
    """Make certificates anew, each with a new key; the old ones hold until they expire or are revoked.

    ``names`` are ``server``, ``silo-3`` or :data:`.names.ALL`; all else is as for :func:`new`, but without ``hosts``
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
    passphrase = passphrase or Passphrase()
    authority = load_authority(folder, passphrase)
    secret = _secret(folder, passphrase, encrypt=encrypt)
    with keys.writing(folder):
        (folder / OLD).mkdir(mode=0o700, exist_ok=True)
        for name in names:
            path = folder / f"{name}.pem"
            old = load_certificate(path, expired=True)
            keys.write(folder / OLD / f"{name}-{old.serial_number:x}.pem", content(path), 0o644)
            hosts_of = (given or list(alternatives(old))) if name == "server" else []
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
