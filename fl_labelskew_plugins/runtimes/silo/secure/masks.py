"""Secrets, keys derived from them (P-256, HKDF), and masks (ChaCha20)."""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDH,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    derive_private_key,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fl_labelskew_plugins.engine.ring import Vector, parts
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of points of P-256. Secrets are from 1 to ``ORDER - 1`` (FIPS 186-4, D.1.2.3)."""
SECRET, POINT = 32, 65  # bytes
CHUNK = 2**18  # bytes that fit into the CPU's cache


def derived(secret: bytes, about: bytes) -> bytes:
    """Derive a key of 32 bytes."""
    return HKDF(SHA256(), 32, salt=None, info=about).derive(secret)


def scalar(random: Callable[[int], bytes]) -> int:
    """Draw a secret; 16 more bytes make all secrets equally likely."""
    return int.from_bytes(random(SECRET + 16), "big") % (ORDER - 1) + 1


def key_pair(secret: int) -> EllipticCurvePrivateKey:
    """The private key of a secret. Raises ValueError."""
    return derive_private_key(secret, SECP256R1())


def public(key: EllipticCurvePrivateKey) -> bytes:
    """The public key, as an uncompressed point."""
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def is_point(text: bytes) -> bool:
    """Whether bytes are an uncompressed, finite point."""
    try:
        EllipticCurvePublicKey.from_encoded_point(SECP256R1(), text)
    except ValueError:
        return False
    return len(text) == POINT


def common(key: EllipticCurvePrivateKey, other: bytes, about: bytes) -> bytes:
    """The shared key of two silos. Raises ValueError."""
    both = b"".join(sorted((public(key), other)))
    return derived(key.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(SECP256R1(), other)), about + both)


def add_own(vector: Vector, secret: int, rank: int, attempt: Attempt, *, remove: bool = False) -> None:
    """Add or remove a silo's own mask, in place."""
    key = derived(secret.to_bytes(SECRET, "big"), attempt.about("own mask", rank))
    _add(vector, attempt.wide, key, negative=remove)


def add_shared(
    vector: Vector,
    key: EllipticCurvePrivateKey,
    rank: int,
    other: bytes,
    peer: int,
    attempt: Attempt,
    *,
    remove: bool = False,
) -> None:
    """Add or remove the mask that ``rank`` shares with ``peer``, which adds its negative.

    ``key``: the private key of one of them; ``other``: the public key of the other.
    """
    about = attempt.about("shared mask", *sorted((rank, peer)))
    _add(vector, attempt.wide, common(key, other, about), negative=(rank > peer) != remove)


def _add(vector: Vector, wide: int, key: bytes, *, negative: bool) -> None:
    draw = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros, drawn = bytes(CHUNK), bytearray(CHUNK)
    for numbers in parts(vector, wide):
        step = CHUNK // numbers.itemsize
        for start in range(0, len(numbers), step):
            part = numbers[start : start + step]
            draw.update_into(zeros[: part.nbytes], drawn)
            mask: Vector = np.frombuffer(drawn, part.dtype.newbyteorder("<"), len(part))
            (np.subtract if negative else np.add)(part, mask, out=part)
