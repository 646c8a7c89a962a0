"""Randomness: one independent stream for each (seed, purpose, round, client), never a global generator."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from torch import Generator


def sequence(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.SeedSequence:
    """The seed sequence of a purpose, such as ``"batches"``; the same on every machine and in every process."""
    return np.random.SeedSequence([seed, crc32(purpose.encode()), round, client])


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A numpy generator of its own for one purpose, round and client."""
    return np.random.default_rng(sequence(seed, purpose, round, client))


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for torch."""
    return int(sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> Generator:
    """A torch CPU generator of its own for one purpose, round and client."""
    import torch

    return torch.Generator().manual_seed(torch_seed(seed, purpose, round, client))


def seed_globals(seed: int, purpose: str, round: int, client: int = 0) -> None:
    """Seed the global generators, for the host's attacks and noise alone, which draw from no other.

    A run that goes on after a kill then draws what the undisturbed one drew.
    """
    import torch

    number = torch_seed(seed, purpose, round, client)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
