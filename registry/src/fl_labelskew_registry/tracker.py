"""Contract of trackers; without heavy imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_labelskew_registry.plugin import Plugin

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers see it.

    Args:
        id: 16 letters that identify this run, also after it is resumed.
        folder: folder of the run; a tracker may store files there.
        parameters: the recipe with every default, ``section.key`` to its value; lists are JSON text, None is ``null``.
        earlier: lines of all completed rounds, as passed to :meth:`Tracker.on_round`; reports of later rounds before a
            resume are void.
    """

    id: str
    folder: Path
    parameters: Mapping[str, bool | int | float | str]
    earlier: Sequence[Mapping[str, float]]


class Tracker(Plugin):
    """Reports the progress of a run to another program. Every hook does nothing unless overridden.

    Hooks run one at a time in a thread of the run's process. If a hook raises or takes too long, the run prints a
    warning and continues without the tracker.
    """

    def begin(self, run: TrackedRun) -> None:
        """The run begins, or is resumed if ``run.earlier`` has lines."""

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        """A round is complete; ``line``: numbers of its line of ``metrics.jsonl``, and its ``seconds``.

        Names are such as ``accuracy``, ``recall.3`` of class 3 or ``loss_terms.cross_entropy``; ``round`` counts from
        0. Shares are 0 to 1.
        """

    def finish(self, run: TrackedRun, summary: Mapping[str, float], pictures: Sequence[Path], model: Path) -> None:
        """All rounds are complete.

        ``summary``: numbers of ``summary.json``; ``pictures``: PNG files; ``model``: the global model, a safetensors
        file.
        """

    def close(self, run: TrackedRun, state: str) -> None:
        """The last call; ``state``: ``finished``, ``paused``, ``stopped`` (by a person or the system) or ``failed``."""
