"""Fixed-point numbers in integer rings; their sums are exact in any order.

A client encodes tensors as one flat vector, with wide values first.

- A *narrow* tensor takes one entry per value, summed modulo ``2 ** bits``. Values are weighted by the clients' shares,
  which add up to at most 1, so a sum is at most ``bound``.
- A *wide* tensor takes one 64-bit number per value, summed modulo ``2 ** 64``: sums of parts of these numbers would
  reveal more than the sum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import RunError, shareable
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from fl_labelskew_plugins.machine.text import clean

Vector = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Narrow:
    """A tensor with values of at most ``bound``, before weighting."""

    shape: tuple[int, ...]
    bound: float


@dataclass(frozen=True)
class Wide:
    """A tensor with steps of ``2 ** -fraction``."""

    shape: tuple[int, ...]
    fraction: int


class Ring:
    """Encoding of tensors as a vector.

    ``bits``: of a narrow entry, 16 to 32; ``clients``: maximum in a sum; ``head_room``: free part of narrow ranges for
    noise, relative to ``bound``.
    """

    def __init__(
        self, entries: Mapping[str, Narrow | Wide], bits: int, clients: int, *, head_room: float = 0.0
    ) -> None:
        self.bits, self.clients = bits, clients
        self.entries = dict(sorted(entries.items(), key=lambda item: isinstance(item[1], Narrow)))
        self.value = 64 - (clients - 1).bit_length()  # bits of a wide value with sign; the clients' sum fits into 64
        self._top = (2 ** (bits - 1) - 1 - clients) / (1 + head_room)  # each client's rounding adds half a step
        self.wide = sum(math.prod(e.shape) for e in self.entries.values() if isinstance(e, Wide))
        narrow = sum(math.prod(e.shape) for e in self.entries.values() if isinstance(e, Narrow))
        self.size = narrow + self.wide * 8 // np.dtype(unit(bits)).itemsize

    def steps(self, entry: Narrow | Wide) -> float:
        """Steps per unit of a tensor."""
        return self._top / entry.bound if isinstance(entry, Narrow) else 2.0**entry.fraction

    def encode(
        self, tensors: Mapping[str, Tensor], *, share: float, where: str, words: Mapping[str, tuple[str, str]]
    ) -> Vector:
        """One client's vector ``(size,)``. Raises RunError for a tensor that is out of range.

        ``share``: weight of narrow tensors, 0 to 1; ``words``: description and advice for the message.
        """
        vector = self.zeros()
        wide, narrow = parts(vector, self.wide)
        for name, entry in self.entries.items():
            value = tensors[name].detach().reshape(-1).double().cpu()
            # for wide entries, rounding might exceed the exact maximum
            most = entry.bound if isinstance(entry, Narrow) else 2.0 ** (self.value - 1 - entry.fraction) - 1
            reached = float(value.abs().max()) if len(value) else 0.0
            if not reached <= most:
                diverged = clean(name, 80), "training diverged; use a smaller train_args.learning_rate"
                what, use = words.get(name, diverged)
                error = RunError(f"{where}: {what} reaches {reached:.4g}, but the maximum is {most:.4g}; {use}")
                raise shareable(error, f"{where}: {what} is out of range; {use}")
            if isinstance(entry, Narrow):
                whole = (value * (share * self.steps(entry))).round_().long() & (2**self.bits - 1)
                narrow[: len(whole)], narrow = whole.numpy(), narrow[len(whole) :]
            else:
                wide[: len(value)] = (value * self.steps(entry)).round_().long().numpy().view(np.uint64)
                wide = wide[len(value) :]
        return vector

    def zeros(self) -> Vector:
        """An empty sum."""
        return np.zeros(self.size, unit(self.bits))

    def add(self, into: Vector, vector: Vector) -> None:
        """Add a vector to another one, in place."""
        add(into, vector, self.bits, self.wide)

    def decode(self, vector: Vector) -> dict[str, Tensor]:
        """Sums of all clients' tensors, float64."""
        sums: dict[str, Tensor] = {}
        wide, narrow = parts(vector, self.wide)
        for name, entry in self.entries.items():
            size = math.prod(entry.shape)
            if isinstance(entry, Narrow):
                whole, narrow = torch.from_numpy(narrow[:size].astype(np.int64)), narrow[size:]
                whole = whole - ((whole >> (self.bits - 1)) << self.bits)
            else:
                whole, wide = torch.from_numpy(wide[:size].view(np.int64)), wide[size:]
            sums[name] = (whole.double() / self.steps(entry)).reshape(entry.shape)
        return sums


def unit(bits: int) -> DTypeLike:
    """Dtype of a vector's entries."""
    return np.uint16 if bits == 16 else np.uint32


def parts(vector: Vector, wide: int) -> tuple[NDArray[np.uint64], Vector]:
    """Views of a vector's ``wide`` values and narrow entries."""
    end = wide * 8 // vector.itemsize
    return vector[:end].view(np.uint64), vector[end:]


def add(into: Vector, vector: Vector, bits: int, wide: int) -> None:
    """Add a vector in place."""
    for sums, values in zip(parts(into, wide), parts(vector, wide), strict=True):
        np.add(sums, values, out=sums)
    trim(into, bits, wide)


def trim(vector: Vector, bits: int, wide: int) -> None:
    """Reduce the narrow entries modulo ``2 ** bits``, in place."""
    if bits % 16:
        narrow = parts(vector, wide)[1]
        narrow &= narrow.dtype.type(2**bits - 1)
