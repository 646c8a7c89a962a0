"""Rank, cores, memory and command of this process."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

RANKS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "SLURM_NTASKS"))
"""Variables of Open MPI, MPICH and Slurm with rank and number of processes."""
LAUNCHER = "FL_LABELSKEW_LAUNCHER"  # environment variable with the socket of runtimes/mpi/launch.py
RESUME = "FL_LABELSKEW_RESUME"  # environment variable with the parent's resume_line


def mpi_rank() -> tuple[int, int] | None:
    """Rank and size of this process under ``mpirun`` or ``srun``, if there are several."""
    for rank, size in RANKS:
        values = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(value.isdigit() for value in values):
            place = int(values[0]), int(values[1])
            return place if place[1] > 1 else None
    return None


def place_on_node() -> tuple[int, int] | None:
    """As :func:`mpi_rank`, but on this machine; None if all processes are here."""
    place, names = mpi_rank(), os.environ
    with contextlib.suppress(KeyError, ValueError):
        if "OMPI_COMM_WORLD_LOCAL_RANK" in names:
            here = int(names["OMPI_COMM_WORLD_LOCAL_RANK"]), int(names["OMPI_COMM_WORLD_LOCAL_SIZE"])
        else:  # Slurm has no variable for the number of a node's tasks
            tasks, nodes = int(names["SLURM_STEP_NUM_TASKS"]), int(names["SLURM_STEP_NUM_NODES"])
            here = int(names["SLURM_LOCALID"]), -(-tasks // nodes)
        return here if place is not None and here[1] < place[1] else None
    return None


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> float:
    """Available memory in bytes, at most the cgroup's limit."""
    available = proc_entry("meminfo", "MemAvailable")
    if not available:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = 1024 * float(available.split()[0])
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # missing, or "max"
            free = min(free, float(Path(limit).read_text()))
    return free


def proc_entry(file: str, name: str) -> str:
    """The first value of ``name`` in a file of ``/proc``; empty if it is missing."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def launched() -> bool:
    """Whether :mod:`.runtimes.mpi.launch` started this rank."""
    return LAUNCHER in os.environ


def resume_line(words: Iterable[str]) -> str:
    """``to resume:`` and the command; in a child process, its parent's."""
    return os.environ.get(RESUME) or f"to resume: {shlex.join([program(), *words])}"


def program() -> str:
    """``fedml`` or ``labelskew``, with its folder if the shell needs it."""
    typed = Path(sys.argv[0])
    if typed.name not in ("fedml", "labelskew"):
        return "labelskew"  # called from Python
    return typed.name if shutil.which(typed.name) == str(typed) or len(typed.parts) == 1 else str(typed)
