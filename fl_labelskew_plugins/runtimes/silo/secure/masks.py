"""Secrets and what is drawn from them: keys (X25519, HKDF), and masks (ChaCha20) that are as long as a vector."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fl_labelskew_plugins.engine.ring import Vector, parts
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt

SECRET = 16
"""Bytes of a secret: what Shamir's scheme of pycryptodome shares, and the security of X25519."""
CHUNK = 2**18
"""Bytes of a mask at a time: they stay in the processor's cache."""


def derived(secret: bytes, about: bytes) -> bytes:
    """A key of 32 bytes."""
    return HKDF(SHA256(), 32, salt=None, info=about).derive(secret)


def key_pair(secret: bytes, attempt: Attempt) -> X25519PrivateKey:
    """The private key that a secret stands for in an attempt."""
    return X25519PrivateKey.from_private_bytes(derived(secret, attempt.about("private key")))


def public(key: X25519PrivateKey) -> bytes:
    """The 32 bytes that others may see."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def common(key: X25519PrivateKey, other: bytes, about: bytes) -> bytes:
    """The key of 32 bytes that two have together; raises ValueError for a public key that is none."""
    both = b"".join(sorted((public(key), other)))
    return derived(key.exchange(X25519PublicKey.from_public_bytes(other)), about + both)


def add_own(vector: Vector, secret: bytes, rank: int, attempt: Attempt, *, remove: bool = False) -> None:
    """Add a silo's own mask, which its secret stands for, or take it off; modulo the dtype's range, in place."""
    _add(vector, attempt.wide, derived(secret, attempt.about("own mask", rank)), negative=remove)


def add_shared(
    vector: Vector, key: X25519PrivateKey, rank: int, other: bytes, peer: int, attempt: Attempt, *, remove: bool = False
) -> None:
    """Add the mask that two silos share, as ``rank`` adds it: the other adds its negative; ``remove``: take it off.

    ``key`` is the private key of one of the two, and ``other`` the public key of the other.
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
