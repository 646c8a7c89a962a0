"""Run recipes over several seeds and compare the results with the papers' numbers in the recipes.

With a budget, the first N of T rounds are computed with the schedule over T rounds.
"""

import contextlib
import itertools
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, MistakesError, mistake

from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.model import Recipe, different
from fl_labelskew_plugins.recipe.sections import Expected
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.measure import GLOBAL
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.runs.session import data_folder, made_up
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.show.progress import clock
from fl_labelskew_plugins.studies import finished
from fl_labelskew_plugins.studies.finished import FinishedRun, flat

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PrintLine = Callable[[str], None]


def seconds_of(budget: str) -> float:
    """Convert a budget such as ``1h30m`` to seconds; raise LabelSkewError if it is invalid or zero."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", budget)
    if not parts or "".join(number + unit for number, unit in parts) != budget:
        raise mistake(f"--budget {budget}", "invalid duration", "a number with its unit, such as 90s, 30m, 2h or 1h30m")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not seconds:
        raise mistake(f"--budget {budget}", "must be longer than 0", "a longer one, such as 30m")
    return seconds


@dataclass(frozen=True)
class Planned:
    """A run; ``gpus``: it gets one of these numbers; ``names``: of setting and label in a report."""

    name: str
    base: Path
    settings: tuple[str, ...]
    recipe: Recipe
    folder: RunFolder
    log: Path
    number: int
    gpus: tuple[int, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A recipe with a run per seed; ``original_rounds``: before overrides; ``deviations``: ``key: old -> new``."""

    name: str
    recipe: Recipe
    original_rounds: int
    deviations: tuple[str, ...]
    runs: list[Planned]


def experiments(named: Mapping[str, Path], overrides: Sequence[str], out: Path, seeds: int) -> list[Experiment]:
    """Load and check recipes by name, and their data; raise MistakesError with all mistakes."""
    checked, wrong, numbers = [], list[str](), itertools.count()
    for name, path in named.items():
        try:
            recipe, plain = recipes.load(path, overrides), recipes.load(path)
            recipe.dataset.check(data_folder(recipe), download=recipe.data.download)
        except MistakesError as error:
            wrong += error.mistakes
        except LabelSkewError as error:
            wrong.append(f"{path}: {error}")
        else:
            rounds, deviations = plain.train.comm_round, differences(plain, recipe)
            runs = []
            for seed in range(seeds):
                folder, log = RunFolder(out / name / f"seed{seed}"), out / name / f"seed{seed}.txt"
                settings = (*overrides, f"common_args.random_seed={seed}")
                runs.append(Planned(f"{name}, seed {seed}", path, settings, recipe, folder, log, next(numbers)))
            checked.append(Experiment(name, recipe, rounds, deviations, runs))
    if wrong:
        raise MistakesError(list(dict.fromkeys(wrong)))
    return checked


def differences(before: Recipe, after: Recipe) -> tuple[str, ...]:
    """List the changed settings that affect results."""
    a, b = (flat(recipe.resolved()) for recipe in (before, after))
    changed = {key: (json.dumps(a.get(key)), json.dumps(b.get(key))) for key in dict.fromkeys([*a, *b])}
    lines = [f"{key.partition('.')[2]}: {old} -> {new}" for key, (old, new) in changed.items() if old != new]
    return tuple(line.replace('"', "") for line in lines)


def run_all(chosen: Sequence[Experiment], print_line: PrintLine, *, quiet: bool, until: float = math.inf) -> None:
    """:func:`complete` all runs until a time of :func:`time.monotonic`; each gets an equal share of the rest."""
    by_seed = itertools.chain(*zip(*(experiment.runs for experiment in chosen), strict=True))
    unfinished = [run for run in by_seed if held(run.base, run.settings, run.folder) != "done"]
    for number, run in enumerate(unfinished):
        if (now := time.monotonic()) >= until:
            break
        seconds = (until - now) / (len(unfinished) - number)
        limited = math.isfinite(seconds)
        limit = f", for {clock(seconds)}" if limited else ""
        print_line(f"[{number + 1}/{len(unfinished)}] {run.name}: from round {len(run.folder.lines) + 1}{limit}")
        pause = Pause(run.recipe.train.comm_round, now + seconds) if limited else None
        folder = RunFolder(run.folder.path)  # its status begins now
        complete(run.base, run.settings, folder, RunOptions(quiet=quiet, pause=pause))


def held(path: Path, settings: Sequence[str], folder: RunFolder) -> str | None:
    """Return ``done``, ``begun``, or None for an empty folder; raise LabelSkewError if it contains another run."""
    if not folder.recipe.exists():
        return None
    kept, wanted = recipes.load(folder.recipe), recipes.load(path, settings)
    if differing := different(kept.resolved(), wanted.resolved()):
        problem = f"holds another run, which differs in {', '.join(differing)}"
        raise mistake(folder.path, problem, "another --out, or the original settings")
    return "done" if folder.summary.exists() else "begun"


def complete(path: Path, settings: Sequence[str], folder: RunFolder, options: RunOptions) -> bool:
    """Start or resume a run, until its end or ``options.pause``; return False if it was done.

    Raise HeldError if another process is running it, and as :func:`held` and :func:`.start.start`.
    """
    if held(path, settings, folder) == "done":
        return False
    in_process = recipes.load(path, settings).comm.in_process
    folder.hold(patience=0)  # from here on, no other process can run it
    try:
        state = held(path, settings, folder)
        if state is None:
            folder.remove_aborted()
        if not in_process:
            folder.release()  # one of its processes holds it
        if state == "begun":
            start(replace(options, resume=folder.path), held=folder)
        elif state is None:
            start(replace(options, recipe=path, overrides=settings, run_dir=folder.path), held=folder)
        return state != "done"
    except (LabelSkewError, SystemExit):
        if not in_process and (holder := locks.held_by(folder.path)):  # its processes were started first
            raise locks.HeldError(f"{folder.path}: {holder} is writing this run already", holder) from None
        raise
    finally:
        folder.release()
        with contextlib.suppress(OSError):
            folder.path.rmdir()  # only if nothing was written


def _seconds(folder: RunFolder) -> float:
    known: float | None = folder.results.get("seconds")
    return known or sum(finished.number(line, "seconds") or 0.0 for line in read_lines(folder.timings))


HEAD = (
    "recipe", "paper", "measure", "expected", "ours", "std", "difference",
    "tolerance", "verdict", "rounds", "seeds", "changed", "seconds",
)  # fmt: skip


def rows(experiment: Experiment) -> list[list[str]]:
    """Return a row under :data:`HEAD` per expected number, or one row without a verdict.

    All runs are compared after the rounds of the shortest one; no verdict for made-up data or missing rounds.
    """
    folders = [run.folder for run in experiment.runs if run.folder.lines]
    rounds = min((len(folder.lines) for folder in folders), default=0)
    runs = [FinishedRun(str(folder.path), {}, folder.lines[:rounds]) for folder in folders]
    cut, real = rounds < experiment.original_rounds, not made_up(experiment.recipe)
    done, seconds = f"{rounds} of {experiment.original_rounds}", sum(map(_seconds, folders))
    last = [done, str(len(runs)), "; ".join(experiment.deviations), f"{seconds:.0f}"]
    table = []
    for number in experiment.recipe.expected:
        values = [measured(run, number, experiment, rounds) for run in runs]
        known = [value for value in values if value is not None]
        mean, std = _mean_and_std(known)
        difference = f"{statistics.fmean(known) - number.value:+.2f}" if known and not cut else ""
        if len(known) < len(values) and number.measure == "rounds_to":
            mean, std, difference = f"{len(known)} of {len(values)} reached it", "", ""
        name = number.measure if number.target is None else f"{number.measure} {number.target:g}"
        head = [experiment.name, f"{number.paper}, {number.table}", name, f"{number.value:g}", mean, std, difference]
        word = f"not comparable ({done} rounds)" if cut else verdict(number, values)
        table.append([*head, f"{number.tolerance:g}", word if real else "none: the data are made up", *last])
    if not table:
        means = [run.last("accuracy", _last_tests(experiment, rounds)) for run in runs]
        mean, std = _mean_and_std([100 * mean for mean in means if mean is not None])
        table.append([experiment.name, "", "accuracy", "", mean, std, "", "", "no number to compare with", *last])
    return table


def _mean_and_std(values: Sequence[float]) -> tuple[str, str]:
    std = f"{statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return (f"{statistics.fmean(values):.2f}" if values else "", std)


def _last_tests(experiment: Experiment, rounds: int) -> int:
    """The recipe's ``last_rounds``, shortened in proportion to the rounds."""
    return max(1, round(experiment.recipe.validation.last_rounds * min(1.0, rounds / experiment.original_rounds)))


def measured(run: FinishedRun, number: Expected, experiment: Experiment, rounds: int) -> float | None:
    """Return a run's value, if known, in the unit of the expected number."""
    if number.measure == "rounds_to":
        assert number.target is not None  # Expected has checked it
        reached = (line["round"] + 1 for line in run.tests if 100 * line.get(GLOBAL, 0) >= number.target)
        return next(reached, None)
    if number.measure == "best_accuracy":
        return 100 * run.best if run.tests and run.measure.key == GLOBAL else None
    value = run.last(number.measure, _last_tests(experiment, rounds))
    return None if value is None else 100 * value


def verdict(number: Expected, values: Sequence[float | None]) -> str:
    """Return ``reached``, ``beyond``, ``fell short`` or ``not measured``."""
    known = [value for value in values if value is not None]
    better = -1 if number.measure == "rounds_to" else 1
    if len(known) < len(values):
        return "fell short" if number.measure == "rounds_to" else "not measured"
    if abs(gain := better * (statistics.fmean(known) - number.value)) <= number.tolerance:
        return "reached"
    return "beyond" if gain > 0 else "fell short"
