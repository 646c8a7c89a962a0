"""Verifiable shares of a silo's two secrets.

Feldman, A Practical Scheme for Non-interactive Verifiable Secret Sharing, FOCS 1987, over P-256 with base point ``G``.
The share of rank ``x`` is ``f(x)``; ``f`` is a polynomial of degree ``t - 1``, and ``f(0)`` is the secret. The dealer
publishes a commitment ``f_j G`` to each coefficient ``f_j``. Everybody can check that ``f(x) G`` is the sum of
``x^j f_j G``. Shares that match the same commitments belong to one secret.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from Crypto.PublicKey.ECC import EccPoint  # type: ignore[attr-defined]
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fl_labelskew_plugins.runtimes.silo.secure import masks
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert
from fl_labelskew_plugins.runtimes.silo.secure.masks import ORDER, POINT, SECRET

SEED, KEY = "seed", "key"  # a silo's secrets: the seed of its own mask, and the private key of its shared masks
SEALED = 2 * SECRET + 16  # bytes of two encrypted shares


def dealt(
    secret: int, at_least: int, ranks: Collection[int], random: Callable[[int], bytes]
) -> tuple[dict[int, int], list[bytes]]:
    """One share of a secret per rank, and ``at_least`` commitments."""
    factors = [secret, *(masks.scalar(random) for _ in range(at_least - 1))]
    shares = {rank: sum(factor * pow(rank, j, ORDER) for j, factor in enumerate(factors)) % ORDER for rank in ranks}
    return shares, [masks.public(masks.key_pair(factor)) for factor in factors]


def combined(shares: Mapping[int, int]) -> int:
    """The secret by Lagrange interpolation at 0; another number for wrong shares."""
    secret = 0
    for rank, share in shares.items():
        top = bottom = 1
        for other in shares.keys() - {rank}:
            top, bottom = top * other % ORDER, bottom * (other - rank) % ORDER
        secret += share * top * pow(bottom, -1, ORDER)
    return secret % ORDER


def fits(share: int, rank: int, commitments: Sequence[bytes]) -> bool:
    """Whether a share matches the dealer's commitments, by Horner's rule."""
    if not 0 < share < ORDER:
        return False
    try:
        points = [_point(text) for text in commitments]
    except ValueError:
        return False
    total = points[-1]
    for point in reversed(points[:-1]):
        total = _times(total, rank)
        total += point
    return bool(total == _point(masks.public(masks.key_pair(share))))


def _point(text: bytes) -> EccPoint:
    if not masks.is_point(text):  # EccPoint takes infinity, and coordinates that are too large
        raise ValueError("no point")
    half = 1 + SECRET
    return EccPoint(int.from_bytes(text[1:half], "big"), int.from_bytes(text[half:], "big"), "p256")


def _times(point: EccPoint, number: int) -> EccPoint:
    """Multiply by a small number; the library's product is slow."""
    total = point.copy()
    for bit in bin(number)[3:]:
        total.double()
        if bit == "1":
            total += point
    return total


@dataclass(frozen=True)
class Way:
    """The encrypted channel from a dealer of shares to one receiver; ``roster``: digest of all public keys."""

    attempt: Attempt
    dealer: int
    receiver: int
    roster: bytes
    commitments: bytes

    def sealed(self, pair: tuple[int, int], key: EllipticCurvePrivateKey, other: bytes) -> bytes:
        """Encrypt the shares of the dealer's seed and key."""
        text = b"".join(share.to_bytes(SECRET, "big") for share in pair)
        return self._cipher(key, other).encrypt(bytes(12), text, self._about)  # a key seals once

    def opened(
        self, text: bytes, key: EllipticCurvePrivateKey, dealer: Advert, at_least: int
    ) -> tuple[int, int] | None:
        """Decrypt and verify a pair of shares; None if they are wrong; ``at_least``: commitments to each secret."""
        try:
            pair = self._cipher(key, dealer.share_key).decrypt(bytes(12), text, self._about)
        except InvalidTag:  # changed, or of another attempt or roster
            return None
        seed, secret = int.from_bytes(pair[:SECRET], "big"), int.from_bytes(pair[SECRET:], "big")
        points = commitments(self.commitments, dealer.seed_key, dealer.mask_key)
        if any(len(of_secret) != at_least for of_secret in points.values()):
            return None
        fit = fits(seed, self.receiver, points[SEED]) and fits(secret, self.receiver, points[KEY])
        return (seed, secret) if fit else None

    @property
    def _about(self) -> bytes:
        return self.roster + hashlib.sha256(self.commitments).digest()

    def _cipher(self, key: EllipticCurvePrivateKey, other: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(masks.common(key, other, self.attempt.about("sealed", self.dealer, self.receiver)))


def published(seed: Sequence[bytes], key: Sequence[bytes]) -> bytes:
    """The commitments without the first ones, which are the dealer's public keys."""
    return b"".join([*seed[1:], *key[1:]])


def commitments(text: bytes, seed: bytes, key: bytes) -> dict[str, list[bytes]]:
    """The inverse of :func:`published`, by secret."""
    points = [text[start : start + POINT] for start in range(0, len(text), POINT)]
    half = len(points) // 2
    return {SEED: [seed, *points[:half]], KEY: [key, *points[half:]]}
