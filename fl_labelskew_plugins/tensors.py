"""Dictionaries of tensors: types, groups, sizes, files and parts."""

import contextlib
import ctypes
import errno
import mmap
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, uint8

from fl_labelskew_plugins.machine.files import replacing

T = TypeVar("T")
State = dict[str, Tensor]
Weights = dict[str, Tensor]
OPTIMIZER = "optimizer"  # group of the optimiser's tensors; all others are the method's
PIECE = 2**22  # entries of a tensor, or bytes of a message on disk, in memory at a time


def content(tensor: Tensor) -> memoryview:
    """A tensor's bytes, in row-major order."""
    data: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(uint8).numpy().data
    return data


def joined(**groups: Mapping[str, T]) -> dict[str, T]:
    """One dictionary with keys ``group/name``."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def group(tensors: Mapping[str, T], name: str) -> dict[str, T]:
    """The group ``name`` of a dictionary from :func:`joined`."""
    return {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}


def rest(tensors: Mapping[str, T], name: str) -> dict[str, T]:
    """A dictionary from :func:`joined` without the group ``name``."""
    return {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{name}/")}


def save_atomic(
    tensors: State, path: Path, metadata: dict[str, str] | None = None, *, private: bool = True, durable: bool = True
) -> None:
    """Write a safetensors file atomically; ``private``: only for the owner; ``durable``: also if the power fails."""
    with replacing(path, 0o600 if private else 0o666) as part:
        mode = part.stat().st_mode
        try:
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, part, metadata)
        except SafetensorError as error:  # such as a full disk
            number = re.search(r"\(os error (\d+)\)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code) if number else str(error)) from error
        part.chmod(mode)  # the writer may have replaced the file
        if durable:
            with part.open("rb+") as stream:
                os.fsync(stream.fileno())


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors on the wire."""
    return sum(t.numel() * t.element_size() for t in tensors)


class OnDisk(mmap.mmap):
    """A buffer backed by a file."""

    def evict(self) -> None:
        """Remove its pages from memory; the next access reloads them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.madvise(mmap.MADV_DONTNEED)


ON_DISK: weakref.WeakValueDictionary[int, OnDisk] = weakref.WeakValueDictionary()
"""Buffers of decoded messages by the address of their tensors' storage."""


def channels_last(tensor: Tensor) -> bool:
    """Whether the tensor is contiguous in channels-last order."""
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.permute(0, 2, 3, 1).is_contiguous()


def evict(tensor: Tensor) -> None:
    """Remove a tensor from memory if its message is on disk."""
    if (buffer := ON_DISK.get(tensor.untyped_storage().data_ptr())) is not None:
        buffer.evict()


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Flat parts of :data:`PIECE` entries in memory order, evicted after use; one part if not contiguous."""
    flat = tensor.permute(0, 2, 3, 1) if channels_last(tensor) else tensor
    for part in flat.reshape(-1).split(PIECE) if flat.is_contiguous() else [tensor]:  # type: ignore[no-untyped-call]
        yield part
        evict(tensor)


def trim() -> None:
    """Return freed memory, which glibc keeps per thread, to the system."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
