"""Random streams: an independent one for each (seed, purpose, round, client), never a global generator."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from torch import Generator, Tensor


NUMBERED = {
    "partition": 1,
    "test partition": 2,
    "test split": 3,
    "synthetic": 4,
    "leaf users": 5,
    "fake pictures": 5,
    "fake writers": 6,
    "fake roles": 7,
    "circles": 7,
    "fake lesions": 2019,
}
"""Fixed numbers of purposes of data and partitions; changing one changes the clients in every result."""


def sequence(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.SeedSequence:
    """The seed sequence of a purpose, such as ``"batches"``; equal on every machine and in every process."""
    if purpose in NUMBERED:
        return np.random.SeedSequence([seed, NUMBERED[purpose]])
    return np.random.SeedSequence([seed, crc32(purpose.encode()), round, client])


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A numpy generator for one purpose, round and client."""
    return np.random.default_rng(sequence(seed, purpose, round, client))


def published_generator(seed: int) -> np.random.Generator:
    """Numpy's ``default_rng`` with a plain seed, to reproduce published partitions."""
    return np.random.default_rng(seed)


def python_random(seed: int, purpose: str) -> random.Random:
    """Python's generator, for methods without numpy."""
    return random.Random(f"{seed}/{purpose}")


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for torch."""
    return int(sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> Generator:
    """A torch CPU generator for one purpose, round and client."""
    import torch

    return torch.Generator().manual_seed(torch_seed(seed, purpose, round, client))


def noise_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A generator for privacy noise: ChaCha20 with a key from the seed, which may have any number of bits.

    Unlike numpy's and torch's generators, known noise does not reveal the rest.
    """
    from randomgen import ChaCha

    key = hashlib.sha256(f"{seed} {purpose} {round} {client}".encode()).digest()
    return np.random.Generator(ChaCha(key=int.from_bytes(key, "little"), rounds=20))


def seed_globals(seed: int, purpose: str, round: int, client: int = 0) -> None:
    """Seed the global generators, only for the host's attacks and noise, which use no others.

    A resumed run then draws the same values. Seeds may have up to 128 bits; on the CPU all of them are used.
    """
    import torch

    streams = sequence(seed, purpose, round, client).spawn(3)
    random.seed(int.from_bytes(streams[0].generate_state(8).tobytes(), "little"))
    np.random.seed(streams[1].generate_state(8))
    torch.manual_seed(torch_seed(seed, purpose, round, client))  # GPUs too
    torch.set_rng_state(_state(streams[2], torch.get_rng_state()))


def _state(entropy: np.random.SeedSequence, fresh: Tensor) -> Tensor:
    """The state ``fresh`` of a newly seeded CPU generator, with other words of its Mersenne twister.

    These are 624 words of 32 bits, each stored in 64, after 24 bytes: the seed, two counters and a position.
    """
    import torch

    words = entropy.generate_state(624).astype("<u8")
    state = fresh.clone()
    state[24 : 24 + words.nbytes] = torch.from_numpy(words.view(np.uint8))
    return state
