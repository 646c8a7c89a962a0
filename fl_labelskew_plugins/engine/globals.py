"""The state of a process that a run shares with its caller: global generators, and torch's number of threads."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def restored(threads: int | None = None) -> Iterator[None]:
    """Restore the global generators and the number of torch threads at the end of the block, even if it raises.

    The generators are those of ``random``, numpy and torch, and of the GPUs if this process already uses them.
    FedML reseeds them all, and so may a plugin.

    Args:
        threads: the number of torch threads within the block; default: as it is.
    """
    before, python, of_numpy, cpu = (
        torch.get_num_threads(),
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        torch.set_num_threads(before)
