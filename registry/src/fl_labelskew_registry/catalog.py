"""List plugins without importing them, and load a plugin by name."""

import inspect
import os
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
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
"""Names of each contract's hooks."""


@dataclass(frozen=True, order=True)
class Entry:
    """One registered plugin; ``name``: in recipes."""

    name: str
    distribution: str
    target: str


def namespace(kind: Kind) -> str:
    """Entry-point group of a kind of plugin, such as ``fl_labelskew.methods``."""
    return f"fl_labelskew.{kind}"


def entries(kind: Kind) -> list[Entry]:
    """All registered plugins of a kind, sorted by name; duplicate names appear twice."""
    # folders and their modification times, which change when a package is installed or removed
    installed = tuple((path, os.stat(path or ".").st_mtime_ns) for path in sys.path if os.path.exists(path or "."))
    return list(_entries(installed)[kind])


@cache
def _entries(installed: tuple[tuple[str, int], ...]) -> dict[str, list[Entry]]:
    # stevedore's list_entry_points loses distributions; an editable install can have two metadata folders
    points, name_of = entry_points(), cache(_distribution)
    return {
        kind: sorted({Entry(e.name, name_of(e.dist), e.value) for e in points.select(group=namespace(kind))})
        for kind in get_args(Kind)
    }


def _distribution(distribution: Distribution | None) -> str:
    try:
        return (distribution and distribution.name) or "unknown"
    except Exception:  # METADATA is missing; a broken install must not hide other plugins
        return "unknown"


def nearest(name: str, known: list[str]) -> str:
    """`` (nearest: x)``, if a known name is close."""
    close = get_close_matches(name.lower(), known, n=1)
    return f" (nearest: {close[0]})" if close else ""


def misplaced(kind: Kind, name: str | None = None) -> list[str]:
    """A line for each plugin in a non-existent group: those with this ``name``, or else probably of this ``kind``."""
    lines = set()
    for entry in {point for distribution in distributions() for point in distribution.entry_points}:
        prefix, _, group = entry.group.partition(".")
        known = prefix == "fl_labelskew" and group in get_args(Kind)
        if known or prefix.lower().replace("-", "").replace("_", "") != "fllabelskew" or name not in (None, entry.name):
            continue
        guesses = get_close_matches(group.lower(), get_args(Kind), n=1) or list(get_args(Kind))
        if name is not None or kind in guesses:
            lines.add(
                f"{_distribution(entry.dist)} registers '{entry.name}' in the group {entry.group}, which does not "
                f"exist; use {' or '.join(f'fl_labelskew.{guess}' for guess in guesses)}"
            )
    return sorted(lines)


def load(kind: Kind, name: str) -> Any:
    """The class registered under ``name``; raises PluginError for an unknown, ambiguous or broken plugin."""
    found = [entry for entry in entries(kind) if entry.name == name]
    if not found:
        known = sorted({entry.name for entry in entries(kind)})
        line = f"unknown name '{name}' in {kind}; known: {', '.join(known) or 'none'}{nearest(name, known)}"
        raise PluginError("; ".join([line, *misplaced(kind, name)]))
    first = found[0]
    if len(found) > 1:
        claims = " and ".join(f"{e.distribution} ({e.target})" for e in found)
        raise PluginError(f"name '{name}' in {kind} is claimed by {claims}; uninstall one of them")
    source = f"{kind[:-1]} '{name}' of distribution {first.distribution} ({first.target})"
    # stevedore's disk cache, with a resolution of two minutes, may not have a newly installed plugin
    DriverManager.ENTRY_POINT_CACHE[namespace(kind)] = [EntryPoint(name, first.target, namespace(kind))]
    try:
        plugin = DriverManager(namespace(kind), name).driver
    except (Exception, SystemExit) as error:
        raise PluginError(f"{source} does not import: {type(error).__name__}: {error}".splitlines()[0]) from error
    if (contract := CONTRACTS.get(kind)) is not None:
        if not (isinstance(plugin, type) and issubclass(plugin, contract)):
            raise PluginError(f"{source} must be a subclass of fl_labelskew_registry.{contract.__name__}")
        _check(plugin, contract, source)  # type: ignore[arg-type]  # mypy takes classes for unhashable
    return plugin


@cache
def _check(plugin: type, contract: type, source: str) -> None:
    params = getattr(plugin, "Params", None)
    if not (isinstance(params, type) and hasattr(params, "model_validate")):
        raise PluginError(f"{source} has no Params: add a pydantic model, which may be empty")
    for violation in (_misspelt(plugin, contract), _incompatible(plugin, contract)):
        if violation:
            raise PluginError(f"{source}: {violation}")


def _misspelt(plugin: type, contract: type) -> str:
    """Error message for the first name that is close to one of the contract; a class that defines both means both."""
    members = {name: callable(value) for name, value in vars(contract).items() if not name.startswith("_")}
    defined = _defined(plugin, contract)
    for name, value in defined.items():
        if name.startswith("_") or name in members or isinstance(value, type | property):
            continue
        candidates = [member for member, hook in members.items() if hook == callable(getattr(plugin, name))]
        close = get_close_matches(name.lower(), candidates, n=1, cutoff=0.8)
        if close and close[0] not in defined:
            what = "hook" if members[close[0]] else "attribute"
            return (
                f"{contract.__name__} has no {what} {name}; did you mean {close[0]}? If it is a helper of your own, "
                f"name it _{name}"
            )
    return ""


def _incompatible(plugin: type, contract: type) -> str:
    """Error message for the first hook with an incompatible signature."""
    for name, value in _defined(plugin, contract).items():
        hook = vars(contract).get(name)
        if name.startswith("_") or not inspect.isfunction(hook):
            continue
        if not callable(getattr(plugin, name)):
            return f"{name} must be a method of the class, got {type(value).__name__}"
        parameters = list(inspect.signature(hook).parameters.values())[1:]
        by_name = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        try:
            signature = inspect.signature(value.__get__(object(), plugin) if hasattr(value, "__get__") else value)
        except ValueError:  # not written in Python
            continue
        if name == "after_aggregation" and "shared" in signature.parameters:
            change = "gets server instead of shared since version 1.0 of the contract; use server.shared"
            return f"{name} {change}"
        try:
            signature.bind(*[None] * (len(parameters) - len(by_name)), **by_name)
        except TypeError:
            expected = ", ".join(parameter.name for parameter in parameters)
            return f"{name} must accept ({expected}), but its signature is ({', '.join(signature.parameters)})"
    return ""


def _defined(plugin: type, contract: type) -> dict[str, Any]:
    """Members of a class outside its contract, inherited ones included."""
    classes = [base for base in reversed(plugin.__mro__) if issubclass(base, contract) and base is not contract]
    return {name: value for base in classes for name, value in vars(base).items()}
