"""Memory of processes, without the pages of files: those can be written and dropped at any time."""

import contextlib
import threading
from pathlib import Path


def anonymous(pid="self"):
    """In MB; 0 for a process that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0)


class Peak:
    """Maximum additional memory of each process from now on."""

    def __init__(self, *pids):
        self.pids, self.before = pids, [anonymous(pid) for pid in pids]
        self.most, self.over = list(self.before), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while not self.over.wait(0.003):
            for i, pid in enumerate(self.pids):
                with contextlib.suppress(OSError):
                    self.most[i] = max(self.most[i], anonymous(pid))

    def end(self):
        """In MB, for each process."""
        self.over.set()
        self.thread.join()
        return [most - before for most, before in zip(self.most, self.before, strict=True)]
