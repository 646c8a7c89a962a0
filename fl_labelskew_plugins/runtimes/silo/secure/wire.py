"""Messages of the protocol's steps as tensors: ``{rank: bytes}``, and vectors of the ring."""

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
"""The steps in order, and the content of a silo's answer; request and answer have the same kind."""
VECTOR = "vector"
MOST = 10**6
"""Largest text in bytes: the commitments of some thousand silos."""


def tensors(texts: Mapping[int, bytes]) -> dict[str, Tensor]:
    """Convert bytes per rank to tensors."""
    return {str(rank): torch.frombuffer(bytearray(text), dtype=torch.uint8) for rank, text in texts.items()}


def texts(arrived: Mapping[str, Tensor], attempt: Attempt) -> dict[int, bytes]:
    """Convert the tensors of :func:`tensors` back to bytes per rank.

    Raises:
        SecureError: a tensor has an invalid name, type or size.
    """
    for name, value in arrived.items():
        if not (name.isdecimal() and len(name) < 10 and value.dtype is torch.uint8 and 0 < value.numel() <= MOST):
            raise attempt.error(f"tensor {name} does not belong to this step")
    return {int(name): value.numpy().tobytes() for name, value in arrived.items()}


def shares(arrived: Mapping[str, Tensor], attempt: Attempt) -> tuple[dict[int, bytes], bytes]:
    """Return the encrypted shares per rank, and the commitments, which are stored under rank 0."""
    sealed = texts(arrived, attempt)
    return sealed, sealed.pop(0, b"")


def sent(vector: Vector) -> dict[str, Tensor]:
    """Convert a vector to a tensor; the wire knows only signed numbers of this size."""
    return {VECTOR: torch.from_numpy(vector.view(f"i{vector.itemsize}"))}


def vector(arrived: Mapping[str, Tensor], attempt: Attempt) -> Vector:
    """Convert the tensor of :func:`sent` back to a vector.

    Raises:
        SecureError: it is missing, or of another type.
    """
    value = arrived.get(VECTOR)
    if value is None or len(arrived) != 1 or value.dtype not in (torch.int16, torch.int32):
        raise attempt.error(f"the {VECTOR} is missing or of another type")
    unsigned: Vector = value.numpy().view(f"u{value.element_size()}")
    return unsigned
