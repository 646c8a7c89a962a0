"""What tells the samples of one data set from those of another of the same name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from fl_labelskew_registry import Arrays, Data, Images
from numpy.typing import NDArray

NO_FILES = "made from the recipe and its seed"
"""Stands for data sets that read no files of a user's."""


def fingerprint(data: Data) -> str:
    """The data set's own, or the :func:`digest` of its two parts."""
    return data.fingerprint or digest([data.train, data.test], data.class_names)


def digest(parts: Iterable[Arrays], names: Sequence[str]) -> str:
    """BLAKE2b of names and of every part's samples, labels and groups in order, in 32 hexadecimal digits.

    Pictures that stay in files count by name, below the folder that they share, and size: none is read.
    """
    total = hashlib.blake2b(json.dumps(list(names)).encode(), digest_size=16)
    for part in parts:
        for array in (part.x, part.y, part.groups):
            if isinstance(array, Images):
                total.update(json.dumps(_names_and_sizes(array.files)).encode())
            elif array is not None:
                add_array(total, array)
    return total.hexdigest()


def add_array(total: hashlib.blake2b, array: NDArray[Any]) -> None:
    """Add type, shape and numbers of an array of any shape."""
    total.update(f"{array.dtype} {array.shape}".encode())
    total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _names_and_sizes(files: Sequence[str]) -> list[tuple[str, int]]:
    """The files' names below the folder that they share, and their sizes; names alone, where they are no files here."""
    try:
        folder = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
        return [(os.path.relpath(file, folder), os.stat(file).st_size) for file in files]
    except (OSError, ValueError):
        return [(file, -1) for file in files]
