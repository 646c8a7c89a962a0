"""Software and hardware of a run's process."""

import contextlib
import functools
import platform
import re
import resource
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fl_labelskew_plugins.machine.place import proc_entry

SECRET = re.compile(r"-[\w-]*(token|secret|passw|passphrase|key)[\w-]*$", re.IGNORECASE)  # names of options
PACKAGES = ("fl-labelskew-plugins", "fl-labelskew-registry", "fedml", "torch", "torchvision", "numpy")


def environment(device: torch.device) -> dict[str, Any]:
    """All facts on which numbers may depend."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": proc_entry("cpuinfo", "model name") or platform.processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        "argv": _without_secrets(sys.argv[1:]),
    }


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Replace values of options such as ``--token``: a run inside another program, such as Flower, has its options.

    >>> _without_secrets(["--token", "abc", "--api-key=abc", "--round", "3"])
    ['--token', '***', '--api-key=***', '--round', '3']
    """
    found = list[str]()
    for word in words:
        name, equals, _ = word.partition("=")
        secret = bool(SECRET.match(name)) and bool(equals)
        after = bool(found) and bool(SECRET.match(found[-1])) and not word.startswith("-")
        found.append("***" if after else f"{name}=***" if secret else word)
    return found


@functools.cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peak memory of this process, and of its tensors on a GPU, in MB (10^6 bytes)."""
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
    if own := proc_entry("self/status", "VmHWM"):  # a process inherits ru_maxrss from its parent
        peak = float(own.split()[0]) * 1024
    peaks = {"peak_mb": round(peak / 1e6, 1)}
    if device.type == "cuda":
        peaks["peak_gpu_mb"] = round(torch.cuda.max_memory_allocated(device) / 1e6, 1)
    return peaks
