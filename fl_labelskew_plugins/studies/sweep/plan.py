"""The runs of a sweep's grid."""

import itertools
import json
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fl_labelskew_registry import LabelSkewError, MistakesError, mistake
from pydantic import Field

from fl_labelskew_plugins.engine import devices
from fl_labelskew_plugins.machine.files import write_text, writing
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe import mistakes, shipped, yaml
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.mistakes import RecipeError
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.session import data_folder
from fl_labelskew_plugins.studies import finished
from fl_labelskew_plugins.studies.reproduce import Planned, held

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
MAX_NAME = 150
LOGS = "_logs"  # folder of logs; no run's name starts with _
MAX_COMBINATIONS = 10_000


class SweepFile(Params):
    """The content of a sweep's file."""

    base: str = Field(description="a recipe, relative to this file, or the name of one")
    out: str | None = Field(None, description="folder of all runs, relative to the current one; default: runs/<name>")
    set: dict[str, Any] = Field({}, description="settings of all runs")
    grid: list[dict[str, Any]] = Field(
        min_length=1, description="list of axes; an axis maps names to settings, or one section.key to a list of values"
    )
    skip: list[list[str]] = Field([], description="combinations to skip: lists of names, as in names of run folders")


class AxisValue(NamedTuple):
    """A value of an axis; ``label``: part of a run's name; ``named``: by the user."""

    label: str
    settings: tuple[str, ...]
    named: bool = True


def plan(
    path: Path,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    only: Sequence[str] = (),
    *,
    elsewhere: bool = False,
) -> list[Planned]:
    """List and check all combinations of a sweep's file; raise MistakesError with all mistakes.

    ``only``: see :func:`.sweep`; ``elsewhere``: data and GPUs are on other machines, and not checked.
    """
    file = _read(path)
    out = out or Path(file.out or f"runs/{path.stem}").expanduser()
    wrong = [f"{out}: is the folder of a run; use another --out"] if RunFolder(out).recipe.exists() else []
    common = [*_settings(f"{path}: set", file.set, wrong), *overrides]
    axes = [_axis(f"{path}: grid[{number}]", raw, wrong) for number, raw in enumerate(file.grid, 1)]
    _check_keys(path, axes, overrides, wrong)
    names = [[choice.label for choice in axis] for axis in axes]
    known = list(dict.fromkeys(itertools.chain(*names)))
    skipped = [_skip(f"{path}: skip[{number}]", labels, names, wrong) for number, labels in enumerate(file.skip, 1)]
    wrong += [f"--only {mistakes.unknown(label, known)}" for label in only if label not in known]
    kinds = list(map(_kind, axes))
    axes = [[choice for choice in axis if choice.label in only] or axis for axis in axes]
    if (size := math.prod(len(axis) for axis in axes)) > MAX_COMBINATIONS:
        wrong.append(f"{path}: grid: {size} combinations; use at most {MAX_COMBINATIONS}")
    if wrong:
        raise MistakesError(wrong)
    combinations = [
        choices
        for choices in itertools.product(*axes)
        if not any(labels <= {choice.label for choice in choices} for labels in skipped)
    ]
    if not combinations:
        raise mistake(f"{path}: skip", "leaves nothing to run", "fewer entries")
    base = Path(file.base) if file.base in shipped.names() else path.parent / file.base
    typed = {_key(override) for override in overrides}
    planned: list[Planned] = []
    names_by_line: dict[str, list[str]] = {}
    for choices in combinations:
        name = "-".join(choice.label for choice in choices)
        settings = (*common, *(setting for choice in choices for setting in choice.settings))
        try:
            recipe = recipes.load(base, settings)
        except RecipeError as error:
            for line in error.mistakes:
                key, _, problem = line.removeprefix("--set ").partition(": ")
                from_file = line.startswith("--set ") and key not in typed
                names_by_line.setdefault(f"{path}: {key}: {problem}" if from_file else line, []).append(name)
            continue
        gpus = tuple(recipe.device.gpu_ids) if recipe.device.using_gpu and recipe.comm.in_process else ()
        folder, log = RunFolder(out / name), out / LOGS / f"{name}.txt"
        settings, report_names = (*settings, *_additional(recipe)), _names(kinds, choices)
        planned.append(Planned(name, base, settings, recipe, folder, log, len(planned), gpus, report_names))
    every = len(combinations)
    wrong = [line if len(names) == every else f"{line} (in {_few(names)})" for line, names in names_by_line.items()]
    for name, count in Counter(run.name for run in planned).items():
        if count > 1:
            wrong.append(f"{path}: grid: two combinations have the name {name}; use other names")
        if len(name) > MAX_NAME:
            wrong.append(f"{path}: grid: the name {name} is longer than {MAX_NAME} letters; use shorter names")
    if wrong := wrong or ([] if elsewhere else missing(planned)):
        raise MistakesError(wrong)
    return [replace(run, recipe=recipes.load(run.base, run.settings)) for run in planned]


def write_names(planned: Sequence[Planned]) -> None:
    """Add the names for a report to :data:`.SWEEP`; raise LabelSkewError if it cannot be written."""
    folder = planned[0].folder.path.parent
    known = finished.sweep_names(folder)
    names = known | {run.name: dict(run.names) for run in planned}
    with writing(folder, "; use another --out"):
        folder.mkdir(parents=True, exist_ok=True)
        if names != known:
            # other machines may write the file at the same time
            part = folder / f"{finished.SWEEP}.{platform.node()}.{os.getpid()}"
            write_text(part, json.dumps(names, indent=1) + "\n")
            part.replace(folder / finished.SWEEP)


def states_of(planned: Sequence[Planned]) -> dict[str, str | None]:
    """Map names to :func:`.reproduce.held`; raise MistakesError if folders contain other runs."""
    states: dict[str, str | None] = {}
    wrong: dict[str, list[str]] = {}
    for run in planned:
        try:
            states[run.name] = held(run.base, run.settings, run.folder)
        except LabelSkewError as error:
            folder = str(run.folder.path)
            wrong.setdefault(str(error).removeprefix(f"{folder}: "), []).append(folder)
    if wrong:
        raise MistakesError([f"{_few(folders)}: {line}" for line, folders in wrong.items()])
    return states


def _read(path: Path) -> SweepFile:
    try:
        content, twice = yaml.read(recipes.read_text(path))
    except yaml.YamlError as error:
        raise LabelSkewError(f"{path}: {error}") from None
    file, lines = mistakes.checked(SweepFile, content)
    if file is None or twice:
        raise MistakesError([f"{path}: {line}" for line in twice + lines])
    return file


def _settings(place: str, raw: Mapping[str, Any], wrong: list[str]) -> list[str]:
    overrides: list[str] = []
    for key, value in raw.items():
        if "." in key:
            overrides.append(_override(key, value))
        elif isinstance(value, dict):
            overrides += [_override(f"{key}.{inner}", setting) for inner, setting in value.items()]
        else:
            allowed = "allowed: section.key: value, or section: {key: value}"
            wrong.append(
                f"{place}: {key}: expected a mapping of keys to values, got {mistakes.quoted(value)}; {allowed}"
            )
    return overrides


def _override(place: str, value: Any) -> str:
    return f"{place}={json.dumps(value, ensure_ascii=False)}"  # JSON is YAML


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _axis(place: str, raw: Mapping[str, Any], wrong: list[str]) -> list[AxisValue]:
    """Read a named axis, ``name: settings``, or a plain one, ``section.key: [values]``."""
    if len(raw) == 1 and isinstance(values := next(iter(raw.values())), list):
        (key,) = raw
        if "." not in key or not values:
            wrong.append(f"{place}: {key}: allowed: section.key with at least one value")
        return [AxisValue(_label(key, value), (_override(key, value),), named=False) for value in values]
    choices = []
    for name, settings in raw.items():
        if not LABEL.fullmatch(name):
            wrong.append(f"{place}: invalid name {mistakes.quoted(name)}; allowed: letters, digits and ._+-")
        elif settings is not None and not isinstance(settings, dict):
            allowed = "allowed: name: {settings}, or one section.key: [values]"
            wrong.append(f"{place}: {name}: expected a mapping of settings, got {mistakes.quoted(settings)}; {allowed}")
        else:
            choices.append(AxisValue(name, tuple(_settings(f"{place}: {name}", settings or {}, wrong))))
    if not raw:
        wrong.append(f"{place}: empty; give at least one value")
    return choices


def _label(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    text = value if isinstance(value, str) else json.dumps(value)
    return ("seed" if name == "random_seed" else name) + re.sub(r"[^A-Za-z0-9._+-]+", "_", text).strip("_")


def _kind(axis: Sequence[AxisValue]) -> str | None:
    """A report's column for an axis: ``setting`` if it changes data or partition, else ``label``; None: only seeds."""
    keys = {_key(setting) for choice in axis for setting in choice.settings}
    if any(key.startswith(finished.SETTING_KEYS) for key in keys):
        return "setting"
    return "label" if keys - {finished.SEED} else None


def _names(kinds: Sequence[str | None], choices: Sequence[AxisValue]) -> dict[str, str]:
    """A report's names for a combination, if the user named an axis."""
    names = {}
    for kind in ("setting", "label"):
        chosen = [choice for choice, of in zip(choices, kinds, strict=True) if of == kind]
        if any(choice.named for choice in chosen):
            names[kind] = ", ".join(choice.label for choice in chosen)
    return names


def _check_keys(path: Path, axes: Sequence[Sequence[AxisValue]], overrides: Sequence[str], wrong: list[str]) -> None:
    """Report keys that are set by several axes, or by an override and an axis."""
    by_axis = [{_key(setting) for choice in axis for setting in choice.settings} for axis in axes]
    for (i, a), (j, b) in itertools.combinations(enumerate(by_axis, 1), 2):
        wrong += [f"{path}: grid: {key} is set by axes {i} and {j}; set it in one of them" for key in sorted(a & b)]
    for key in map(_key, overrides):
        wrong += [f"--set {key}: the grid of {path} sets it; use another key" for a in by_axis if key in a]


def _skip(place: str, labels: Sequence[str], axes: Sequence[Sequence[str]], wrong: list[str]) -> set[str]:
    known = list(dict.fromkeys(itertools.chain(*axes)))
    wrong += [f"{place}: {mistakes.unknown(label, known)}" for label in dict.fromkeys(labels) if label not in known]
    for a, b in itertools.combinations(dict.fromkeys(labels), 2):
        if len(both := [names for names in axes if a in names or b in names]) == 1 and {a, b} <= set(both[0]):
            wrong.append(f"{place}: {a} and {b} are values of one axis, so no run has both; use an entry for each")
    if not labels:
        wrong.append(f"{place}: empty; give the names of a combination")
    return set(labels)


def _additional(recipe: Recipe) -> tuple[str, ...]:
    """Settings that a sweep adds: one thread if the recipe does not set it, and GPU 0, the only visible one."""
    if not recipe.comm.in_process:
        return ()
    threads = ("device_args.threads=1",) if recipe.device.threads is None else ()
    return (*threads, "device_args.gpu_ids=[0]") if recipe.device.using_gpu else threads


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def missing(planned: Sequence[Planned]) -> list[str]:
    """List missing data sets and GPUs."""
    wrong: dict[str, None] = {}
    for run in planned:
        try:
            run.recipe.dataset.check(data_folder(run.recipe), download=run.recipe.data.download)
            devices.gpus(run.recipe)
        except LabelSkewError as error:
            wrong[f"{run.base}: {error}"] = None
    return list(wrong)
