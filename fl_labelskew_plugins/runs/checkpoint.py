"""Checkpoint files: the state of a run as tensors and a header."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import LabelSkewError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fl_labelskew_plugins.machine.files import check_regular
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.tensors import Weights, group

CPU = torch.device("cpu")

DAMAGED = (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``round`` rounds."""

    round: int = 0
    weights: Weights = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)  # the server's tensors for clients
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # the server's own tensors
    states: dict[int, int] = field(default_factory=dict)  # client to the round of its private state
    selections: dict[int, int] = field(default_factory=dict)  # client to its number of selections
    seconds: float = 0.0
    sizes: list[int] = field(default_factory=list)  # training samples of each client
    opened: list[int] = field(default_factory=list)  # clients with an opening in `shared`
    medians: dict[str, float] = field(default_factory=dict)  # of uploads' norms, see runtimes/silo/outliers.py


def read(file: Path, device: torch.device = CPU, *, tensors: bool = True) -> Checkpoint:
    """Read a checkpoint, optionally without its tensors; raises LabelSkewError if it is damaged."""
    with _opened(file, device) as (meta, content):
        names: list[str] = content.keys()
        loaded = {name: content.get_tensor(name) for name in names if tensors or name.startswith("clients/")}
        meta |= {name: numbers.tolist() for name, numbers in group(loaded, "clients").items()}
        meta |= {name: {int(client): number for client, number in meta[name]} for name in ("states", "selections")}
        meta["medians"] = {name: float(middle) for name, middle in meta.get("medians", {}).items()}
        meta |= {"round": int(meta["round"]), "seconds": float(meta.get("seconds", 0))}
        return Checkpoint(
            weights=group(loaded, "model"), shared=group(loaded, "shared"), memory=group(loaded, "memory"), **meta
        )


@contextlib.contextmanager
def _opened(file: Path, device: torch.device = CPU) -> Iterator[tuple[dict[str, Any], Any]]:
    try:
        check_regular(file)
        with safe_open(file, "pt", device=str(device)) as opened:
            yield json.loads(opened.metadata()["labelskew"]), opened
    except DAMAGED as error:
        raise LabelSkewError(f"{file} is not a checkpoint of a run: {clean(str(error), 200)}") from error


def table(numbers: Mapping[int, int]) -> Tensor:
    """Pairs of client and number, ``(n, 2)``."""
    pairs = itertools.chain.from_iterable(numbers.items())
    return torch.from_numpy(np.fromiter(pairs, np.int64, 2 * len(numbers))).reshape(-1, 2)


def round_of(file: Path) -> int | None:
    """The number of complete rounds; None for a missing or damaged file."""
    with contextlib.suppress(LabelSkewError), _opened(file) as (meta, _):
        return int(meta["round"])
    return None
