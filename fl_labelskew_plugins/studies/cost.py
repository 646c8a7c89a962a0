"""Estimate time and memory of runs, from the rounds or batches of one run of each kind.

Runs of one kind differ only in their seed and in the sizes of non-zero decimals, such as a learning rate.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fl_labelskew_registry import LabelSkewError
from rich.filesize import decimal

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.show.progress import clock
from fl_labelskew_plugins.studies.finished import number
from fl_labelskew_plugins.studies.reproduce import Planned

HEAD = ("runs like", "runs", "rounds left", "s/round", "left", "memory", "known from")
PROBE_ROUNDS, PROBE_S = 2, 5.0  # rounds and seconds of a probe run
DECIMALS = ("train_args", "method_args", "partition_args", "privacy_args")  # sections


@dataclass(frozen=True)
class Estimate:
    """Seconds before the rounds and per round; peak bytes of the run's (or server's) process and on a GPU."""

    start: float
    round: float
    memory: float
    gpu: float
    source: str


@dataclass(frozen=True)
class RunKind:
    """Runs of one kind; ``left``: missing rounds of each unfinished run."""

    runs: tuple[Planned, ...]
    left: tuple[int, ...]
    estimate: Estimate | None

    @property
    def seconds(self) -> list[float]:
        """Remaining seconds of each unfinished run, if known."""
        return [self.estimate.start + self.estimate.round * rounds for rounds in self.left] if self.estimate else []

    def row(self) -> list[str]:
        """The row under :data:`HEAD`."""
        head = [self.runs[0].name, str(len(self.runs)), str(sum(self.left))]
        if self.estimate is None:
            return [*head, *["?"] * 3, "nothing yet"]
        memory = decimal(round(self.estimate.memory))
        memory += f", GPU {decimal(round(self.estimate.gpu))}" if self.estimate.gpu else ""
        memory += "" if self.runs[0].recipe.comm.in_process else " (server)"
        return [*head, f"{self.estimate.round:.3g}", clock(sum(self.seconds)), memory, self.estimate.source]


def kinds(planned: Sequence[Planned]) -> list[RunKind]:
    """Group runs by kind, with estimates from their folders."""
    groups: dict[str, list[Planned]] = {}
    for run in planned:
        groups.setdefault(_kind(run.recipe), []).append(run)
    result = []
    for runs in groups.values():
        left = [run.recipe.train.comm_round - _rounds(run) for run in runs if not run.folder.summary.exists()]
        estimate = _estimate(max(runs, key=_rounds)) or next(filter(None, map(_estimate, runs)), None)
        result.append(RunKind(tuple(runs), tuple(left), estimate))
    return result


def _rounds(run: Planned) -> int:
    return len(read_lines(run.folder.timings))


def unknown(planned: Sequence[Planned]) -> list[Planned]:
    """Return one unfinished run of each kind without an estimate."""
    unmeasured = [kind for kind in kinds(planned) if kind.estimate is None and kind.left]
    return [next(run for run in kind.runs if not run.folder.summary.exists()) for kind in unmeasured]


def seconds(kinds: Sequence[RunKind], jobs: int) -> float:
    """Lower bound on the remaining seconds with ``jobs`` runs at a time."""
    each = [seconds for kind in kinds for seconds in kind.seconds]
    return max([sum(each) / jobs, *each])


def totals(kinds: Sequence[RunKind], *, jobs: int, free: float) -> Iterator[str]:
    """Yield lines on the cost of the unfinished runs, with ``free`` bytes of memory for all."""
    unfinished, total = sum(len(kind.left) for kind in kinds), sum(len(kind.runs) for kind in kinds)
    if not unfinished:
        yield "nothing is left to run"
        return
    taken = sum(sorted(kind.estimate.memory for kind in kinds if kind.estimate for _ in kind.left)[-jobs:])
    yield f"{unfinished} of {counted(total, 'run')} left: {clock(seconds(kinds, 1))} one after the other"
    if jobs > 1:
        yield f"{jobs} at a time: {clock(seconds(kinds, jobs))}, {decimal(round(taken))} of memory"
    if missing := sum(kind.estimate is None and bool(kind.left) for kind in kinds):
        yield f"not counted: {counted(missing, 'kind')} of run without an estimate"
    if taken > free:
        yield f"warning: memory: {decimal(round(free))} available; only as many runs as fit will run at a time"


def _kind(recipe: Recipe) -> str:
    content = recipe.resolved()
    del content["common_args"]["random_seed"]
    content |= {section: _rough(content[section]) for section in DECIMALS}
    return json.dumps(content, sort_keys=True)


def _rough(value: Any) -> Any:
    """Replace decimals by whether they are non-zero: parts of weight 0 may not be computed."""
    if isinstance(value, dict):
        return {key: _rough(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rough(inner) for inner in value]
    return value != 0 if isinstance(value, float) else value


def _estimate(run: Planned) -> Estimate | None:
    """Estimate from a run's recorded rounds, or else from its batches (:mod:`.runs.pace`)."""
    folder, lines, facts = run.folder, read_lines(run.folder.timings), dict[str, Any]()
    with suppress(LabelSkewError):
        facts = status.read(folder.path)
    times = [time for line in lines if (time := number(line, "seconds")) is not None]
    if times:
        round_seconds, source = statistics.fmean(times[1:] or times), counted(len(times), "round")
    elif isinstance(pace := facts.get("pace"), dict) and (known := number(pace, "round")) is not None:
        round_seconds, source, lines = known, counted(pace.get("batches", 0), "batch", "batches"), [pace]
    else:
        return None
    peak, gpu = (1e6 * max(number(line, key) or 0.0 for line in lines) for key in ("peak_mb", "peak_gpu_mb"))
    start = max(0.0, _elapsed(facts) - sum(times or [number(lines[0], "seconds") or 0.0]))
    return Estimate(start, round_seconds, peak, gpu, source)


def _elapsed(facts: dict[str, Any]) -> float:
    """Seconds from a run's start to its end or pause; 0 if unknown."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        began, ended = (datetime.fromisoformat(facts[key].replace("Z", "+00:00")) for key in ("began", "time"))
        return (ended - began).total_seconds() if facts["state"] in (status.FINISHED, status.PAUSED) else 0.0
    return 0.0
