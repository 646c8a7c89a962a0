"""What runs will take before they are run: time, memory and disk, by the rounds or batches of one run of each kind.

Runs are of one kind where nothing differs but the seed and the size of decimals such as a learning rate, a weight or
Dirichlet's beta, none of them 0: these change what is learnt, and not how much is computed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.data.files import size_text
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.show.progress import clock
from fl_labelskew_plugins.studies import report
from fl_labelskew_plugins.studies.reproduce import PROBED, Cost
from fl_labelskew_plugins.studies.sweep.plan import Planned
from fl_labelskew_plugins.tensors import num_bytes

HEAD = ("runs like", "runs", "rounds left", "s/round", "a run", "left", "memory", "disk", "known from")
PROBE_S = 5.0
"""Seconds of training after which a run stops that is started to see what it takes, if it has no two rounds by then."""
DECIMALS = ("train_args", "method_args", "partition_args", "privacy_args")
"""Sections in which the size of a decimal changes nothing of what a run takes."""


@dataclass(frozen=True)
class Measured:
    """What runs of a kind have shown of it.

    Args:
        rounds: that they have recorded.
        cost: of time.
        memory: bytes that a run's process holds at most by its end; over MPI and across silos, the server's.
        gpu: likewise, of tensors on a GPU.
        disk: bytes of a run's folder at its end; the pictures drawn there are counted once a run has drawn them.
        batches: that were timed in the first round, if none is complete. Private states of clients are then unknown.
    """

    rounds: int
    cost: Cost
    memory: float
    gpu: float
    disk: float
    batches: int = 0


@dataclass(frozen=True)
class Kind:
    """Runs that take the same.

    Args:
        runs: all of them.
        left: rounds that each of them has not yet.
        done: whether each of them is; a run may have all rounds and be killed before its summary.
        measured: None where none of them has recorded a round.
        failed: why beginning one has failed, if it has.
    """

    runs: tuple[Planned, ...]
    left: tuple[int, ...]
    done: tuple[bool, ...]
    measured: Measured | None
    failed: str = ""

    @property
    def recipe(self) -> Recipe:
        """Of any of them."""
        return self.runs[0].recipe

    @property
    def open(self) -> list[Planned]:
        """Runs that are not done."""
        return [run for run, done in zip(self.runs, self.done, strict=True) if not done]

    def seconds(self) -> list[float]:
        """What each run still takes; 0 where nothing is known."""
        if self.measured is None:
            return [0.0] * len(self.runs)
        cost, rounds = self.measured.cost, self.recipe.train.comm_round
        return [cost.seconds(self.recipe, rounds - left, rounds) for left in self.left]

    def row(self) -> list[str]:
        """Its row under :data:`HEAD`."""
        head = [self.runs[0].name, str(len(self.runs)), str(sum(self.left))]
        if self.measured is None:
            return [*head, *["?"] * 5, f"failed: {self.failed}" if self.failed else "nothing yet"]
        cost, rounds = self.measured.cost, self.recipe.train.comm_round
        whole = cost.seconds(self.recipe, 0, rounds)
        memory = _text(self.measured.memory)
        if self.measured.gpu:
            memory += f", GPU {_text(self.measured.gpu)}"
        return [
            *head,
            f"{(whole - cost.start) / rounds:.3g}",
            clock(whole),
            clock(sum(self.seconds())),
            memory if self.recipe.comm.in_process else f"{memory} (server)",
            _text(self.measured.disk),
            counted(self.measured.batches, "batch", "batches")
            if self.measured.batches
            else counted(self.measured.rounds, "round"),
        ]


def kinds(planned: Sequence[Planned], failed: Sequence[str] = ()) -> list[Kind]:
    """All kinds of these runs, by what is recorded in their folders now; ``failed``: ``name: why`` each."""
    groups: dict[str, list[Planned]] = {}
    for run in planned:
        groups.setdefault(_kind(run.recipe), []).append(run)
    return [_of(runs, failed) for runs in groups.values()]


def _of(runs: Sequence[Planned], failed: Sequence[str]) -> Kind:
    timings = [read_lines(run.folder.timings) for run in runs]
    done = [run.folder.summary.exists() for run in runs]
    rounds = runs[0].recipe.train.comm_round
    left = [0 if is_done else max(0, rounds - len(lines)) for is_done, lines in zip(done, timings, strict=True)]
    why = [line.removeprefix(f"{run.name}: ") for run in runs for line in failed if line.startswith(f"{run.name}: ")]
    return Kind(tuple(runs), tuple(left), tuple(done), _measured(runs, timings, left), "".join(why[:1]))


def unknown(planned: Sequence[Planned]) -> list[Planned]:
    """One run of each kind of which no round is recorded and some run is left."""
    return [kind.open[0] for kind in kinds(planned) if kind.measured is None and kind.open]


def seconds(planned: Sequence[Planned], kinds: Sequence[Kind], jobs: int) -> float:
    """How long all that is left takes, so many runs at a time: the next one begins where one has ended."""
    took = {run.name: part for kind in kinds for run, part in zip(kind.runs, kind.seconds(), strict=True)}
    free_at = [0.0] * jobs
    for run in sorted(planned, key=lambda run: not run.folder.recipe.exists()):  # a sweep begins with what was begun
        heapq.heapreplace(free_at, free_at[0] + took[run.name])
    return max(free_at)


def memory(kinds: Sequence[Kind], jobs: int) -> float:
    """Bytes that so many runs at a time take at most, of those that are left."""
    return sum(sorted(kind.measured.memory for kind in kinds if kind.measured for _ in kind.open)[-jobs:])


def disk(kinds: Sequence[Kind]) -> float:
    """Bytes that are still to be written."""
    ends = [(kind.measured.disk, run) for kind in kinds if kind.measured for run in kind.open]
    return sum(max(0.0, end - _size(run.folder.path)) for end, run in ends)


def that_fit(kinds: Sequence[Kind], jobs: int, free: float) -> int:
    """How many at a time, of so many, fit so many bytes of memory; one is always under way."""
    return next((fewer for fewer in range(jobs, 1, -1) if memory(kinds, fewer) <= free), 1)


def totals(
    planned: Sequence[Planned], kinds: Sequence[Kind], *, out: Path, jobs: Sequence[int], free: float
) -> Iterator[str]:
    """What all runs that are left take, in lines.

    Args:
        planned: all runs, in the order in which they are run.
        kinds: theirs.
        out: the folder of all.
        jobs: runs at a time, here and, where there are two numbers, elsewhere.
        free: bytes of memory that all of them may take here.
    """
    left = sum(len(kind.open) for kind in kinds)
    if not left:
        yield "nothing is left to run"
        return
    if not any(kind.measured and kind.open for kind in kinds):
        yield f"{left} of {counted(len(planned), 'run')} left, of which nothing is known yet"
        return
    one_by_one, more, there = clock(seconds(planned, kinds, 1)), _text(disk(kinds)), _text(_free_disk(out))
    of_all = f"{left} of {counted(len(planned), 'run')}"
    yield f"{of_all} left: {one_by_one} one after the other; {more} more on disk, {there} free there"
    fit = that_fit(kinds, jobs[0], free)
    took = f"{clock(seconds(planned, kinds, fit))}, {_text(memory(kinds, fit))} of memory"
    yield f"{fit} at a time here: {took}, {_text(free)} may be taken"
    for most in (min(most, left) for most in jobs[1:]):
        took = f"{clock(seconds(planned, kinds, most))}, {_text(memory(kinds, most))} of memory"
        yield f"{most} at a time, where there are cores for them: {took}"
    if any(not kind.recipe.comm.in_process for kind in kinds):
        yield "(server): of a run's several processes, memory is that of the server's alone"
    if missing := sum(kind.measured is None and bool(kind.open) for kind in kinds):
        yield f"not counted: {counted(missing, 'kind')} of run that nothing is known of"


def warnings(kinds: Sequence[Kind], *, out: Path, jobs: int, free: float) -> Iterator[str]:
    """What does not suffice, in lines; ``jobs`` runs at a time may take ``free`` bytes of memory."""
    if (most := memory(kinds, jobs)) > free:
        fit = that_fit(kinds, jobs, free)
        what = f"{jobs} at a time take {_text(most)}" if jobs > 1 else f"a run takes {_text(most)}"
        will = "one at a time will run all the same" if fit == 1 else f"{fit} at a time will run"
        yield f"memory: {what}, and {_text(free)} may be taken; {will}"
    if (more := disk(kinds)) > (there := _free_disk(out)):
        yield f"disk: {_text(more)} are to be written to {out}, where {_text(there)} are free; make room, or use --out"


def _free_disk(out: Path) -> float:
    """Bytes that are free where a folder is, or will be."""
    return float(shutil.disk_usage(next(path for path in [out, *out.absolute().parents] if path.exists())).free)


def _text(size: float) -> str:
    return size_text(round(size))


def _kind(recipe: Recipe) -> str:
    content = recipe.resolved()
    del content["common_args"]["random_seed"]
    content |= {section: _rough(content[section]) for section in DECIMALS}
    return json.dumps(content, sort_keys=True)


def _rough(value: Any) -> Any:
    """A setting with every decimal as whether it is 0, which may leave out what it weighs."""
    if isinstance(value, dict):
        return {key: _rough(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rough(inner) for inner in value]
    return value != 0 if isinstance(value, float) else value


def _measured(runs: Sequence[Planned], timings: Sequence[list[dict[str, Any]]], left: Sequence[int]) -> Measured | None:
    """What runs of one kind have recorded, in lines for each of them."""
    lines = list(itertools.chain(*timings))
    starts = [_start(run.folder, of_run) for run, of_run in zip(runs, timings, strict=True) if of_run]
    known = [start for start in starts if start is not None]
    cost = Cost.of(lines, runs[0].recipe, statistics.fmean(known) if known else 0.0)
    if cost is None:
        return next(filter(None, map(_of_batches, runs)), None)
    cost = cost._replace(round=cost.round * _scale(runs))
    furthest = min(range(len(runs)), key=left.__getitem__)
    grows, disk = _end(runs[furthest], left[furthest])
    peak, gpu = (1e6 * max(report.number(line, key) or 0.0 for line in lines) for key in ("peak_mb", "peak_gpu_mb"))
    return Measured(len(lines), cost, peak + grows, gpu, disk)


def _of_batches(run: Planned) -> Measured | None:
    """What a run has shown that was stopped in its first round, see :mod:`.runs.pace`."""
    with suppress(LabelSkewError, AttributeError, KeyError, TypeError, ValueError):  # as damaged as a file can be
        pace, recipe = status.read(run.folder.path)["pace"], run.recipe
        cost = Cost(_start(run.folder, [pace]) or 0.0, float(pace["round"]), float(pace["test"]))
        kept = min(recipe.tracking.keep_checkpoints, recipe.train.comm_round)
        disk = _size(run.folder.path) + pace["model"] * (1 + kept + (1 + kept) * recipe.tracking.keep_best)
        memory, gpu = (1e6 * (report.number(pace, key) or 0.0) for key in ("peak_mb", "peak_gpu_mb"))
        return Measured(0, cost, memory, gpu, disk, int(pace["batches"]))
    return None


def probe(until: float) -> Pause:
    """When a run stops that is started to see what it takes; ``until`` is as :attr:`.Pause.at`."""
    return Pause(PROBED, until, PROBE_S)


def _scale(runs: Sequence[Planned]) -> float:
    """Samples of a round's clients, on average of all rounds, in relation to those of the rounds that are recorded."""
    expected = held = 0.0
    if (recipe := runs[0].recipe).train.clients_per_round == recipe.train.client_num_in_total:
        return 1.0
    for run in runs:
        lines = read_lines(run.folder.metrics)
        with suppress(LabelSkewError, KeyError, IndexError, TypeError):  # damaged files tell nothing
            if lines and (at := run.folder.load_checkpoint(tensors=False)):
                mean = statistics.fmean(at.sizes) * recipe.train.clients_per_round
                for line in lines[1:] or lines:
                    held += sum(at.sizes[client] for client in line["clients"])
                    expected += mean
    return expected / held if held else 1.0


def _start(folder: RunFolder, timings: Sequence[dict[str, Any]]) -> float | None:
    """Seconds of a run beside its rounds; None where it is under way, or was not done in one go."""
    with suppress(LabelSkewError, AttributeError, TypeError, ValueError):  # as damaged as a file can be
        facts = status.read(folder.path)
        began, ended = (datetime.fromisoformat(facts[key].replace("Z", "+00:00")) for key in ("began", "time"))
        rest = (ended - began).total_seconds() - sum(report.number(line, "seconds") or 0.0 for line in timings)
        return rest if facts["state"] in (status.FINISHED, status.PAUSED) and rest >= 0 else None
    return None


def _end(run: Planned, left: int) -> tuple[float, float]:
    """Bytes of memory that a run takes in the rounds that are left beside what it has taken; bytes of its folder then.

    What grows are the lines of rounds, and the private states of clients that were not in any round before; more
    checkpoints are kept, and at the end come models.
    """
    folder, recipe, size = run.folder, run.recipe, _size(run.folder.path)
    rounds = recipe.train.comm_round
    if not left:
        return 0.0, size
    size += left / (rounds - left) * sum(map(_size, [folder.diagnostics, *folder.path.glob("*.jsonl")]))
    with suppress(LabelSkewError):  # a checkpoint that is damaged is told when the run goes on
        if at := folder.load_checkpoint():
            clients = min(recipe.train.client_num_in_total, rounds * recipe.train.clients_per_round)
            now, one = _size(folder.states), num_bytes(at.weights.values())
            states = now / len(at.states) * clients if at.states else now
            kept = min(recipe.tracking.keep_checkpoints, 1 + math.ceil(left / recipe.tracking.checkpoint_every))
            more = kept - 1 - len(folder.earlier())
            size += states - now + more * (_size(folder.checkpoint) + states + one * recipe.tracking.keep_best)
            size += one * (1 + (clients if at.states and folder.environment.get("personal_models") else 0))
            most = recipe.tracking.state_memory_mb * 2**20
            return min(most, states) - min(most, now), size
    return 0.0, size


def _size(path: Path) -> float:
    """Bytes of a file, or of all in a folder; a file with two names counts once."""
    sizes = {}
    for file in [path, *path.rglob("*")]:
        with suppress(OSError):  # a run that is under way has just removed it
            facts = file.stat()
            sizes[facts.st_ino] = 0 if file.is_dir() else facts.st_size
    return float(sum(sizes.values()))
