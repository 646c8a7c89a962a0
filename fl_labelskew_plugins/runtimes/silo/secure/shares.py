"""Shamir's shares of a silo's two secrets: dealt, sealed for one peer each, and put together again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fl_labelskew_plugins.runtimes.silo.secure import masks
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt
from fl_labelskew_plugins.runtimes.silo.secure.masks import SECRET

SEED, KEY = "seed", "key"
"""The two secrets: of the own mask, and of the key of shared masks."""
DIGEST = 32
SEALED = 2 * SECRET + 16 + 2 * DIGEST
"""Bytes of what one peer is sent: two shares, encrypted, and their digests."""


def dealt(secret: bytes, at_least: int, ranks: list[int]) -> dict[int, bytes]:
    """A share of a secret for each of these."""
    return {ranks[index - 1]: share for index, share in Shamir.split(at_least, len(ranks), secret)}


def combined(shares: Mapping[int, bytes], ranks: list[int]) -> bytes:
    """The secret that these shares are of; some other one where they do not belong together."""
    return bytes(Shamir.combine([(ranks.index(rank) + 1, share) for rank, share in sorted(shares.items())]))


@dataclass(frozen=True)
class Way:
    """From the dealer of shares to one receiver, in an attempt."""

    attempt: Attempt
    dealer: int
    receiver: int

    def digest(self, what: str, share: bytes) -> bytes:
        """What a share is known by without being known."""
        return hashlib.sha256(self.attempt.about(f"share of {what}", self.dealer, self.receiver) + share).digest()

    def sealed(self, pair: tuple[bytes, bytes], key: X25519PrivateKey, other: bytes, roster: bytes) -> bytes:
        """Shares of the dealer's seed and key, for the receiver's public key; ``roster``: digest of everybody's."""
        known = b"".join(self.digest(what, share) for what, share in zip((SEED, KEY), pair, strict=True))
        return self._cipher(key, other).encrypt(bytes(12), b"".join(pair), roster + known) + known  # a key seals once

    def opened(self, text: bytes, key: X25519PrivateKey, other: bytes, roster: bytes) -> tuple[bytes, bytes] | None:
        """The two shares, or None where they were changed on their way, or are not of this attempt and roster."""
        try:
            pair = self._cipher(key, other).decrypt(bytes(12), text[: -2 * DIGEST], roster + text[-2 * DIGEST :])
        except InvalidTag:
            return None
        return pair[:SECRET], pair[SECRET:]

    def _cipher(self, key: X25519PrivateKey, other: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(masks.common(key, other, self.attempt.about("sealed", self.dealer, self.receiver)))


def digests(text: bytes) -> dict[str, bytes]:
    """By secret, the digests that a dealer has sent with two sealed shares."""
    return {SEED: text[-2 * DIGEST : -DIGEST], KEY: text[-DIGEST:]}
