"""Fingerprints that distinguish samples of data sets with the same name."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from fl_labelskew_registry import Arrays, Data, Images
from numpy.typing import NDArray

NO_FILES = "made from the recipe and its seed"


def fingerprint(data: Data) -> str:
    """The data set's own fingerprint, or the :func:`digest` of its parts."""
    return data.fingerprint or digest([data.train, data.test], data.class_names)


def digest(parts: Iterable[Arrays], names: Sequence[str]) -> str:
    """BLAKE2b of names, samples (images in files: name and size), labels and groups, in 32 hexadecimal digits."""
    total = hashlib.blake2b(json.dumps(list(names)).encode(), digest_size=16)
    for part in parts:
        for array in (part.x, part.y, part.groups):
            if isinstance(array, Images):
                total.update(json.dumps(_names_and_sizes(array.files)).encode())
            elif array is not None:
                add_array(total, array)
    return total.hexdigest()


def add_array(total: hashlib.blake2b, array: NDArray[Any]) -> None:
    """Add dtype, shape and values of an array."""
    total.update(f"{array.dtype} {array.shape}".encode())
    total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _names_and_sizes(files: Sequence[str]) -> list[tuple[str, int]]:
    """Names relative to the common folder, and sizes; absolute names of missing files."""
    try:
        folder = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
        return [(os.path.relpath(file, folder), os.stat(file).st_size) for file in files]
    except (OSError, ValueError):
        return [(file, -1) for file in files]
