"""Process-wide state that a run restores."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def restored(threads: int | None = None) -> Iterator[None]:
    """Restore global generators, the number of torch ``threads`` and the handling of subnormal numbers after the block.

    FedML reseeds the generators of ``random``, numpy, torch and GPUs, and plugins may. Within the block the CPU treats
    subnormal values (below 1.2e-38 in float32) as 0: it computes with them many times slower, so a crafted model could
    reveal properties of samples by the training time.
    """
    before, python, of_numpy, cpu = (
        torch.get_num_threads(),
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )
    flushed = _flushes_subnormals()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)


def _flushes_subnormals() -> bool:
    """Whether the CPU treats subnormal values as 0."""
    for kind in (np.float16, np.float32, np.float64):
        np.finfo(kind)  # computes subnormal values once; with flushing, numpy would warn that they are 0
    return float(torch.tensor(1e-40) * torch.tensor(1.0)) == 0.0
