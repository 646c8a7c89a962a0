"""What the steps send, as tensors: ``{rank: bytes}``, and vectors of the ring."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt
from fl_labelskew_plugins.runtimes.transport import Kind

STEPS = {
    Kind.KEYS: "keys",
    Kind.SHARES: "sealed shares",
    Kind.CHECKED: "checks of shares",
    Kind.MASKED: "masked vectors",
    Kind.THERE: "signatures",
    Kind.REVEALED: "revealed shares",
}
"""Messages of the steps, in their order, and what they hold; the server asks with one, the silo answers with it."""
VECTOR = "vector"
MOST = 10**6
"""Bytes of a text: as many as the commitments of some thousand silos."""


def tensors(texts: Mapping[int, bytes]) -> dict[str, Tensor]:
    """Bytes of each rank, on their way out."""
    return {str(rank): torch.frombuffer(bytearray(text), dtype=torch.uint8) for rank, text in texts.items()}


def texts(arrived: Mapping[str, Tensor], attempt: Attempt) -> dict[int, bytes]:
    """What :func:`tensors` made.

    Raises:
        SecureError: they are none.
    """
    for name, value in arrived.items():
        if not (name.isdecimal() and len(name) < 10 and value.dtype is torch.uint8 and 0 < value.numel() <= MOST):
            raise attempt.error(f"tensor {name} is none of this step")
    return {int(name): value.numpy().tobytes() for name, value in arrived.items()}


def shares(arrived: Mapping[str, Tensor], attempt: Attempt) -> tuple[dict[int, bytes], bytes]:
    """Sealed shares for each rank; and the commitments, which stand for rank 0."""
    sealed = texts(arrived, attempt)
    return sealed, sealed.pop(0, b"")


def sent(vector: Vector) -> dict[str, Tensor]:
    """A vector, on its way out; the wire has signed numbers of as many bytes alone."""
    return {VECTOR: torch.from_numpy(vector.view(f"i{vector.itemsize}"))}


def vector(arrived: Mapping[str, Tensor], attempt: Attempt) -> Vector:
    """What :func:`sent` made.

    Raises:
        SecureError: it is none.
    """
    value = arrived.get(VECTOR)
    if value is None or len(arrived) != 1 or value.dtype not in (torch.int16, torch.int32):
        raise attempt.error(f"there is no {VECTOR} of the ring")
    unsigned: Vector = value.numpy().view(f"u{value.element_size()}")
    return unsigned
