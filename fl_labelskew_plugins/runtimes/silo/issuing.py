"""X.509 certificates of a federation as they are made: an authority, and what it vouches for (ECDSA P-256)."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


def authority(days: int) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """A new authority, and its key."""
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


def issue(
    name: str,
    hosts: list[x509.GeneralName],
    days: int,
    issuer: x509.Certificate,
    issuer_key: EllipticCurvePrivateKey,
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """A certificate that proves one thing, to be this server or to be this silo, and its key.

    Args:
        name: ``server`` or ``silo-3``.
        hosts: names and addresses of the server; none for a silo.
        days: how long it holds, and no longer than its authority.
        issuer: the authority.
        issuer_key: the authority's.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    use = ExtendedKeyUsageOID.SERVER_AUTH if name == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(key, _named(name), issuer.subject, days, issuer.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()), key


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
