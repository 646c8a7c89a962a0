"""Runs recipes over several seeds and compares them with the papers' numbers that they hold.

Each run has a folder of its own, ``<out>/<recipe>/seed<k>``; what is done there is not done again, what broke off is
gone on with. With a budget, ``comm_round`` of all recipes is cut to the same share, from what a round of each takes;
``<out>/plan.json`` keeps the rounds, so that going on has the same ones.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins import recipe as recipes
from fl_labelskew_plugins import report, run
from fl_labelskew_plugins.recipe import Recipe, RecipeError
from fl_labelskew_plugins.results import RunFolder, read_lines
from fl_labelskew_plugins.session import data_folder, made_up
from fl_labelskew_plugins.settings import Expected

PROBED = 2
"""Rounds that are run to see how long one takes; the last of them counts, since methods do more after the first."""
MARGIN = 0.9
"""Share of the budget that is planned for: loading, writing and slower rounds take the rest."""
BEFORE = {"environment.json", "fedml.yaml", "partition.json", "partition.png"}
"""What a run writes before its recipe: alone, they are a run that broke off with nothing to lose."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Say = Callable[[str], None]


def seconds_of(budget: str) -> float:
    """Seconds of a budget such as ``2h``, ``30m`` or ``1h30m``.

    Raises:
        LabelSkewError: it is none.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", budget)
    if not parts or "".join(number + unit for number, unit in parts) != budget:
        raise LabelSkewError(f"--budget {budget}: no time; 90s, 30m, 2h or 1h30m would be right")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not seconds:
        raise LabelSkewError(f"--budget {budget}: no time at all; 30m, such as, would be right")
    return seconds


@dataclass(frozen=True)
class Experiment:
    """One recipe, to be run with several seeds.

    Args:
        name: what it is called, and its folder below ``out``.
        path: its file.
        recipe: with the overrides.
        overrides: ``section.key=value`` each.
        whole: rounds that the file has.
        deviations: ``key: the file's value -> the value in force``, of what makes an experiment.
        out: the folder of its runs.
    """

    name: str
    path: Path
    recipe: Recipe
    overrides: tuple[str, ...]
    whole: int
    deviations: tuple[str, ...]
    out: Path

    @property
    def rounds(self) -> int:
        """Rounds of the recipe with the overrides, before a budget cuts them."""
        return self.recipe.train.comm_round

    def folder(self, seed: int) -> RunFolder:
        """Where the run of a seed lies."""
        return RunFolder(self.out / f"seed{seed}")

    def settings(self, rounds: int, seed: int) -> tuple[str, ...]:
        """Overrides of one run."""
        return (*self.overrides, f"train_args.comm_round={rounds}", f"common_args.random_seed={seed}")


def experiments(named: Mapping[str, Path], overrides: Sequence[str], out: Path) -> list[Experiment]:
    """The recipes, checked, with all their data at hand.

    Args:
        named: name to file; names may have folders.
        overrides: ``section.key=value``, for each of them.
        out: folder of everything.

    Raises:
        MistakesError: a line for everything to put right.
    """
    found, wrong = [], []
    for name, path in named.items():
        try:
            mine, plain = recipes.load(path, overrides), recipes.load(path)
            mine.dataset.check(data_folder(mine), download=mine.data.download)
        except RecipeError as error:
            wrong += error.mistakes
        except LabelSkewError as error:
            wrong.append(f"{path}: {error}")
        else:
            whole, deviations = plain.train.comm_round, differences(plain, mine)
            found.append(Experiment(name, path, mine, tuple(overrides), whole, deviations, out / name))
    if wrong:
        raise MistakesError(list(dict.fromkeys(wrong)))
    return found


def differences(before: Recipe, after: Recipe) -> tuple[str, ...]:
    """What of the experiment was set to something else; its seed and this machine's folders are no part of it."""
    a, b = report.flat(before.resolved()), report.flat(after.resolved())
    keys = [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]
    return tuple(f"{key.partition('.')[2]}: {_told(a.get(key))} -> {_told(b.get(key))}" for key in keys)


def _told(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def plan(chosen: Sequence[Experiment], seeds: int, budget: float | None, out: Path, say: Say) -> dict[str, int]:
    """Rounds of each experiment, by name: all of them, or with a ``budget`` in seconds the same share of each.

    Raises:
        LabelSkewError: earlier runs in ``out`` were cut, and no budget is given now; or it cannot be written.
    """
    begun, kept = time.monotonic(), _kept(out)
    for each in chosen:
        if budget is None and kept.get(each.name, each.rounds) != each.rounds:
            raise LabelSkewError(
                f"{out}: holds runs of {each.name} that were cut to {kept[each.name]} of {each.rounds} rounds; "
                "--budget, to go on with them, or another --out would be right"
            )
    new = [each for each in chosen if each.name not in kept]
    rounds = {each.name: kept.get(each.name, each.rounds) for each in chosen}
    if budget is not None and new:
        takes = {each.name: _probe(each, say) for each in new}
        needed = seeds * sum(takes[each.name] * each.rounds for each in new)
        left = max(0.0, budget - (time.monotonic() - begun)) * MARGIN
        share = min(1.0, left / needed) if needed else 1.0
        rounds |= {each.name: max(1, math.floor(share * each.rounds)) for each in new}
        say(f"budget: about {needed:.0f} s for all rounds, {left:.0f} s left: {100 * share:.0f} % of them")
    keep(out, {"plan.json": json.dumps(kept | rounds, indent=2) + "\n"})
    return rounds


def keep(out: Path, files: Mapping[str, str]) -> None:
    """Write files, name to text, into ``out``, which is made where it does not exist; each as a whole or not at all.

    Raises:
        LabelSkewError: they cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            RunFolder(out).write_text(name, text)
    except OSError as error:
        raise LabelSkewError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def _kept(out: Path) -> dict[str, int]:
    """Rounds that earlier calls planned; without any, an empty mapping."""
    path = out / "plan.json"
    if not os.path.exists(path):  # unlike Path's, False where the folder is closed to us
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(rounds) for name, rounds in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        raise LabelSkewError(f"{path}: holds no plan of rounds; another --out would be right") from None


def _probe(each: Experiment, say: Say) -> float:
    """Seconds that a round takes."""
    folder = RunFolder(each.out / "probe")
    say(f"{each.name}: {min(PROBED, each.rounds)} rounds, to see how long one takes")
    settings = each.settings(min(PROBED, each.rounds), each.recipe.common.random_seed)
    complete(each.path, settings, folder, quiet=True)
    return float(read_lines(folder.timings)[-1]["seconds"])


def run_all(
    chosen: Sequence[Experiment], rounds: Mapping[str, int], seeds: int, say: Say, *, quiet: bool
) -> Iterator[tuple[Experiment, list[report.Run], float]]:
    """Run every experiment with the seeds ``0 .. seeds - 1``; each with its runs and their seconds, once it is done.

    Raises:
        LabelSkewError: a folder holds other runs.
        RunError: a run broke off.
    """
    for number, each in enumerate(chosen):
        for seed in range(seeds):
            turn = f"[{number * seeds + seed + 1}/{len(chosen) * seeds}] {each.name}, seed {seed}"
            folder = each.folder(seed)
            state = "done already" if folder.summary.exists() else f"{rounds[each.name]} of {each.rounds} rounds"
            say(f"{turn}: {state}")
            complete(each.path, each.settings(rounds[each.name], seed), folder, quiet=quiet)
        folders = [each.folder(seed) for seed in range(seeds)]
        seconds = sum(_seconds(folder.summary) for folder in folders)
        yield each, [report.read(folder.path) for folder in folders], seconds


def held(path: Path, settings: Sequence[str], folder: RunFolder) -> str | None:
    """What a folder holds of the run of a recipe: ``done``, ``begun``, or None for nothing.

    Raises:
        LabelSkewError: it holds another run.
    """
    if not folder.recipe.exists():
        return None
    kept, wanted = recipes.load(folder.recipe), recipes.load(path, settings)
    if differing := recipes.different(kept.resolved(), wanted.resolved()):
        raise LabelSkewError(
            f"{folder.path}: holds another run, which differs in {', '.join(differing)}; another --out, or the "
            "settings as they were, would be right"
        )
    return "done" if folder.summary.exists() else "begun"


def complete(path: Path, settings: Sequence[str], folder: RunFolder, *, quiet: bool) -> None:
    """Have one run finished: begun, gone on with, or found as it is.

    Raises:
        LabelSkewError: the folder holds another run.
        RunError: the run broke off.
    """
    state = held(path, settings, folder)
    if state == "begun":
        run.start(None, (), resume=folder.path, quiet=quiet)
    elif state is None:
        if folder.path.is_dir() and {file.name.removesuffix(".part") for file in folder.path.iterdir()} <= BEFORE:
            shutil.rmtree(folder.path)
        run.start(path, settings, run_dir=folder.path, quiet=quiet)


def _seconds(summary: Path) -> float:
    """How long a run took."""
    try:
        return float(json.loads(summary.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, TypeError, KeyError):
        raise LabelSkewError(f"{summary}: holds no summary; to delete it, and the same again, would be right") from None


HEAD = (
    "recipe",
    "paper",
    "measure",
    "expected",
    "ours",
    "std",
    "difference",
    "tolerance",
    "verdict",
    "rounds",
    "seeds",
    "changed",
    "seconds",
)


def rows(each: Experiment, runs: Sequence[report.Run], rounds: int, seconds: float) -> list[list[str]]:
    """A row for each number that is expected; one without a verdict where there is none.

    What ran on a small copy of the data (``labelskew data fake``) gets no verdict either.
    """
    cut, real = rounds < each.whole, not made_up(each.recipe)
    last = [f"{rounds} of {each.whole}", str(len(runs)), "; ".join(each.deviations), f"{seconds:.0f}"]
    found = []
    for number in each.recipe.expected:
        values = [measured(run, number, each, rounds) for run in runs]
        known = [value for value in values if value is not None]
        ours, std, difference = "", "", ""
        if known:
            mean = statistics.fmean(known)
            ours, difference = f"{mean:.2f}", f"{mean - number.value:+.2f}"
            std = f"{statistics.stdev(known):.2f}" if len(known) > 1 else ""
        if len(known) < len(values) and number.measure == "rounds_to":
            ours, std, difference = f"{len(known)} of {len(values)} got there", "", ""
        name = number.measure if number.target is None else f"{number.measure} {number.target:g}"
        head = [each.name, f"{number.paper}, {number.table}", name, f"{number.value:g}", ours, std, difference]
        word = verdict(number, values, cut=cut) if real else "none: the data are made up"
        found.append([*head, f"{number.tolerance:g}", word, *last])
    if not found:
        means = [run.last("accuracy", tail(each, rounds)) for run in runs]
        ours, std = report.spread([None if mean is None else 100 * mean for mean in means])
        found.append([each.name, "", "accuracy", "", ours, std, "", "", "no number to compare with", *last])
    return found


def tail(each: Experiment, rounds: int) -> int:
    """Tests that a mean is taken over: the recipe's ``last_rounds``, cut as the rounds are."""
    return max(1, round(each.recipe.validation.last_rounds * min(1.0, rounds / each.whole)))


def measured(run: report.Run, number: Expected, each: Experiment, rounds: int) -> float | None:
    """What a run has for an expected number, in its unit; None where it has nothing."""
    if number.measure == "rounds_to":
        assert number.target is not None  # Expected has checked it
        reached = (line["round"] + 1 for line in run.tests if 100 * line["accuracy"] >= number.target)
        return next(reached, None)
    if number.measure == "best_accuracy":
        return 100 * run.best
    value = run.last(number.measure, tail(each, rounds))
    return None if value is None else 100 * value


def verdict(number: Expected, values: Sequence[float | None], *, cut: bool) -> str:
    """In one or two words: reached, beyond, fell short; and whether the rounds were cut."""
    known = [value for value in values if value is not None]
    better = -1 if number.measure == "rounds_to" else 1
    if len(known) < len(values):
        word = "fell short" if number.measure == "rounds_to" else "not measured"
    elif abs(gain := better * (statistics.fmean(known) - number.value)) <= number.tolerance:
        word = "reached"
    else:
        word = "beyond" if gain > 0 else "fell short"
    return f"{word} (rounds cut)" if cut else word
