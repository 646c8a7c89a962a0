"""Large tensors a part at a time: how they lie in memory, or on disk, and how both are given back."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Iterator

from torch import Tensor

PIECE = 2**22
"""Entries of a large tensor, or bytes of a message on its way to disk, that are in memory at a time."""


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
