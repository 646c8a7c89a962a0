"""Fixed point in rings of whole numbers: what is added up there is exact, in whatever order.

A client writes a mapping of tensors as one flat vector; the sum of such vectors gives the sums of their tensors. Two
kinds of tensors are written:

- A *narrow* one takes one entry of the vector for each value, summed modulo ``2 ** bits``. Values are at most ``bound``
  and weighted by the clients' shares, which sum to at most 1, so that a sum of them is at most ``bound``, too, however
  many there are; the step is ``bound`` divided by half of the ring, less the half steps by which clients round.
- A *wide* one has a step of its own, such as ``2 ** -20``, and takes one number of 64 bits for each value, summed
  modulo ``2 ** 64``: sums of parts of these numbers would say more than the sum.

In memory and on its way, wide numbers come first, then the narrow entries, of two bytes with 16 bits and else of four.

A value out of range is an error before anything leaves a client.
"""

from __future__ import annotations

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
    """A tensor of a ``shape`` whose values are at most ``bound``, before they are weighted by the client's share."""

    shape: tuple[int, ...]
    bound: float


@dataclass(frozen=True)
class Wide:
    """A tensor of a ``shape``, in steps of ``2 ** -fraction``."""

    shape: tuple[int, ...]
    fraction: int


class Ring:
    """How tensors are written as a vector.

    Args:
        entries: the tensors, by name.
        bits: of an entry of the vector, 16 to 32.
        clients: the most that are added up.
        head_room: how much of a narrow tensor's range is kept free beside it, for noise.
    """

    def __init__(
        self, entries: Mapping[str, Narrow | Wide], bits: int, clients: int, *, head_room: float = 0.0
    ) -> None:
        self.bits, self.clients = bits, clients
        # wide ones come first
        self.entries = dict(sorted(entries.items(), key=lambda item: isinstance(item[1], Narrow)))
        self.value = 64 - (clients - 1).bit_length()
        """Bits of a wide value, its sign included; the sum of all clients' values fits 64."""
        self._top = (2 ** (bits - 1) - 1 - clients) / (1 + head_room)  # each client's rounding adds half a step
        self.wide = sum(math.prod(e.shape) for e in self.entries.values() if isinstance(e, Wide))
        """Wide values of the vector."""
        narrow = sum(math.prod(e.shape) for e in self.entries.values() if isinstance(e, Narrow))
        self.size = length(bits, self.wide, narrow)
        """Entries of the vector, of the type :func:`unit`."""

    def steps(self, entry: Narrow | Wide) -> float:
        """How many steps of the ring 1 of a tensor is."""
        return self._top / entry.bound if isinstance(entry, Narrow) else 2.0**entry.fraction

    def encode(
        self, tensors: Mapping[str, Tensor], *, share: float, where: str, words: Mapping[str, tuple[str, str]]
    ) -> Vector:
        """One client's vector.

        Args:
            tensors: of all names, and of their shapes; finite.
            share: the client's weight for narrow tensors, 0 to 1; those of all clients sum to at most 1.
            where: how an error begins.
            words: of an error, by name: what reaches too far, and what to do then; default: the name, and what helps
                where training diverges.

        Returns:
            ``(size,)``, narrow entries from 0 to ``2 ** bits - 1``.

        Raises:
            RunError: one line that names a tensor that is out of range.
        """
        vector = self.zeros()
        wide, narrow = parts(vector, self.wide)
        for name, entry in self.entries.items():
            value = tensors[name].detach().reshape(-1).double().cpu()
            # exactly the largest value may not be reached by a wide one: half a step more would be out of range
            most = entry.bound if isinstance(entry, Narrow) else 2.0 ** (self.value - 1 - entry.fraction) - 1
            reached = float(value.abs().max()) if len(value) else 0.0
            if not reached <= most:
                diverged = clean(name, 80), "training diverged; use a smaller train_args.learning_rate"
                what, use = words.get(name, diverged)
                error = RunError(f"{where}: {what} reaches {reached:.4g}, and at most {most:.4g} fits; {use}")
                raise shareable(error, f"{where}: {what} is out of range; {use}")
            if isinstance(entry, Narrow):
                whole = (value * (share * self.steps(entry))).round_().long() & (2**self.bits - 1)
                narrow[: len(whole)], narrow = whole.numpy(), narrow[len(whole) :]
            else:
                wide[: len(value)] = (value * self.steps(entry)).round_().long().numpy().view(np.uint64)
                wide = wide[len(value) :]
        return vector

    def zeros(self) -> Vector:
        """The sum of nobody's vectors."""
        return np.zeros(self.size, unit(self.bits))

    def add(self, into: Vector, vector: Vector) -> None:
        """Add a vector to another one, in place."""
        add(into, vector, self.bits, self.wide)

    def decode(self, vector: Vector) -> dict[str, Tensor]:
        """The sums of all clients' tensors, those of narrow ones weighted, from the sum of their vectors; float64."""
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
    """Type of a vector's entries."""
    return np.uint16 if bits == 16 else np.uint32


def length(bits: int, wide: int, narrow: int) -> int:
    """Entries of a vector of so many wide values and narrow entries."""
    return narrow + wide * 8 // np.dtype(unit(bits)).itemsize


def parts(vector: Vector, wide: int) -> tuple[NDArray[np.uint64], Vector]:
    """The ``wide`` values of a vector and its narrow entries, in the same memory."""
    end = wide * 8 // vector.itemsize
    return vector[:end].view(np.uint64), vector[end:]


def add(into: Vector, vector: Vector, bits: int, wide: int) -> None:
    """Add a vector to another one, in place: wide values modulo ``2 ** 64``, the others modulo ``2 ** bits``."""
    for sums, values in zip(parts(into, wide), parts(vector, wide), strict=True):
        np.add(sums, values, out=sums)
    trim(into, bits, wide)


def trim(vector: Vector, bits: int, wide: int) -> None:
    """Take the narrow entries modulo ``2 ** bits``, in place."""
    if bits % 16:
        narrow = parts(vector, wide)[1]
        narrow &= narrow.dtype.type(2**bits - 1)
