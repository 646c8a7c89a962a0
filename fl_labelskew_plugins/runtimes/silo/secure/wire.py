"""Messages of the protocol's steps as tensors: ``{rank: bytes}``, and vectors of a ring."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.engine.sums import as_vector
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt
from fl_labelskew_plugins.runtimes.transport import Kind

STEPS = {
    Kind.KEYS: "keys",
    Kind.SHARES: "sealed shares",
    Kind.CHECKED: "checks of shares",
    Kind.MASKED: "masked vectors",
    Kind.INCLUDED: "signatures",
    Kind.REVEALED: "revealed shares",
}
"""The steps in order, and a silo's answers; request and answer have the same kind."""
VECTOR = "vector"
MOST = 10**6  # bytes: the commitments of some thousand silos


def tensors(texts: Mapping[int, bytes]) -> dict[str, Tensor]:
    """Tensors from bytes per rank."""
    return {str(rank): torch.frombuffer(bytearray(text), dtype=torch.uint8) for rank, text in texts.items()}


def texts(received: Mapping[str, Tensor], attempt: Attempt) -> dict[int, bytes]:
    """The inverse of :func:`tensors`. Raises SecureError."""
    for name, value in received.items():
        if not (name.isdecimal() and len(name) < 10 and value.dtype is torch.uint8 and 0 < value.numel() <= MOST):
            raise attempt.error(f"tensor {name} does not belong to this step")
    return {int(name): value.numpy().tobytes() for name, value in received.items()}


def shares(received: Mapping[str, Tensor], attempt: Attempt) -> tuple[dict[int, bytes], bytes]:
    """The encrypted shares per rank, and the commitments (rank 0)."""
    sealed = texts(received, attempt)
    return sealed, sealed.pop(0, b"")


def vector(received: Mapping[str, Tensor], attempt: Attempt) -> Vector:
    """A masked vector. Raises SecureError."""
    value = received.get(VECTOR)
    if value is None or len(received) != 1 or value.dtype not in (torch.int16, torch.int32):
        raise attempt.error(f"the {VECTOR} is missing or of another type")
    return as_vector(value)
