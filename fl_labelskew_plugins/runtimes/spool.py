"""Where payloads are while they are received and while they wait: in memory up to a bound, beyond it on disk."""

from __future__ import annotations

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
    """Buffers for payloads that are being received or wait for their turn; beyond a bound they are on disk.

    Args:
        memory_bytes: held in memory by all buffers together, at most.
        folder: of the files of further buffers, which have no name there.
    """

    def __init__(self, memory_bytes: float = math.inf, folder: Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder
        self._held: dict[int, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes that buffers hold in memory now."""
        return sum(list(self._held.values()))

    def buffer(self, size: int) -> bytearray | mmap.mmap:
        """``size`` writable bytes, let go with the last reference to them.

        Raises:
            OSError: there is no room.
        """
        if size == 0:
            return bytearray()
        with self._lock:
            # A finaliser may run at any point of this thread: it takes no lock, and one pop is one step.
            if self.held + size <= self.memory_bytes:
                self._count += 1
                made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if hasattr(mmap, "MADV_HUGEPAGE"):  # or the kernel would fetch it page by page, as slow as the network
                    with contextlib.suppress(OSError):  # a kernel without them
                        made.madvise(mmap.MADV_HUGEPAGE)
                self._held[self._count] = size
                weakref.finalize(made, self._held.pop, self._count, None).atexit = False
                return made
        with tempfile.TemporaryFile(dir=self.folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # room that is missing only when a page is written ends the process
                os.posix_fallocate(file.fileno(), 0, size)
            return OnDisk(file.fileno(), size)
