"""Assignment of processes to devices."""

from collections.abc import Sequence

import torch
from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import available_cores, launched, mpi_rank, place_on_node
from fl_labelskew_plugins.recipe.model import Recipe


def gpus(recipe: Recipe, *, warn: bool = False) -> list[int]:
    """GPUs to use, in the recipe's order; empty: the CPU. Raise LabelSkewError if one is missing without fallback."""
    args = recipe.device
    if not args.using_gpu:
        return []
    available = torch.cuda.device_count()
    missing = [gpu for gpu in args.gpu_ids if gpu >= available]
    if not missing:
        return list(dict.fromkeys(args.gpu_ids))
    problem = f"device_args.gpu_ids: no GPU {missing[0]} on this machine, which has {available}"
    if args.fallback is None:
        raise LabelSkewError(f"{problem}; use using_gpu: false, or fallback: cpu")
    if warn:
        log.warn(f"{problem}; training on the CPU")
    return []


def gpu_slots(recipe: Recipe, workers: int) -> list[int]:
    """GPU of each worker from rank 1 on, ascending; empty on the CPU. Raise LabelSkewError for too many workers."""
    selected, most = gpus(recipe), recipe.device.workers_per_gpu
    if not selected:
        return []
    if workers > len(selected) * most:
        raise mistake(
            "device_args.workers_per_gpu",
            f"{workers} workers are more than {len(selected)} GPU(s) with {most} each",
            f"workers_per_gpu: {-(-workers // len(selected))}, or fewer workers",
        )
    return sorted(selected[worker % len(selected)] for worker in range(workers))


def workers(recipe: Recipe, gpus: Sequence[int]) -> int:
    """Number of training processes, without the server; ``gpus``: from :func:`gpus`."""
    if (rank_and_size := mpi_rank()) is not None:
        return rank_and_size[1] - 1
    clients, requested = recipe.train.clients_per_round, recipe.comm.workers
    if requested is None:
        return min(clients, len(gpus) * recipe.device.workers_per_gpu if gpus else available_cores())
    if requested > clients:
        log.warn(f"comm_args.workers: {requested} is more than the {clients} clients per round; starting {clients}")
    return min(requested, clients)


def works(device: torch.device) -> bool:
    """Whether a device still computes: after some errors, CUDA refuses all further work of a process."""
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


def device(recipe: Recipe, rank: int | None = None) -> torch.device:
    """Device of this process, or of ``rank`` in a simulation over MPI; errors as in :func:`gpus`, :func:`gpu_slots`."""
    if rank is None and recipe.comm.over_mpi:
        rank = (mpi_rank() or (None,))[0]
    selected = gpus(recipe, warn=not rank and not launched())  # the launcher has already warned
    if not selected:
        return torch.device("cpu")
    if rank is None:
        return torch.device("cuda", selected[0])
    if (on_node := place_on_node()) is not None:  # GPUs are numbered per node
        gpu_slots(recipe, on_node[1] - 1)  # the server is on one node, and shares a GPU there
        return torch.device("cuda", selected[on_node[0] % len(selected)])
    slots = gpu_slots(recipe, workers(recipe, selected))
    return torch.device("cuda", slots[max(rank - 1, 0)])
