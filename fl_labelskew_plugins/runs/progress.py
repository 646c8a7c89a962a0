"""What a runtime reports while a run goes on, and when a run stops early; :mod:`.show.progress` shows it to people."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_labelskew_plugins.machine import log

Hear = Callable[[dict[str, Any]], None]
"""Told of a round's line of metrics."""
PAUSE = "FL_LABELSKEW_PAUSE"
"""Environment variable with a :class:`Pause`, for the processes that a command has started."""


@dataclass(frozen=True)
class Pause:
    """When a run stops before its last round, with a checkpoint to go on from.

    Args:
        rounds: as soon as so many are complete.
        at: at this time, in seconds of :func:`time.monotonic`, a clock that all processes of a machine share. A run in
            one process stops before its next batch, discards the round, and repeats it when it resumes; another one
            begins no further round.
        within: so many seconds after the first batch of this process, likewise, once some batches are timed.
    """

    rounds: int
    at: float
    within: float = math.inf

    @classmethod
    def inherited(cls) -> Pause | None:
        """The one of the command that has started this process."""
        rounds, *times = os.environ.get(PAUSE, "").split() or [""]
        return cls(int(rounds), *map(float, times)) if times else None

    def __str__(self) -> str:
        return f"{self.rounds} {self.at} {self.within}"


class Progress:
    """Told of every client and round; as it is, it says nothing."""

    hear: Hear | None = None
    """Told of every round once it is written and shown; what it raises ends the run."""

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line."""

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Begin: rounds done already, rounds in all, clients of a round, and when it stops early."""

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        """A round's client is about to train; ``number`` counts from 1, ``name`` is empty where it has none."""

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """A round has ended, with its line of metrics."""

    def stop(self) -> None:
        """End of the display, also after a failure."""
