"""Contract of trackers."""

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

    ``id``: 16 letters, also after a resume; ``folder``: a tracker may store files there; ``parameters``: the recipe
    with every default, by ``section.key``, lists as JSON text; ``earlier``: lines of completed rounds, see
    :meth:`Tracker.on_round`; reports of later rounds before a resume are void.
    """

    id: str
    folder: Path
    parameters: Mapping[str, bool | int | float | str]
    earlier: Sequence[Mapping[str, float]]


class Tracker(Plugin):
    """Reports the progress of a run to another program.

    Hooks run one at a time in a thread. If a hook raises or takes too long, the run warns and continues without the
    tracker.
    """

    def begin(self, run: TrackedRun) -> None:
        """The run begins, or is resumed if ``run.earlier`` has lines."""

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        """A round is complete; ``line``: numbers of its line of ``metrics.jsonl``, and its ``seconds``.

        Names are such as ``recall.3`` of class 3 or ``loss_terms.cross_entropy``; ``round`` counts from 0.
        """

    def finish(self, run: TrackedRun, summary: Mapping[str, float], pictures: Sequence[Path], model: Path) -> None:
        """All rounds are complete; ``summary``: numbers of ``summary.json``; ``pictures``: PNG files."""

    def close(self, run: TrackedRun, state: str) -> None:
        """The last call; ``state``: ``finished``, ``paused``, ``stopped`` (by a person or the system) or ``failed``."""
