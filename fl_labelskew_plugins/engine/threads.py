"""Number of torch threads of a run. Results depend on it, so it never follows from cores or load: docs/devices.md."""

import contextlib
import copy
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import available_cores

LARGE = 4e9
"""Multiply-adds of a batch's forward pass from which a network gets :data:`THREADS` threads instead of one."""
THREADS = 4


def chosen_by_user() -> int | None:
    """Number of threads that the environment sets, if any."""
    return torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else None


def warn_if_too_many(processes: int, threads: int | None) -> None:
    """Warn if all processes' ``threads`` (default: as set by the user) exceed this machine's cores."""
    threads, cores = threads or chosen_by_user() or 1, available_cores()
    if threads > 1 and processes * threads > cores:
        log.warn(
            f"{processes} processes with {threads} threads each share {cores} cores, which slows all of them down; use "
            "device_args.threads: 1"
        )


def suitable(model: nn.Module, input_shape: Sequence[int], batch_size: int) -> int:
    """Number of threads for training a network on such batches."""
    return THREADS if multiply_adds(model, input_shape) * batch_size >= LARGE else 1


def multiply_adds(model: nn.Module, input_shape: Sequence[int]) -> float:
    """Approximate number of multiply-adds for one sample; ``torch.utils.flop_counter`` needs a second of CPU time.

    Each weight matrix counts once per position of its layer's output, which is exact for linear, convolutional and
    recurrent layers. 0 if the network cannot be copied or rejects such samples: training will report the reason.
    """
    total = 0.0

    def count(module: nn.Module, _: Any, output: Any) -> None:
        nonlocal total
        out = output[0] if isinstance(output, tuple) else output
        channels = out.shape[1 if isinstance(module, nn.modules.conv._ConvNd) else -1]
        total += out.numel() / channels * sum(p.numel() for p in module.parameters(recurse=False) if p.dim() > 1)

    try:
        twin = copy.deepcopy(model).eval()
    except Exception:  # for example, a network with torch.nn.utils.weight_norm
        return 0.0
    for module in twin.modules():
        if not isinstance(module, nn.Embedding) and any(p.dim() > 1 for p in module.parameters(recurse=False)):
            module.register_forward_hook(count)
    for dtype in (torch.float32, torch.uint8):  # measurements, or character numbers
        total = 0.0
        with contextlib.suppress(Exception), torch.random.fork_rng([]), torch.no_grad():
            twin(torch.zeros(1, *input_shape, dtype=dtype))
            return total
    return 0.0
