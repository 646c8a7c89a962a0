"""Read runs from their folders, and group those that differ only in their seed."""

import functools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.files import read_lines, read_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.model import of_sums
from fl_labelskew_plugins.recipe.sections import Expected
from fl_labelskew_plugins.runs.measure import Measure, main_measure, main_tests
from fl_labelskew_plugins.runs.reader import RunReader

Resolved = Mapping[str, Mapping[str, Any]]

SEED = "common_args.random_seed"
MACHINE_SECTIONS = ("tracking_args", "device_args", "comm_args")  # do not distinguish runs
PRECISION = "device_args.precision"
PLACES = ("data_args.data_cache_dir", "data_args.download")
SETTING_KEYS = ("data_args.", "partition_args.")  # prefixes
SWEEP = "sweep.json"  # next to the runs, with names of their settings and labels


class Client(NamedTuple):
    """A client; ``accuracy``: of the final model on the client's test split; None: unknown."""

    name: str
    training_samples: float | None
    test_samples: float | None
    accuracy: float | None


@dataclass(frozen=True)
class FinishedRun:
    """The results of the run in the folder ``name``."""

    name: str
    recipe: Resolved
    metrics: Sequence[Mapping[str, Any]]
    timings: Sequence[Mapping[str, Any]] = ()
    data: str | None = None  # fingerprint
    personal: bool = False  # whether the method keeps a model per client
    stopped: bool = False  # early
    class_names: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # `setting` and `label` from a sweep
    clients: Sequence[Client] = ()  # empty if they were not tested individually
    expected: Sequence[Expected] = ()

    @property
    def seed(self) -> str:
        """The recipe's seed."""
        return str(self.recipe.get("common_args", {}).get("random_seed"))

    @property
    def planned(self) -> int:
        """Rounds in the recipe."""
        return int(number(self.recipe.get("train_args", {}), "comm_round") or 0)

    @property
    def complete(self) -> bool:
        """Whether all rounds are complete, or the run has stopped early by itself."""
        return self.stopped or len(self.metrics) >= self.planned

    @functools.cached_property
    def measure(self) -> Measure:
        """See :func:`.main_measure`."""
        return main_measure(self.metrics)

    @property
    def tests(self) -> list[Mapping[str, Any]]:
        """See :func:`.main_tests`."""
        return main_tests(self.metrics)

    def accuracy(self, count: int) -> float | None:
        """See :meth:`last`."""
        return self.last(self.measure.key, count)

    def last(self, key: str, count: int) -> float | None:
        """Mean of ``key`` over those of the last ``count`` tests that have it."""
        return mean(number(line, key) for line in self.tests[-count:])

    @property
    def best(self) -> float:
        """Highest value of the main measure."""
        return max(float(line[self.measure.key]) for line in self.tests)

    def recall(self, count: int) -> list[float | None]:
        """Mean recall of each class over the last ``count`` tests; None without test samples."""
        lists = [line["recall"] for line in self.tests[-count:] if isinstance(line.get("recall"), list)]
        classes = min(map(len, lists), default=0)
        return [mean(_real(recall[c]) for recall in lists) for c in range(classes)]


def number(line: Mapping[str, Any], key: str) -> float | None:
    """The finite number in ``line[key]``, if any."""
    return _real(line.get(key))


def _real(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer of 400 digits
            return float(value) if math.isfinite(value) else None
    return None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values, if any."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def folders(paths: Iterable[Path]) -> list[Path]:
    """Find run folders in or below these paths, in a sweep's order or sorted by name."""
    known: dict[Path, Path] = {}
    for path in paths:
        order = {name: place for place, name in enumerate(sweep_names(path))}
        found = {file.parent for file in path.rglob("recipe.yaml")}
        # silos' folders inside a run's folder are not separate runs
        below = [folder for folder in found if found.isdisjoint(folder.parents)]
        for folder in sorted(below, key=lambda folder: (order.get(folder.name, len(order)), folder)) or [path]:
            known.setdefault(folder.resolve(), folder)
    return list(known.values())


def read(folder: Path) -> FinishedRun:
    """Read the run in a folder; raise LabelSkewError for no run, or one without a test."""
    if not folder.is_dir():
        raise LabelSkewError(f"{folder}: no such folder")
    if missing := [name for name in ("recipe.yaml", "metrics.jsonl") if not (folder / name).exists()]:
        raise LabelSkewError(f"{folder}: not a run folder: {missing[0]} is missing")
    reader = RunReader(folder)
    environment = reader.environment
    run = FinishedRun(
        str(folder),
        reader.sections,
        reader.lines,
        read_lines(reader.timings),
        data=environment.get("data"),
        personal=bool(environment.get("personal_models")),
        stopped=bool(reader.results.get("stopped")),
        class_names=reader.class_names,
        clients=[
            Client(clean(row.get("name"), 60), *(number(row, key) for key in Client._fields[1:]))
            for row in reader.results.get("clients", ())
        ],
        expected=reader.expected,
    )
    for line in run.tests:
        if number(line, run.measure.key) is None or not isinstance(line.get("round"), int):
            raise LabelSkewError(f"{folder}: damaged: metrics.jsonl has a test without round and accuracy")
    if not run.tests:
        need = "validation_args.per_client: true, and across silos also comm_args.send_measures: true"
        raise LabelSkewError(
            f"{folder}: no results yet: metrics.jsonl has no test; a run without a global test set needs {need}"
        )
    return run


def sweep_names(folder: Path) -> dict[str, dict[str, str]]:
    """Read a sweep's ``setting`` and ``label`` of each folder name; empty if missing or damaged."""
    try:
        content = json.loads(read_text(folder / SWEEP))
        return {
            run: {key: clean(name, 60) for key, name in names.items() if name}
            for run, names in content.items()
            # a folder's name, not a path outside the sweep's folder
            if run not in ("", "..") and Path(run).name == run and len(run) < 256 and run.isprintable()
        }
    except (OSError, ValueError, AttributeError, RecursionError):  # the names are optional
        return {}


def read_all(paths: Iterable[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Return the runs, and an error message per unreadable folder."""
    runs, wrong = [], []
    names_in = functools.cache(sweep_names)
    for folder in folders(paths):
        path = folder.resolve()
        try:
            runs.append(replace(read(folder), names=names_in(path.parent).get(path.name, {})))
        except LabelSkewError as error:
            wrong.append(str(error))
    return runs, wrong


def flat(recipe: Resolved) -> dict[str, Any]:
    """Map ``section.key`` to value, without the seed and this machine's settings."""
    settings = {f"{section}.{key}": value for section, keys in recipe.items() for key, value in keys.items()}
    return {f"comm_args.{key}": value for key, value in of_sums(recipe).items()} | {
        name: value
        for name, value in settings.items()
        if name == PRECISION or (name.partition(".")[0] not in MACHINE_SECTIONS and name not in (SEED, *PLACES))
    }


def grouped(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Group runs that differ only in their seed, one run per seed, complete if possible."""
    groups: dict[str, dict[str, FinishedRun]] = {}
    for run in runs:
        group = groups.setdefault(json.dumps([run.measure.key, run.data, flat(run.recipe)], sort_keys=True), {})
        if run.seed not in group or (run.complete and not group[run.seed].complete):
            group[run.seed] = run
    return [list(group.values()) for group in groups.values()]
