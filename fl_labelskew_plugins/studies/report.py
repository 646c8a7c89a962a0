"""Tables over run folders: runs on the same data that differ only in their seed share a row.

A run that has not all the rounds of its recipe, because it diverged, was stopped or is under way, is left out of a row
that has whole ones; a row without any shows what there is and is compared with nothing.

Rows on the same data and partition are compared with each other: their rank by mean accuracy, and the rounds until they
reach what the baseline reaches at best, as FedMR's table 4 and FedShift's table 2 have it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.recipe.model import EXPECTED

Resolved = Mapping[str, Mapping[str, Any]]
Curve = dict[int, list[float]]
"""Round, counted from 1, to the accuracy of each seed."""

SEED = "common_args.random_seed"
# Where and how fast a run was computed does not make it another experiment, its precision does.
ELSEWHERE = ("tracking_args", "device_args", "comm_args")
PRECISION = "device_args.precision"
METHOD, OPTIMIZER = "method_args.method", "train_args.federated_optimizer"
PLAIN_OPTIMIZER = "FedAvg"
PLACES = ("data_args.data_cache_dir", "data_args.download")
"""Keys that say where the data lie on this machine."""
SCENE = ("data_args.", "partition_args.")
"""What keys that make a setting begin with."""
COLUMNS = (METHOD, OPTIMIZER, "data_args.dataset", "partition_args.partition_method")


@dataclass(frozen=True)
class Run:
    """What one run left behind.

    Args:
        name: its folder.
        recipe: its resolved recipe, section to keys.
        metrics: a mapping a round; those of a test have ``accuracy``.
        timings: a mapping a round, with ``seconds`` and ``peak_mb``.
        data: what tells its data from others (``environment.json``); None where nobody wrote it down.
        partition: likewise, of who held which samples with this seed.
        personal: whether its method keeps a model for each client.
        class_names: of its data; none where they are not known.
    """

    name: str
    recipe: Resolved
    metrics: Sequence[Mapping[str, Any]]
    timings: Sequence[Mapping[str, Any]] = ()
    data: str | None = None
    partition: str | None = None
    personal: bool = False
    class_names: Sequence[str] = ()

    @property
    def seed(self) -> str:
        """As its recipe has it."""
        return str(self.recipe.get("common_args", {}).get("random_seed"))

    @property
    def place(self) -> str:
        """The folder of its data, as its recipe has it; empty where that says none."""
        return str(self.recipe.get("data_args", {}).get("data_cache_dir") or "")

    @property
    def planned(self) -> int:
        """The rounds that its recipe asks for."""
        return int(number(self.recipe.get("train_args", {}), "comm_round") or 0)

    @property
    def whole(self) -> bool:
        """Whether it has them all."""
        return len(self.metrics) >= self.planned

    @property
    def tests(self) -> list[Mapping[str, Any]]:
        """The rounds with a test."""
        return [line for line in self.metrics if line.get("accuracy") is not None]

    def last(self, key: str, count: int) -> float | None:
        """Mean of ``key`` over the last ``count`` tests; None where they do not have it."""
        return mean(number(line, key) for line in self.tests[-count:])

    @property
    def best(self) -> float:
        """Highest accuracy of any test."""
        return max(float(line["accuracy"]) for line in self.tests)

    def recall(self, count: int) -> list[float | None]:
        """Mean accuracy of each class over the last ``count`` tests; None for a class without a test sample."""
        lists = [line["recall"] for line in self.tests[-count:] if isinstance(line.get("recall"), list)]
        classes = min(map(len, lists), default=0)
        return [mean(_real(recall[c]) for recall in lists) for c in range(classes)]


def number(line: Mapping[str, Any], key: str) -> float | None:
    """A line's number; None where there is none."""
    return _real(line.get(key))


def _real(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders that these stand for, each once: itself, or, where it is none, all that lie below it."""
    found: dict[Path, Path] = {}
    for path in paths:
        for folder in sorted(_below(path)) or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _below(path: Path) -> Iterator[Path]:
    if not path.is_dir() or (path / "recipe.yaml").exists():
        return
    for here, inner, files in os.walk(path):
        if "recipe.yaml" in files:
            inner.clear()  # silos' folders inside a run's are no runs to compare
            yield Path(here)


def read(folder: Path) -> Run:
    """The run in a folder.

    Raises:
        LabelSkewError: there is none, or it has no test yet.
    """
    if not folder.is_dir():
        raise LabelSkewError(f"{folder}: no such folder")
    try:
        recipe, _ = yaml.read((folder / "recipe.yaml").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        timings = _text(folder / "timings.jsonl").splitlines()
    except FileNotFoundError as error:
        raise LabelSkewError(f"{folder}: no run: {Path(error.filename).name} is missing") from None
    except (OSError, ValueError, yaml.YamlError) as error:
        raise LabelSkewError(f"{folder}: cannot be read: {' '.join(str(error).split())}") from None
    if isinstance(recipe, dict):
        recipe.pop(EXPECTED, None)  # no section
    if not isinstance(recipe, dict) or not all(isinstance(keys, dict) for keys in recipe.values()):
        raise LabelSkewError(f"{folder}: no run: recipe.yaml holds no recipe")
    run = Run(str(folder), recipe, _objects(lines), _objects(timings), *_described(folder))
    for line in run.tests:
        if number(line, "accuracy") is None or not isinstance(line.get("round"), int):
            raise LabelSkewError(f"{folder}: no run: metrics.jsonl has a test without round and accuracy")
    if not run.tests:
        raise LabelSkewError(f"{folder}: no results yet: metrics.jsonl has no test")
    return run


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _described(folder: Path) -> tuple[str | None, str | None, bool, Sequence[str]]:
    """What a run's environment.json tells: what its data and its partition are, personal models, class names.

    Older runs do not tell of their models; these lie in ``clients/``, except for FLDA, which writes none.
    """
    try:
        told = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = None
    told = told if isinstance(told, dict) else {}
    data, partition = (value if isinstance(value := told.get(key), str) else None for key in ("data", "partition"))
    names = told.get("class_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []
    return data, partition, bool(told.get("personal_models", (folder / "clients").is_dir())), names


def read_all(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a line for each folder that cannot."""
    found, missing = [], []
    for folder in folders(paths):
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
    every = {f"{section}.{key}": value for section, keys in recipe.items() for key, value in keys.items()}
    return {
        name: value
        for name, value in every.items()
        if name == PRECISION or (name.partition(".")[0] not in ELSEWHERE and name not in (SEED, *PLACES))
    }


def same(a: Run, b: Run) -> bool:
    """Whether two runs are one experiment, their seeds apart: the same settings on the same data."""
    return flat(a.recipe) == flat(b.recipe) and _same_data(a, b)


def _same_data(a: Run, b: Run) -> bool:
    """Whether runs with the same settings had the same data, as far as they have written that down.

    Earlier versions did not: with the same seed, another partition shows other data.
    """
    if a.data is not None and b.data is not None:
        return a.data == b.data
    return a.seed != b.seed or a.partition == b.partition or None in (a.partition, b.partition)


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that are the :func:`same` but for their seed, together and each seed once; in the order of their first."""
    groups: list[dict[str, Run]] = []
    alike: dict[str, list[dict[str, Run]]] = {}
    for run in runs:
        near = alike.setdefault(json.dumps(flat(run.recipe), sort_keys=True), [])
        group = next((group for group in near if all(_same_data(run, other) for other in group.values())), None)
        if group is None:
            group = {}
            near.append(group)
            groups.append(group)
        if run.seed not in group or (run.whole and not group[run.seed].whole):
            group[run.seed] = run
    return [list(group.values()) for group in groups]


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but the seed, and how they compare.

    Args:
        runs: one for each seed, whole ones alone where there are any.
        unfinished: how many of its seeds have no whole run.
        method: its name; of several in a row, with + between them.
        optimizer: the host's.
        data: the data set's name.
        partition: the partition's name.
        differs: the other keys, ``section.key``, in which rows of the same four names differ; a method's own key in
            all rows of that method and optimiser if in any, so that the same name is the same everywhere.
        setting: what the rows share that are compared with each other: data and partition, with their parameters.
        accuracy: of each seed, in per cent, over the last tests; likewise ``best``.
        personalised: likewise, of the clients' own models on their own test splits; empty where the method keeps none.
        local: likewise, of the models just trained; empty where there are personalised ones.
        rank: by mean accuracy among the rows of this setting, from 1; None without a whole run.
        to_baseline: the first round, from 1, in which the mean over the seeds reaches the baseline's best; None: never,
            or there is no baseline.
        speedup: the baseline's rounds in relation to these.
        baseline: whether there is one in this setting.
        up: MB (10^6 bytes) that all clients of a round send; ``down`` those that they get; means over the rounds.
        seconds: of a round, mean over the rounds and seeds.
        peak: the most memory, in MB, that the server's process of any seed held; likewise ``peak_gpu``.
    """

    runs: Sequence[Run]
    unfinished: int
    method: str
    optimizer: str
    data: str
    partition: str
    differs: Sequence[str]
    setting: str
    accuracy: Sequence[float | None]
    personalised: Sequence[float | None]
    local: Sequence[float | None]
    best: Sequence[float | None]
    up: float | None
    down: float | None
    seconds: float | None
    peak: float | None
    peak_gpu: float | None
    recall: Sequence[float | None]
    rank: int | None = None
    to_baseline: int | None = None
    speedup: float | None = None
    baseline: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether its runs are."""
        return all(run.whole for run in self.runs)

    @property
    def rounds(self) -> str:
        """How many rounds its runs have, such as ``20``, or ``3-20`` where some have fewer."""
        counts = sorted({len(run.metrics) for run in self.runs})
        return "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))

    @property
    def curve(self) -> Curve:
        """Global accuracies, in 0 to 1."""
        found: Curve = {}
        for run in self.runs:
            for line in run.tests:
                found.setdefault(int(line["round"]) + 1, []).append(float(line["accuracy"]))
        return found

    @property
    def mean_curve(self) -> dict[int, float]:
        """Mean over the seeds, of the rounds that all of them have tested."""
        return {r: statistics.fmean(v) for r, v in sorted(self.curve.items()) if len(v) == len(self.runs)}


def rows(groups: Sequence[Sequence[Run]], last: int, baseline: str = "fedavg") -> list[Row]:
    """A row for each group.

    Args:
        groups: from :func:`grouped`.
        last: tests that a mean is taken over.
        baseline: the method that others are compared with, under federated_optimizer FedAvg.
    """
    firsts = [group[0] for group in groups]
    recipes = [flat(run.recipe) | told for run, told in zip(firsts, _data(firsts), strict=True)]
    differs = _differing(recipes)
    found = [
        _row(group, mine, keys, label, last)
        for group, mine, keys, label in zip(groups, recipes, differs, _settings(recipes), strict=True)
    ]
    return [_compared(row, [other for other in found if other.setting == row.setting], baseline) for row in found]


def _data(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Of each run a key that tells its data from others under the same settings of data and partition, if need be.

    That is the data's folder, or where a folder had other data at another time, the start of the data's fingerprint.
    """
    found: list[dict[str, str]] = [{} for _ in runs]
    keys = [flat(run.recipe) for run in runs]
    scenes: dict[str, list[int]] = {}
    for i, mine in enumerate(keys):
        scene = {key: value for key, value in mine.items() if key.startswith(SCENE)}
        scenes.setdefault(json.dumps(scene, sort_keys=True), []).append(i)
    for near in scenes.values():
        apart = [
            (runs[i].place, runs[j].place)
            for i, j in itertools.combinations(near, 2)
            if keys[i] == keys[j] or (runs[i].data != runs[j].data and None not in (runs[i].data, runs[j].data))
        ]
        for i in near if apart else ():
            run = runs[i]
            place = next(runs[k].place for k in near if k == i or (run.data and runs[k].data == run.data))
            prints = (run.data or run.partition or "unknown")[:8]
            by_place = all(a != b for a, b in apart)
            found[i] = {PLACES[0]: place or "default"} if by_place else {"data_args.fingerprint": prints}
    return found


def _row(group: Sequence[Run], mine: Mapping[str, Any], differs: Sequence[str], setting: str, last: int) -> Row:
    counted = [run for run in group if run.whole] or group

    def percent(values: Iterable[float | None]) -> list[float | None]:
        return [None if value is None else 100 * value for value in values]

    def most(key: str) -> float | None:
        values = [value for run in counted for line in run.timings if (value := number(line, key)) is not None]
        return max(values, default=None)

    def megabytes(key: str) -> float | None:
        value = mean(number(line, key) for run in counted for line in run.metrics)
        return None if value is None else value / 1e6

    own = percent(run.last("personalised_accuracy", last) for run in counted)
    personal = any(run.personal for run in counted)
    recalls = [run.recall(last) for run in counted]
    classes = min(map(len, recalls))
    return Row(
        runs=counted,
        unfinished=sum(not run.whole for run in group),
        method=_told(mine.get(METHOD, "?")),
        optimizer=_told(mine.get(OPTIMIZER, PLAIN_OPTIMIZER)),
        data=_told(mine.get("data_args.dataset", "?")),
        partition=_told(mine.get("partition_args.partition_method", "?")),
        differs=differs,
        setting=setting,
        accuracy=percent(run.last("accuracy", last) for run in counted),
        personalised=own if personal else (),
        local=() if personal else own,
        best=percent(run.best for run in counted),
        up=megabytes("bytes_up"),
        down=megabytes("bytes_down"),
        seconds=mean(number(line, "seconds") for run in counted for line in run.timings),
        peak=most("peak_mb"),
        peak_gpu=most("peak_gpu_mb"),
        recall=percent(mean(recall[c] for recall in recalls) for c in range(classes)),
        keys=mine,
    )


def _compared(row: Row, rivals: Sequence[Row], baseline: str) -> Row:
    """The row with its rank and its rounds to the baseline's best.

    FedMR's table 4 and FedShift's table 2 print one whole number a method and do not say how seeds enter; here it is
    the accuracy averaged over the seeds that has to reach the baseline's highest.
    """
    rivals = [other for other in rivals if other.whole]
    mine = mean(row.accuracy) or 0.0
    rank = 1 + sum((mean(other.accuracy) or 0.0) > mine for other in rivals) if row.whole else None
    bases = [other for other in rivals if other.method == baseline and other.optimizer == PLAIN_OPTIMIZER]
    base = min(bases, key=lambda other: _apart(row, other), default=None)
    if base is None or not base.mean_curve:
        return replace(row, rank=rank)
    target = max(base.mean_curve.values())
    theirs = _first(base.mean_curve, target)
    rounds = _first(row.mean_curve, target)
    speedup = theirs / rounds if rounds and theirs else None
    return replace(row, rank=rank, to_baseline=rounds, speedup=speedup, baseline=True)


def _apart(a: Row, b: Row) -> int:
    """In how many keys beside the method's two rows differ: of several baselines the nearest one counts."""
    keys = {key for key in (*a.keys, *b.keys) if not key.startswith("method_args.")}
    return sum(a.keys.get(key) != b.keys.get(key) for key in keys)


def _first(curve: Mapping[int, float], target: float) -> int | None:
    return next((r for r, value in curve.items() if value >= target), None)


def _told(value: Any) -> str:
    """A name; of several methods in a row, with + between them."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each recipe's data and partition are called: by their names, and what tells those of one name apart."""
    parts = [{k: v for k, v in mine.items() if k.startswith(SCENE)} for mine in recipes]
    names = ("data_args.dataset", "partition_args.partition_method")
    several = len({str(part.get(names[0])) for part in parts}) > 1
    found = []
    for part in parts:
        same = [other for other in parts if all(other.get(name) == part.get(name) for name in names)]
        apart = [key for key in part if any(other.get(key) != part[key] for other in same)]
        words = [str(part.get(names[0], "?"))] if several else []
        found.append(", ".join([*words, str(part.get(names[1], "?")), *(_setting(key, part[key]) for key in apart)]))
    return found


def _setting(key: str, value: Any) -> str:
    return f"{key.partition('.')[2]}={json.dumps(value)}".replace('"', "")


def _differing(recipes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """For each, the keys, beside the columns, in which runs of the same method, optimiser, data and partition differ.

    What differs so under one data set and partition is told under all others, too: a name means the same in all charts.
    """

    def alike(one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]) -> bool:
        return all(one.get(key) == other.get(key) for key in keys)

    apart = [
        {key for other in recipes if alike(mine, other, COLUMNS) for key in mine if other.get(key) != mine[key]}
        for mine in recipes
    ]
    found = []
    for mine, here in zip(recipes, apart, strict=True):
        same = [keys for other, keys in zip(recipes, apart, strict=True) if alike(mine, other, (METHOD, OPTIMIZER))]
        there = {key for keys in same for key in keys if not key.startswith(SCENE)}
        found.append([key for key in mine if key in here | there])
    return found


def _told_keys(row: Row, keys: Iterable[str]) -> str:
    return ", ".join(_setting(key, row.keys[key]) for key in keys)


def spread(values: Sequence[float | None]) -> tuple[str, str]:
    """Mean and, of two or more, sample std, with two decimals; empty where there is none."""
    known = [value for value in values if value is not None]
    std = f"{statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return (f"{statistics.fmean(known):.2f}" if known else "", std)


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        name: its head.
        parts: what a row has there, and for machines the heads and cells of which that is made.
        better: 1 where more is better, -1 where less is, 0 where neither is.
        value: what to compare, and to sort by.
    """

    name: str
    parts: Callable[[Row], dict[str, str]]
    text: Callable[[Row], str]
    better: int = 0
    value: Callable[[Row], float | None] = lambda row: None


def _label(name: str, text: Callable[[Row], str]) -> Column:
    return Column(name, lambda row: {name: text(row)}, text)


def _spread(name: str, values: Callable[[Row], Sequence[float | None]], better: int = 1) -> Column:
    return Column(
        name,
        lambda row: dict(zip((name, f"{name}_std"), spread(values(row)), strict=True)),
        lambda row: " ± ".join(filter(None, spread(values(row)))) or "-",
        better,
        lambda row: mean(values(row)),
    )


def _number(name: str, form: str, value: Callable[[Row], float | None], better: int = 0) -> Column:
    def text(row: Row) -> str:
        known = value(row)
        return "" if known is None else format(known, form)

    return Column(name, lambda row: {name: text(row)}, lambda row: text(row) or "-", better, value)


def _seeds(row: Row) -> dict[str, str]:
    return {"seeds": str(len(row.runs) if row.whole else 0), "unfinished": str(row.unfinished)}


def _seeds_text(row: Row) -> str:
    whole, unfinished = _seeds(row).values()
    return f"{whole} of {int(whole) + int(unfinished)}" if row.unfinished else whole


def _rounds(row: Row) -> dict[str, str]:
    known = row.to_baseline is not None
    return {
        "rounds to baseline": str(row.to_baseline) if known else "",
        "speedup": f"{row.speedup:.2f}" if known else "",
    }


def _rounds_text(row: Row) -> str:
    if row.to_baseline is None:
        return f"> {max(row.mean_curve, default=0)}" if row.baseline else "-"
    return f"{row.to_baseline} ({row.speedup:.2f}x)"


def columns(found: Sequence[Row]) -> list[Column]:
    """The table's columns; the optimiser and the GPU's memory where there is something to tell."""
    mixed = any(row.optimizer != PLAIN_OPTIMIZER for row in found)
    gpu = any(row.peak_gpu is not None for row in found)
    return [
        _label("method", lambda row: row.method),
        *([_label("optimizer", lambda row: row.optimizer)] if mixed else []),
        _label("data", lambda row: row.data),
        _label("partition", lambda row: row.partition),
        _label("differs in", lambda row: _told_keys(row, row.differs)),
        Column("seeds", _seeds, _seeds_text, value=lambda row: len(row.runs) if row.whole else 0),
        Column("rounds", lambda row: {"rounds": row.rounds}, lambda row: row.rounds),
        _spread("accuracy", lambda row: row.accuracy),
        *([_spread("personalised", lambda row: row.personalised)] if any(row.personalised for row in found) else []),
        *([_spread("local model", lambda row: row.local, better=0)] if any(row.local for row in found) else []),
        _spread("best", lambda row: row.best),
        _number("rank", "", lambda row: row.rank),
        Column("rounds to baseline", _rounds, _rounds_text, -1, lambda row: row.to_baseline),
        _number("MB up", ".3f", lambda row: row.up),
        _number("MB down", ".3f", lambda row: row.down),
        _number("s/round", ".2f", lambda row: row.seconds),
        _number("peak MB", ".0f", lambda row: row.peak),
        *([_number("peak GPU MB", ".0f", lambda row: row.peak_gpu)] if gpu else []),
    ]


def table(found: Sequence[Row], *, split: bool = False) -> tuple[list[str], list[list[str]]]:
    """Head and rows; accuracies in per cent over the last tests, mean and std over seeds.

    With ``split``, mean and std have a column each, for machines.
    """
    shown = columns(found)
    if split:
        cells = [{key: text for column in shown for key, text in column.parts(row).items()} for row in found]
        return list(cells[0]), [list(each.values()) for each in cells]
    return [column.name for column in shown], [[column.text(row) for column in shown] for row in found]


def marks(found: Sequence[Row]) -> list[list[int]]:
    """For each row and column: 1 for the best of its setting, 2 for the second best, 0 for the rest.

    As printed, so that equal cells are equally good; nothing where a setting has a single value.
    """
    shown = columns(found)
    result = [[0] * len(shown) for _ in found]
    for c, column in enumerate(shown):
        for setting in {row.setting for row in found} if column.better else ():
            values = {
                r: round(column.better * value, 2)
                for r, row in enumerate(found)
                if row.setting == setting and row.whole and (value := column.value(row)) is not None
            }
            ordered = sorted(set(values.values()), reverse=True)[:2]
            for r, value in values.items():
                if len(values) > 1 and value in ordered:
                    result[r][c] = 1 + ordered.index(value)
    return result


def label(row: Row) -> str:
    """What tells a row from the others of its setting: method, another optimiser than FedAvg, other keys."""
    optimizer = "" if row.optimizer == PLAIN_OPTIMIZER else row.optimizer
    keys = [key for key in row.differs if not key.startswith(SCENE)]
    return ", ".join(filter(None, [row.method, optimizer, _told_keys(row, keys)]))


def notes(found: Sequence[Row], runs: Iterable[Run]) -> list[str]:
    """A line for each of ``runs`` that its row does not count, or that is not whole."""
    counted = [run for row in found for run in row.runs]
    return [note for run in runs if (note := _note(run, counted))]


def _note(run: Run, counted: Sequence[Run]) -> str:
    shown = any(run is other for other in counted)
    if not run.whole:
        what = "shown without a rank" if shown else "left out of its row"
        return f"{run.name}: {len(run.metrics)} of {run.planned} rounds: {what}"
    if shown:
        return ""
    twin = next(other for other in counted if other.seed == run.seed and same(other, run))
    return f"{run.name}: the same recipe, data and seed as {twin.name}: counted once"


def curves(found: Sequence[Row]) -> dict[str, dict[str, Curve]]:
    """Setting to label of each row to its accuracies."""
    settings: dict[str, dict[str, Curve]] = {}
    for row in found:
        names = settings.setdefault(row.setting, {})
        for round_, values in row.curve.items():
            names.setdefault(label(row), {}).setdefault(round_, []).extend(values)
    return settings
