"""The process and machine of a run: versions, processor, memory."""

from __future__ import annotations

import contextlib
import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("fl-labelskew-plugins", "fl-labelskew-registry", "fedml", "torch", "torchvision", "numpy")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and machine facts on which numbers may depend."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": versions,
        "argv": sys.argv[1:],
    }


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peak memory of this process in MB (10^6 bytes); on a GPU also that of its tensors there.

    On Linux not from ``ru_maxrss``, which a process inherits from its parent.
    """
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak = float(line.split()[1]) * 1024
    peaks = {"peak_mb": round(peak / 1e6, 1)}
    if device.type == "cuda":
        peaks["peak_gpu_mb"] = round(torch.cuda.max_memory_allocated(device) / 1e6, 1)
    return peaks


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
