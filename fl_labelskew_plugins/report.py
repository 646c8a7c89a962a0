"""A table over run folders: runs that differ only in their seed share a row."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins import plain_yaml
from fl_labelskew_plugins.settings import EXPECTED

Resolved = Mapping[str, Mapping[str, Any]]

SEED = "common_args.random_seed"
# Where and how fast a run was computed does not make it another experiment.
ELSEWHERE = ("tracking_args", "device_args", "comm_args")
COLUMNS = ("method_args.method", "data_args.dataset", "partition_args.partition_method")
LABELS = ("method", "data", "partition", "differs in", "seeds", "rounds")
MEASURES = ("accuracy", "personalised", "best")


@dataclass(frozen=True)
class Run:
    """What one run left behind.

    Args:
        name: its folder.
        recipe: its resolved recipe, section to keys.
        metrics: a mapping a round; those of a test have ``accuracy``.
    """

    name: str
    recipe: Resolved
    metrics: Sequence[Mapping[str, Any]]

    @property
    def tests(self) -> list[Mapping[str, Any]]:
        """The rounds with a test."""
        return [line for line in self.metrics if line.get("accuracy") is not None]

    def last(self, key: str, count: int) -> float | None:
        """Mean of ``key`` over the last ``count`` tests; None where they do not have it."""
        values = [line[key] for line in self.tests[-count:] if line.get(key) is not None]
        return statistics.fmean(values) if values else None

    @property
    def best(self) -> float:
        """Highest accuracy of any test."""
        return max(float(line["accuracy"]) for line in self.tests)


def read(folder: Path) -> Run:
    """The run in a folder.

    Raises:
        LabelSkewError: there is none, or it has no test yet.
    """
    if not folder.is_dir():
        raise LabelSkewError(f"{folder}: no such folder")
    try:
        recipe, _ = plain_yaml.read((folder / "recipe.yaml").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise LabelSkewError(f"{folder}: no run: {Path(error.filename).name} is missing") from None
    except (OSError, ValueError, plain_yaml.YamlError) as error:
        raise LabelSkewError(f"{folder}: cannot be read: {' '.join(str(error).split())}") from None
    if isinstance(recipe, dict):
        recipe.pop(EXPECTED, None)  # no section
    if not isinstance(recipe, dict) or not all(isinstance(keys, dict) for keys in recipe.values()):
        raise LabelSkewError(f"{folder}: no run: recipe.yaml holds no recipe")
    run = Run(str(folder), recipe, _objects(lines))
    if not run.tests:
        raise LabelSkewError(f"{folder}: no results yet: metrics.jsonl has no test")
    return run


def read_all(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a line for each folder that cannot."""
    found, missing = [], []
    for folder in folders:
        try:
            found.append(read(folder))
        except LabelSkewError as error:
            missing.append(str(error))
    return found, missing


def _objects(lines: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            break  # a run that was killed leaves half a line
        if isinstance(value, dict):
            found.append(value)
    return found


def flat(recipe: Resolved) -> dict[str, Any]:
    """``section.key`` to value, of what makes an experiment: without its seed and the machine's part."""
    return {
        f"{section}.{key}": value
        for section, keys in recipe.items()
        if section not in ELSEWHERE
        for key, value in keys.items()
        if f"{section}.{key}" != SEED
    }


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in nothing but the seed, together; in the order of their first one."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(flat(run.recipe), sort_keys=True), []).append(run)
    return list(groups.values())


def table(
    groups: Sequence[Sequence[Run]], last: int, *, split: bool = False
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Head and rows: a row for each group, accuracies in per cent over the last tests, mean and std over seeds.

    With ``split``, mean and std have a column each, for machines.
    """
    recipes = [flat(group[0].recipe) for group in groups]
    measures = [part for name in MEASURES for part in ((name, f"{name}_std") if split else (name,))]
    rows = []
    for group, mine in zip(groups, recipes, strict=True):
        spreads = [spread(values) for values in _measures(group, last)]
        cells = [cell for pair in spreads for cell in (pair if split else (" ± ".join(filter(None, pair)) or "-",))]
        rows.append([*_labels(group, mine, recipes), *cells])
    return (*LABELS, *measures), rows


def curves(groups: Sequence[Sequence[Run]]) -> dict[str, dict[int, list[float]]]:
    """Label of each group to its accuracies: those of all its seeds in each tested round, counted from 1."""
    recipes = [flat(group[0].recipe) for group in groups]
    varying = [key for key in COLUMNS if len({str(mine.get(key)) for mine in recipes}) > 1] or list(COLUMNS[:1])
    found: dict[str, dict[int, list[float]]] = {}
    for group, mine in zip(groups, recipes, strict=True):
        label = ", ".join([*(str(mine.get(key, "?")) for key in varying), _differing(mine, recipes)]).removesuffix(", ")
        rounds = found.setdefault(label, {})
        for run in group:
            for line in run.tests:
                rounds.setdefault(int(line["round"]) + 1, []).append(float(line["accuracy"]))
    return found


def _labels(group: Sequence[Run], mine: Mapping[str, Any], recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    rounds = sorted({len(run.metrics) for run in group})
    return [
        *(str(mine.get(key, "?")) for key in COLUMNS),
        _differing(mine, recipes),
        str(len(group)),
        "-".join(map(str, dict.fromkeys((rounds[0], rounds[-1])))),
    ]


def _measures(group: Sequence[Run], last: int) -> list[list[float | None]]:
    return [
        [run.last("accuracy", last) for run in group],
        [run.last("personalised_accuracy", last) for run in group],
        [run.best for run in group],
    ]


def _differing(mine: Mapping[str, Any], recipes: Sequence[Mapping[str, Any]]) -> str:
    """The keys, beside the columns, in which runs of the same method, data and partition differ."""
    same = [other for other in recipes if all(other.get(key) == mine.get(key) for key in COLUMNS)]
    keys = [key for key in mine if any(other.get(key) != mine[key] for other in same)]
    return ", ".join(f"{key.partition('.')[2]}={json.dumps(mine[key])}".replace('"', "") for key in keys)


def spread(values: Sequence[float | None]) -> tuple[str, str]:
    """Mean and, of two or more, sample std, in per cent; empty where there is none."""
    known = [100 * value for value in values if value is not None]
    std = f"{statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return (f"{statistics.fmean(known):.2f}" if known else "", std)
