"""The catalogue of plugins: list names without importing anything, load one by its name."""

from __future__ import annotations

import inspect
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from typing import Any, Literal, get_args

from stevedore import DriverManager

from fl_labelskew_registry import contracts, data, tracker
from fl_labelskew_registry.errors import PluginError
from fl_labelskew_registry.plugin import Plugin, hooks

Kind = Literal["methods", "optimizers", "partitioners", "datasets", "models", "runtimes", "trackers"]

CONTRACTS: dict[str, type[Plugin]] = {
    "methods": contracts.Method,
    "optimizers": contracts.Optimizer,
    "partitioners": data.Partitioner,
    "datasets": data.Dataset,
    "models": data.Network,
    "trackers": tracker.Tracker,
}
HOOKS = {contract: hooks(contract) for contract in CONTRACTS.values()}
"""Names of the hooks of each contract."""


@dataclass(frozen=True, order=True)
class Entry:
    """One registered plugin: the ``name`` a recipe uses, its ``distribution`` and the ``target`` it points to."""

    name: str
    distribution: str
    target: str


def namespace(kind: Kind) -> str:
    """Entry-point group of a kind of plugin, such as ``fl_labelskew.methods``."""
    return f"fl_labelskew.{kind}"


def entries(kind: Kind) -> list[Entry]:
    """All registered plugins of a kind, sorted by name; nothing is imported. A repeated name appears twice."""
    return list(_entries(kind, _installed()))


@cache
def _entries(kind: Kind, installed: tuple[tuple[str, int], ...]) -> list[Entry]:
    # Not stevedore's list_entry_points: its cache forgets which distribution an entry point came from. One editable
    # install can be visible through two metadata folders; the same target counts once.
    return sorted({Entry(e.name, _distribution(e), e.value) for e in entry_points(group=namespace(kind))})


def _installed() -> tuple[tuple[str, int], ...]:
    """What changes as soon as anything is installed or removed: folders that are imported from, and their times."""
    return tuple((path, os.stat(path or ".").st_mtime_ns) for path in sys.path if os.path.exists(path or "."))


def _distribution(entry_point: EntryPoint) -> str:
    try:
        return (entry_point.dist and entry_point.dist.name) or "unknown"
    except Exception:  # metadata without a METADATA file; one broken install must not hide the other plugins
        return "unknown"


def nearest(name: str, known: list[str]) -> str:
    """`` (nearest: x)``, or nothing where no known name is close."""
    close = get_close_matches(name.lower(), known, n=1)
    return f" (nearest: {close[0]})" if close else ""


def misplaced(kind: Kind, name: str | None = None) -> list[str]:
    """A line for each plugin in a group of ours that does not exist; nothing is imported.

    Args:
        kind: what such plugins may have been meant to be.
        name: only plugins of this name, whatever they may have been meant to be.
    """
    lines = set()
    for entry in {point for distribution in distributions() for point in distribution.entry_points}:
        ours, _, group = entry.group.partition(".")
        known = ours == "fl_labelskew" and group in get_args(Kind)
        if known or ours.lower().replace("-", "").replace("_", "") != "fllabelskew" or name not in (None, entry.name):
            continue
        meant = get_close_matches(group.lower(), get_args(Kind), n=1) or list(get_args(Kind))
        if name is not None or kind in meant:
            lines.add(
                f"{_distribution(entry)} registers '{entry.name}' in the group {entry.group}, which does not exist; "
                f"use {' or '.join(f'fl_labelskew.{guess}' for guess in meant)}"
            )
    return sorted(lines)


def load(kind: Kind, name: str) -> Any:
    """The class registered under ``name``.

    Raises:
        PluginError: unknown name, a name that two distributions claim, or a plugin that does not import or does not
            keep the contract, such as one with a misspelt hook. The message names the distribution.
    """
    by_name: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries(kind):
        by_name[entry.name].append(entry)
    if name not in by_name:
        known = sorted(by_name)
        line = f"unknown name '{name}' in {kind}; known: {', '.join(known) or 'none'}{nearest(name, known)}"
        raise PluginError("; ".join([line, *misplaced(kind, name)]))
    first, *others = by_name[name]
    if others:
        claims = " and ".join(e.distribution + f" ({e.target})" for e in by_name[name])
        raise PluginError(f"name '{name}' in {kind} is claimed by {claims}; uninstall one of them")
    source = f"{kind[:-1]} '{name}' of distribution {first.distribution} ({first.target})"
    # Hand stevedore the entry point just read: its own cache on disk keys on times rounded to two minutes, so a plugin
    # installed a moment after the last run would be listed and yet not found.
    DriverManager.ENTRY_POINT_CACHE[namespace(kind)] = [EntryPoint(name, first.target, namespace(kind))]
    try:
        plugin = DriverManager(namespace(kind), name).driver
    except (Exception, SystemExit) as error:
        raise PluginError(f"{source} does not import: {type(error).__name__}: {error}".splitlines()[0]) from error
    _check(kind, plugin, source)
    return plugin


def _check(kind: Kind, plugin: Any, source: str) -> None:
    contract = CONTRACTS.get(kind)
    if contract is None:
        return
    if not (isinstance(plugin, type) and issubclass(plugin, contract)):
        raise PluginError(f"{source} is no subclass of fl_labelskew_registry.{contract.__name__}")
    params = getattr(plugin, "Params", None)
    if not (isinstance(params, type) and hasattr(params, "model_validate")):
        raise PluginError(f"{source} has no Params; give it a pydantic model, empty if need be")
    for wrong in (_misspelt(plugin, contract), _not_called_so(plugin, contract)):
        if wrong:
            raise PluginError(f"{source}: {wrong}")


def _misspelt(plugin: type, contract: type) -> str:
    """The first public name of a class that is none of the contract's and nearly one of them, if there is one.

    Such a hook would never be called, such an attribute never read. A class that has both may well mean both.
    """
    members = {name: callable(value) for name, value in vars(contract).items() if not name.startswith("_")}
    defined = _defined(plugin, contract)
    for name, value in defined.items():
        if name.startswith("_") or name in members or isinstance(value, type | property):
            continue
        alike = [member for member, hook in members.items() if hook == callable(getattr(plugin, name))]
        close = get_close_matches(name.lower(), alike, n=1, cutoff=0.8)
        if close and close[0] not in defined:
            what = "hook" if members[close[0]] else "attribute"
            return (
                f"{name} is no {what} of {contract.__name__}; did you mean {close[0]}? If it is of the class's own, "
                f"call it _{name}"
            )
    return ""


def _not_called_so(plugin: type, contract: type) -> str:
    """The first hook of a class that cannot be called as the contract's is, if there is one."""
    for name, value in _defined(plugin, contract).items():
        hook = vars(contract).get(name)
        if name.startswith("_") or not inspect.isfunction(hook):
            continue
        if not callable(getattr(plugin, name)):
            return f"{name} is no function but {type(value).__name__}; write it as a method of the class"
        called = list(inspect.signature(hook).parameters.values())[1:]
        by_name = {parameter.name: None for parameter in called if parameter.kind is parameter.KEYWORD_ONLY}
        try:
            takes = inspect.signature(value.__get__(object(), plugin) if hasattr(value, "__get__") else value)
        except ValueError:  # of something that is not written in Python
            continue
        try:
            takes.bind(*[None] * (len(called) - len(by_name)), **by_name)
        except TypeError:
            return (
                f"{name} takes ({', '.join(takes.parameters)}) and is called with "
                f"({', '.join(parameter.name for parameter in called)})"
            )
    return ""


def _defined(plugin: type, contract: type) -> dict[str, Any]:
    """What a class defines beside its contract, inherited or not."""
    classes = [base for base in reversed(plugin.__mro__) if issubclass(base, contract) and base is not contract]
    return {name: value for base in classes for name, value in vars(base).items()}
