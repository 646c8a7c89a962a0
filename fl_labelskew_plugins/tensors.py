"""Dictionaries of tensors: their types, groups, sizes and files; large ones a part at a time, in memory and on disk."""

from __future__ import annotations

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
from torch import Tensor

from fl_labelskew_plugins.machine.files import replacing

T = TypeVar("T")
State = dict[str, Tensor]
Weights = dict[str, Tensor]
OPTIMIZER = "optimizer"
"""Group of what belongs to the optimiser among tensors that are shared, kept or sent; the rest is the method's."""
PIECE = 2**22
"""Entries of a large tensor, or bytes of a message on its way to disk, that are in memory at a time."""


def joined(**groups: Mapping[str, T]) -> dict[str, T]:
    """Several dictionaries, of tensors or of their shapes, as one, each name preceded by its group's and a slash."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def group(tensors: Mapping[str, T], name: str) -> dict[str, T]:
    """The group ``name`` of what :func:`joined` made."""
    return {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{name}/")}


def rest(tensors: Mapping[str, T], name: str) -> dict[str, T]:
    """Everything but the group ``name`` of what :func:`joined` made."""
    return {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{name}/")}


def save_atomic(tensors: State, path: Path, metadata: dict[str, str] | None = None, *, private: bool = True) -> None:
    """Write tensors as safetensors so that a reader sees the old file or the whole new one, also after a power cut.

    ``private``: only the owner can read the file; else the umask decides, as for other files.
    """
    with replacing(path, 0o600 if private else 0o666) as part:
        mode = part.stat().st_mode
        try:
            save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, part, metadata)
        except SafetensorError as error:  # what it says of a full disk, in the form of every other file's
            number = re.search(r"\(os error (\d+)\)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code) if number else str(error)) from error
        part.chmod(mode)  # the writer may have put a file of its own there
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors take on the wire."""
    return sum(t.numel() * t.element_size() for t in tensors)


class OnDisk(mmap.mmap):
    """A buffer that is a file; what is written to it is in the kernel's page cache and on its way to the disk."""

    def evict(self) -> None:
        """Take its pages out of this process's memory; the next access brings them back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.madvise(mmap.MADV_DONTNEED)


ON_DISK: weakref.WeakValueDictionary[int, OnDisk] = weakref.WeakValueDictionary()
"""Buffers of decoded messages, by the address of their tensors' storage."""


def channels_last(tensor: Tensor) -> bool:
    """Whether another order of the axes, and no copy, makes it contiguous."""
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.permute(0, 2, 3, 1).is_contiguous()


def evict(tensor: Tensor) -> None:
    """Take a tensor's message out of memory where it lies on disk; nothing for others."""
    buffer = ON_DISK.get(tensor.untyped_storage().data_ptr())
    if buffer is not None:
        buffer.evict()


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor's entries as flat parts of at most :data:`PIECE`, in the order in which they lie in memory.

    Of a tensor whose message is on disk one part at a time is in memory. One with gaps comes as it is.
    """
    flat = tensor.permute(0, 2, 3, 1) if channels_last(tensor) else tensor
    for part in flat.reshape(-1).split(PIECE) if flat.is_contiguous() else [tensor]:  # type: ignore[no-untyped-call]
        yield part
        evict(tensor)


def trim() -> None:
    """Give the system back what was freed; glibc keeps it for later, for each thread apart."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
