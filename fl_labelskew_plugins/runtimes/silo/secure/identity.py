"""A silo's signed keys of an attempt, and their verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.runtimes.silo.keys import Files, silo_name
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt, SitsOutError
from fl_labelskew_plugins.runtimes.silo.secure.masks import POINT, is_point

MOST = 10_000


@dataclass(frozen=True)
class Advert:
    """Public keys of a silo for one attempt: for sealed shares, for shared masks, and of its own mask's seed."""

    share_key: bytes
    mask_key: bytes
    seed_key: bytes
    signature: bytes
    certificate: bytes

    @property
    def points(self) -> tuple[bytes, bytes, bytes]:
        """The three keys."""
        return self.share_key, self.mask_key, self.seed_key

    def pack(self) -> bytes:
        """Encode as bytes."""
        return b"".join(self.points) + bytes([len(self.signature)]) + self.signature + self.certificate

    @classmethod
    def unpack(cls, text: bytes) -> Advert:
        """The inverse of :meth:`pack`, without checks."""
        length = text[3 * POINT] if 3 * POINT < len(text) <= MOST else 0
        end = 3 * POINT + 1 + length
        keys = text[:POINT], text[POINT : 2 * POINT], text[2 * POINT : 3 * POINT]
        return cls(*keys, text[3 * POINT + 1 : end], text[end:])

    def signed(self, signature: bytes, text: bytes) -> bool:
        """Whether this silo has signed a text; for a checked advertisement."""
        try:
            _verify(x509.load_der_x509_certificate(self.certificate), signature, text)
        except InvalidSignature:
            return False
        return True


class Authority:
    """Verifies signatures. ``ca``: PEM; ``barred``: returns the reason to reject a certificate (PEM), if any."""

    def __init__(self, ca: bytes, barred: Callable[[bytes], str] = lambda pem: "") -> None:
        self._ca, self._barred = x509.load_pem_x509_certificate(ca), barred

    def check(self, rank: int, advert: Advert, attempt: Attempt) -> None:
        """Raise SecureError unless a silo has signed its keys for this attempt."""
        certificate = self._certificate(rank, advert, attempt)
        if len(set(advert.points)) < 3 or not all(map(is_point, advert.points)):
            raise attempt.error(f"silo {rank} sent keys that are not three points of the curve")
        try:
            _verify(certificate, advert.signature, attempt.about("keys", rank) + b"".join(advert.points))
        except InvalidSignature:
            what = f"the keys of silo {rank} are not signed with its certificate's key for this attempt"
            cause = "they were replaced or replayed, or the silo received another question"
            raise attempt.error(f"{what}; {cause}") from None

    def _certificate(self, rank: int, advert: Advert, attempt: Attempt) -> x509.Certificate:
        try:
            certificate = x509.load_der_x509_certificate(advert.certificate)
            certificate.verify_directly_issued_by(self._ca)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            raise attempt.error(f"silo {rank} sent no certificate of this federation's authority") from None
        names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [silo_name(rank)]:
            raise attempt.error(f"silo {rank} sent the certificate of another process")
        now = datetime.now(timezone.utc)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise SitsOutError(f"{attempt.where}: the certificate that silo {rank} sent is not valid today")
        if reason := self._barred(certificate.public_bytes(Encoding.PEM)):
            raise SitsOutError(f"{attempt.where}: silo {rank} cannot be trusted: {reason}")
        return certificate


class Identity:
    """Signs with a silo's certificate and key."""

    def __init__(self, files: Files) -> None:
        key = load_pem_private_key(files.key, None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise LabelSkewError(f"{files.name}: secure aggregation needs a key that `labelskew certs new` has created")
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(files.certificate).public_bytes(Encoding.DER)

    def sign(self, text: bytes) -> bytes:
        """Sign a text."""
        return self._key.sign(text, ECDSA(SHA256()))

    def advert(self, rank: int, share_key: bytes, mask_key: bytes, seed_key: bytes, attempt: Attempt) -> Advert:
        """Create a signed advertisement."""
        signature = self.sign(attempt.about("keys", rank) + share_key + mask_key + seed_key)
        return Advert(share_key, mask_key, seed_key, signature, self._certificate)


def _verify(certificate: x509.Certificate, signature: bytes, text: bytes) -> None:
    key = certificate.public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidSignature
    key.verify(signature, text, ECDSA(SHA256()))
