"""Buffers for received payloads."""

import contextlib
import math
import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path

from fl_labelskew_plugins.tensors import OnDisk


class Spool:
    """Allocates at most ``memory_bytes`` in memory, and further buffers in unnamed files in ``folder``."""

    def __init__(self, memory_bytes: float = math.inf, folder: Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder
        self._held: dict[int, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes of all buffers in memory."""
        return sum(list(self._held.values()))

    def buffer(self, size: int) -> bytearray | mmap.mmap:
        """Allocate ``size`` writable bytes. Raises OSError if the disk is full."""
        if size == 0:
            return bytearray()
        with self._lock:
            # a finaliser may run at any point of this thread, so it takes no lock; a pop is atomic
            if self.held + size <= self.memory_bytes:
                self._count += 1
                made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if hasattr(mmap, "MADV_HUGEPAGE"):  # page faults would be as slow as the network
                    with contextlib.suppress(OSError):  # a kernel without huge pages
                        made.madvise(mmap.MADV_HUGEPAGE)
                self._held[self._count] = size
                weakref.finalize(made, self._held.pop, self._count, None).atexit = False
                return made
        with tempfile.TemporaryFile(dir=self.folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # on a full disk, a later page write would end the process
                os.posix_fallocate(file.fileno(), 0, size)
            return OnDisk(file.fileno(), size)
