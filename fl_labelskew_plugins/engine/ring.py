"""Fixed point in a ring of whole numbers modulo ``2 ** bits``: what is added up there is exact, in whatever order.

A client writes a mapping of tensors as one flat vector; the sum of such vectors, modulo ``2 ** bits``, gives the sums
of their tensors. Two kinds of tensors are written:

- A *narrow* one takes one entry of the vector for each value. Values are at most ``bound`` and weighted by the clients'
  shares, which sum to at most 1, so that a sum of them is at most ``bound``, too, however many there are; the step is
  ``bound`` divided by half of the ring, less the half steps by which clients round.
- A *wide* one has a step of its own, such as ``2 ** -20``, and spreads a value over several entries, its digits, each
  of which leaves room for the carries of all clients.

A value out of range is an error before anything leaves a client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from fl_labelskew_registry import RunError
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins.machine.text import clean

Vector = NDArray[np.uint32]


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
        # narrow ones come first
        self.entries = dict(sorted(entries.items(), key=lambda item: isinstance(item[1], Wide)))
        self.carry = (clients - 1).bit_length()
        self.base = bits - self.carry
        """Bits of a digit."""
        self.value = 64 - 2 * self.carry
        """Bits of a wide value, its sign included: as many as two digits of 32 bits have, and their sum fits 64."""
        self.digits = math.ceil(self.value / self.base)
        self._top = (2 ** (bits - 1) - 1 - clients) / (1 + head_room)  # each client's rounding adds half a step
        self.mask = np.uint32(2**bits - 1)
        narrow = sum(math.prod(e.shape) for e in self.entries.values() if isinstance(e, Narrow))
        self.narrow = slice(0, narrow)
        """Where the narrow tensors are in the vector."""
        wide = sum(math.prod(e.shape) for e in self.entries.values() if isinstance(e, Wide))
        self.size = narrow + self.digits * wide
        """Entries of the vector."""

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
            ``(size,)``, entries from 0 to ``2 ** bits - 1``.

        Raises:
            RunError: one line that names a tensor that is out of range.
        """
        vector: Vector = np.empty(self.size, np.uint32)
        at = 0
        for name, entry in self.entries.items():
            value = tensors[name].detach().reshape(-1).double().cpu()
            # exactly the largest value may not be reached by a wide one: half a step more would be out of range
            most = entry.bound if isinstance(entry, Narrow) else 2.0 ** (self.value - 1 - entry.fraction) - 1
            reached = float(value.abs().max()) if len(value) else 0.0
            if not reached <= most:
                diverged = clean(name, 80), "training diverged; use a smaller train_args.learning_rate"
                what, use = words.get(name, diverged)
                raise RunError(f"{where}: {what} reaches {reached:.4g}, and at most {most:.4g} fits; {use}")
            if isinstance(entry, Narrow):
                whole = (value * (share * self.steps(entry))).round_().long()
                vector[at : at + len(whole)] = whole.numpy().astype(np.uint32) & self.mask
                at += len(whole)
                continue
            whole = (value * self.steps(entry)).round_().long()
            for digit in range(self.digits):
                last = digit == self.digits - 1  # which has the sign
                part = whole if last else whole & (2**self.base - 1)
                vector[at : at + len(whole)] = part.numpy().astype(np.uint32) & self.mask
                whole = whole >> self.base
                at += len(whole)
        return vector

    def zeros(self) -> Vector:
        """The sum of nobody's vectors."""
        return np.zeros(self.size, np.uint32)

    def add(self, into: Vector, vector: Vector) -> None:
        """Add a vector to another one, in place."""
        np.add(into, vector, out=into)  # modulo 2 ** 32
        np.bitwise_and(into, self.mask, out=into)

    def decode(self, vector: Vector) -> dict[str, Tensor]:
        """The sums of all clients' tensors, those of narrow ones weighted, from the sum of their vectors; float64."""
        sums: dict[str, Tensor] = {}
        at = 0
        for name, entry in self.entries.items():
            size = math.prod(entry.shape)
            if isinstance(entry, Narrow):
                whole = self._signed(vector[at : at + size])
                at += size
            else:
                whole = torch.zeros(size, dtype=torch.int64)
                for digit in range(self.digits):
                    last = digit == self.digits - 1
                    part = vector[at : at + size]
                    at += size
                    digits = self._signed(part) if last else torch.from_numpy(part.astype(np.int64))
                    whole += digits << (digit * self.base)
            sums[name] = (whole.double() / self.steps(entry)).reshape(entry.shape)
        return sums

    def _signed(self, part: Vector) -> Tensor:
        whole = torch.from_numpy(part.astype(np.int64))
        return whole - ((whole >> (self.bits - 1)) << self.bits)
