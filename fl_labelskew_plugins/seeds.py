"""Independent random streams, one for each (seed, purpose, round, client)."""

from __future__ import annotations

import contextlib
import hashlib
import random
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from torch import Generator


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
"""Changing a purpose's number changes data or partitions, and so every result."""


def sequence(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.SeedSequence:
    """The seed sequence of a purpose such as ``"batches"``."""
    if purpose in NUMBERED:
        return np.random.SeedSequence([seed, NUMBERED[purpose]])
    return np.random.SeedSequence([seed, crc32(purpose.encode()), round, client])


def numpy_generator(seed: int, purpose: str, round: int = 0) -> np.random.Generator:
    """A numpy generator."""
    return np.random.default_rng(sequence(seed, purpose, round))


def published_generator(seed: int) -> np.random.Generator:
    """Numpy's generator of published partitions, with a plain seed."""
    return np.random.default_rng(seed)


def python_random(seed: int, purpose: str) -> random.Random:
    """Python's generator, for methods without numpy."""
    return random.Random(f"{seed}/{purpose}")


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for torch."""
    return int(sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> Generator:
    """A torch CPU generator."""
    import torch

    return torch.Generator().manual_seed(torch_seed(seed, purpose, round, client))


def noise_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A generator for privacy noise, ChaCha20 with a key from the seed: known noise does not reveal the rest."""
    from randomgen import ChaCha

    key = hashlib.sha256(f"{seed} {purpose} {round} {client}".encode()).digest()
    return np.random.Generator(ChaCha(key=int.from_bytes(key, "little"), rounds=20))


def seed_globals(seed: int, purpose: str, round: int, client: int = 0) -> None:
    """Seed the global generators for FedML's attacks and noise; CPU generators use all of a seed's 128 bits."""
    import torch

    streams = sequence(seed, purpose, round, client).spawn(3)
    random.seed(int.from_bytes(streams[0].generate_state(8).tobytes(), "little"))
    np.random.seed(streams[1].generate_state(8))
    own_seed = torch_seed(seed, purpose, round, client)
    with contextlib.suppress(RuntimeError):  # a GPU has failed
        torch.cuda.manual_seed_all(own_seed)
    torch.default_generator.manual_seed(own_seed)
    # replace the Mersenne twister's 624 words of 32 bits, each stored in 64, after 24 bytes of seed and counters
    words, state = streams[2].generate_state(624).astype("<u8"), torch.get_rng_state()
    state[24 : 24 + words.nbytes] = torch.from_numpy(words.view(np.uint8))
    torch.set_rng_state(state)
