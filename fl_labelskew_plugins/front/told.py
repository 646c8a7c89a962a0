"""A display that tells somebody else of every round, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.runs.progress import Pause, Progress

Hear = Callable[[dict[str, Any]], None]
"""Told of a round's line of metrics."""


class Told(Progress):
    """A display, and whoever hears of a round after it.

    Args:
        show: the display.
        hear: told of every round once it is written; what it raises ends the run.
    """

    def __init__(self, show: Progress, hear: Hear) -> None:
        self._show, self._hear = show, hear

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line."""
        self._show.note(text, level)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Begin."""
        self._show.start(title, done, rounds, clients, pause)

    def client(self, round: int, number: int, clients: int) -> None:
        """A client is about to train."""
        self._show.client(round, number, clients)

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """Show the round, and tell of it."""
        self._show.round(line, seconds)
        self._hear(line)

    def stop(self) -> None:
        """End the display."""
        self._show.stop()
