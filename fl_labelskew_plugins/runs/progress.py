"""Reports during a run, see :mod:`.show.progress`, and its early stop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_labelskew_plugins.machine import log

OnLine = Callable[[dict[str, Any]], None]  # called with a round's line of metrics
PAUSE = "FL_LABELSKEW_PAUSE"
"""Environment variable with a :class:`Pause`, for child processes."""


@dataclass(frozen=True)
class Pause:
    """When a run stops early, with a checkpoint to resume from.

    ``rounds``: after this number of complete rounds. ``at``: time of :func:`time.monotonic`, the same for all processes
    of a machine. A run in one process stops before its next batch and discards the round; others start no further
    round. ``within``: likewise, seconds after this process's first batch, once some batches are timed.
    """

    rounds: int
    at: float
    within: float = math.inf

    @classmethod
    def inherited(cls) -> Pause | None:
        """The parent process's pause, if any."""
        rounds, *times = os.environ.get(PAUSE, "").split() or [""]
        return cls(int(rounds), *map(float, times)) if times else None

    def __str__(self) -> str:
        return f"{self.rounds} {self.at} {self.within}"


class Progress:
    """Reports progress; this base class prints nothing."""

    on_line: OnLine | None = None  # called after a round's line is written and shown; an exception ends the run

    def note(self, text: str, level: str = log.INFO) -> None:
        """Print one line."""

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Start the display."""

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        """A client starts to train."""

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """A round has ended."""

    def stop(self) -> None:
        """End the display, also after a failure."""
