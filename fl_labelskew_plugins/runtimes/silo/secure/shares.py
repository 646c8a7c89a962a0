"""Verifiable shares of a silo's two secrets: dealt, sealed for one peer each, checked, and combined.

Feldman, A Practical Scheme for Non-interactive Verifiable Secret Sharing, FOCS 1987, over the curve P-256 with base
point ``G``: the shares of a secret are ``f(x)`` for each rank ``x``, with ``f`` a polynomial of degree ``t - 1`` and
``f(0)`` the secret. The dealer publishes its commitments, ``f_j G`` of each coefficient ``f_j``. Everybody can then
check that ``f(x) G`` is the sum of ``x^j f_j G``; shares that fit the same commitments belong to one secret.
"""

from __future__ import annotations

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

SEED, KEY = "seed", "key"
"""The two secrets: of the own mask, and of the key of shared masks."""
SEALED = 2 * SECRET + 16
"""Bytes of two shares, encrypted."""


def dealt(
    secret: int, at_least: int, ranks: Collection[int], random: Callable[[int], bytes]
) -> tuple[dict[int, int], list[bytes]]:
    """A share of a secret for each of these, and the commitments, ``at_least`` points."""
    factors = [secret, *(masks.scalar(random) for _ in range(at_least - 1))]
    shares = {rank: sum(factor * pow(rank, j, ORDER) for j, factor in enumerate(factors)) % ORDER for rank in ranks}
    return shares, [masks.public(masks.key_pair(factor)) for factor in factors]


def combined(shares: Mapping[int, int]) -> int:
    """The secret that these shares are of, by Lagrange's formula at 0; another number if they do not fit."""
    secret = 0
    for rank, share in shares.items():
        top = bottom = 1
        for other in shares.keys() - {rank}:
            top, bottom = top * other % ORDER, bottom * (other - rank) % ORDER
        secret += share * top * pow(bottom, -1, ORDER)
    return secret % ORDER


def fits(share: int, rank: int, commitments: Sequence[bytes]) -> bool:
    """Whether a share is the one of this rank, by Horner's rule on the commitments."""
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
    """A small multiple; the library's own product takes as long for small numbers as for large ones."""
    total = point.copy()
    for bit in bin(number)[3:]:
        total.double()
        if bit == "1":
            total += point
    return total


@dataclass(frozen=True)
class Way:
    """From the dealer of shares to one receiver, in an attempt.

    ``roster``: digest of everybody's keys; ``commitments``: the dealer's, of both secrets.
    """

    attempt: Attempt
    dealer: int
    receiver: int
    roster: bytes
    commitments: bytes

    def sealed(self, pair: tuple[int, int], key: EllipticCurvePrivateKey, other: bytes) -> bytes:
        """Shares of the dealer's seed and key, for the receiver's public key."""
        text = b"".join(share.to_bytes(SECRET, "big") for share in pair)
        return self._cipher(key, other).encrypt(bytes(12), text, self._about)  # a key seals once

    def opened(self, text: bytes, key: EllipticCurvePrivateKey, other: bytes) -> tuple[int, int] | None:
        """The two shares, or None where they were changed on their way, or are not of this attempt and roster."""
        try:
            pair = self._cipher(key, other).decrypt(bytes(12), text, self._about)
        except InvalidTag:
            return None
        return int.from_bytes(pair[:SECRET], "big"), int.from_bytes(pair[SECRET:], "big")

    @property
    def _about(self) -> bytes:
        return self.roster + hashlib.sha256(self.commitments).digest()

    def _cipher(self, key: EllipticCurvePrivateKey, other: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(masks.common(key, other, self.attempt.about("sealed", self.dealer, self.receiver)))


def checked(
    way: Way, text: bytes, key: EllipticCurvePrivateKey, dealer: Advert, at_least: int
) -> tuple[int, int] | None:
    """The pair of shares that was sealed for a receiver, or None if they do not open or do not fit the commitments.

    Args:
        way: from the dealer to the receiver.
        text: the sealed pair.
        key: the receiver's, for shares.
        dealer: its public keys.
        at_least: shares that make a secret, as many as commitments to each.
    """
    pair = way.opened(text, key, dealer.share_key)
    of_secrets = list(commitments(way.commitments, dealer.seed_key, dealer.mask_key).values())
    if pair is None or any(len(points) != at_least for points in of_secrets):
        return None
    fit = all(fits(share, way.receiver, points) for share, points in zip(pair, of_secrets, strict=True))
    return pair if fit else None


def published(seed: Sequence[bytes], key: Sequence[bytes]) -> bytes:
    """Commitments of both secrets; the first points are the dealer's public keys, which are known."""
    return b"".join([*seed[1:], *key[1:]])


def commitments(text: bytes, seed: bytes, key: bytes) -> dict[str, list[bytes]]:
    """What :func:`published` made, by secret, with the dealer's public keys."""
    points = [text[start : start + POINT] for start in range(0, len(text), POINT)]
    half = len(points) // 2
    return {SEED: [seed, *points[:half]], KEY: [key, *points[half:]]}
