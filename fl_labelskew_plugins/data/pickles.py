"""Reads pickles of plain values and uint8 arrays, such as CIFAR's batches, and runs nothing that they name.

A pickle can name any function to be called. Here the five names that such a file needs stand for the functions below,
which only gather what they are given; any other name is refused.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from fl_labelskew_registry import LabelSkewError
from numpy.typing import NDArray

from fl_labelskew_plugins.data.files import one_line


class _Type:
    """What ``numpy.dtype`` was called with."""

    def __init__(self, name: object = None, *rest: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like say nothing of single bytes."""


class _Array:
    """What an array's pickle says of it."""

    def __init__(self, *rest: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def value(self) -> NDArray[np.uint8]:
        """The array, copied."""
        _, shape, dtype, by_columns, raw = self.state
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 had one type for both
        if not (isinstance(dtype, _Type) and dtype.name in ("u1", "uint8") and isinstance(raw, bytes)):
            raise pickle.UnpicklingError("its array is not of uint8")
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(raw):
            raise pickle.UnpicklingError(f"{len(raw)} bytes do not make an array of shape {shape}")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C").copy()


class _Bytes:
    """``_codecs.encode``, as Python 3 writes bytes for Python 2; a class, since a pickle may change a function."""

    def __new__(cls, text: str, encoding: str = "latin1") -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"encoding {encoding!r} is no part of such a file")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        """There is none."""


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Bytes,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of such a file and was not run")
        return ALLOWED[module, name]


def read_dict(raw: bytes, where: str | Path) -> dict[str, Any]:
    """A pickled dictionary of plain values, with its uint8 arrays; text of Python 2 is read as latin1.

    Raises:
        LabelSkewError: it is cut short, no such pickle, or names anything but plain arrays.
    """
    try:
        content = _Reader(io.BytesIO(raw), encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds {type(content).__name__} instead of a dictionary")
        return {str(key): value.value() if isinstance(value, _Array) else value for key, value in content.items()}
    except Exception as error:  # a broken pickle raises almost anything
        raise LabelSkewError(
            f"{where}: is not a sound file of this data set ({one_line(error)}); get it again"
        ) from error
