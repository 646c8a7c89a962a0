"""Process-wide state that a run restores."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def restored(threads: int | None = None) -> Iterator[None]:
    """Restore global generators, the number of torch ``threads`` and the handling of subnormal numbers after the block.

    FedML reseeds the generators, and plugins may. Within the block the CPU treats subnormal values (below 1.2e-38 in
    float32) as 0: it computes with them many times slower, so a crafted model could reveal properties of samples by
    the training time.
    """
    threads_before, python, of_numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    for kind in (np.float16, np.float32, np.float64):
        np.finfo(kind)  # computes subnormal values once; with flushing, numpy would warn that they are 0
    flushed = float(torch.tensor(1e-40) * torch.tensor(1.0)) == 0.0
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count() if in_use else 0)
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.set_num_threads(threads_before)
        torch.set_flush_denormal(flushed)
