"""What a tracker implements, and what it is told of a run; nothing here imports anything heavy."""

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
        id: 16 letters that name this run among all others, the same whenever it is gone on with.
        folder: the run's own; its name is the run's, and a tracker may keep files of its own there.
        parameters: the recipe with every default, ``section.key`` to its value; lists are JSON text, None is ``null``.
        earlier: the lines of all rounds that are complete, in order, as :meth:`Tracker.on_round` was given them. What
            was told of any later round before the run was resumed no longer counts.
    """

    id: str
    folder: Path
    parameters: Mapping[str, bool | int | float | str]
    earlier: Sequence[Mapping[str, float]]


class Tracker(Plugin):
    """Shows a run to somebody else's program while it goes on. Every hook does nothing unless it is overridden.

    Hooks are called one after the other in the run's process, in a thread. A hook that raises or takes too long becomes
    a warning, and the run continues without the tracker.
    """

    def begin(self, run: TrackedRun) -> None:
        """The run begins or, where there are lines in ``run.earlier``, may be gone on with."""

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        """A round is complete.

        Args:
            run: as it was when it began.
            line: the numbers of the round's line of ``metrics.jsonl``, such as ``accuracy``, ``recall.3`` of class 3
                or ``loss_terms.cross_entropy``, and the round's ``seconds``; ``round`` counts from 0. Shares are
                between 0 and 1.
        """

    def finish(self, run: TrackedRun, summary: Mapping[str, float], pictures: Sequence[Path], model: Path) -> None:
        """All rounds are done.

        Args:
            run: as it was when it began.
            summary: the numbers of ``summary.json``, named as those of a line.
            pictures: PNG files that the run has drawn.
            model: the global model, a file of safetensors.
        """

    def close(self, run: TrackedRun, state: str) -> None:
        """The last call, also after an error.

        Args:
            run: as it was when it began.
            state: ``finished``, ``paused``, ``stopped`` (by a person or the system) or ``failed``.
        """
