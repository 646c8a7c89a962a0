"""A recipe's plugins, by name and parameters, or given as Python objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fl_labelskew_registry import Dataset, LabelSkewError, Method, Network, Partitioner, PluginError, catalog
from torch import nn

from fl_labelskew_plugins.checked import checked
from fl_labelskew_plugins.data.given import GivenData, GivenPartition, given_data
from fl_labelskew_plugins.machine.text import clean, failure
from fl_labelskew_plugins.methods import combined
from fl_labelskew_plugins.models.module import ModuleNetwork
from fl_labelskew_plugins.models.pretrained import AUTO, NONE
from fl_labelskew_plugins.params import IS_PATH, Params, absolute
from fl_labelskew_plugins.recipe import network_file
from fl_labelskew_plugins.recipe.mistakes import Mistakes, closest, keys_of, quoted, unknown
from fl_labelskew_plugins.recipe.sections import MethodArgs, ModelArgs, PluginArgs, code_at, is_code

OBJECT_SECTIONS = {
    "model": "model_args",
    "dataset": "data_args",
    "method": "method_args",
    "partition": "partition_args",
}


def names(kind: catalog.Kind) -> list[str]:
    """Names of all plugins of a kind."""
    return sorted({entry.name for entry in catalog.entries(kind)})


def known(kind: catalog.Kind, name: str, place: str, mistakes: Mistakes) -> bool:
    """Whether a plugin has this name; if not, add a mistake."""
    if name in names(kind):
        return True
    mistakes.add(place, "; ".join([unknown(name, names(kind)), *catalog.misplaced(kind, name)]))
    return False


def chosen(
    section: str, model: type[PluginArgs], raw: Mapping[str, Any], mistakes: Mistakes, *, instead: Any = None
) -> tuple[PluginArgs | None, Any]:
    """A section's own keys and its plugin; None if invalid."""
    common, place = keys_of(model), f"{section}.{model.key}"
    if instead is not None:
        known_keys = {key: value for key, value in raw.items() if key in common}
        name = clean(getattr(instead, "name", type(instead).__name__), 80)
        return mistakes.validated(section, model, known_keys | {model.key: name}), instead
    if model.key not in raw and model.model_fields[model.key].is_required():
        near = closest(model.key, [key for key in raw if key not in common])
        found = f"; found instead: {near[0]}" if near else ""
        mistakes.add(place, f"missing; allowed: {', '.join(names(model.kind))}{found}")
    args = mistakes.validated(section, model, raw)
    if isinstance(args, MethodArgs) and combined.SIGN in args.method:
        return args, _combination(section, args.method.split(combined.SIGN), raw, mistakes)
    name = getattr(args, model.key, "")
    code = isinstance(args, ModelArgs) and is_code(name)
    if args is None or place in mistakes.wrong or not (code or known(model.kind, name, place, mistakes)):
        return args, None
    try:
        if code:
            name = code_at(name, mistakes.folder(place))
            args = args.model_copy(update={model.key: name})
        plugin = network_file.find(name) if code else catalog.load(model.kind, name)
    except LabelSkewError as error:
        mistakes.add(place, " ".join(str(error).split()))
        return args, None
    try:
        keys = keys_of(plugin.Params)  # may repeat common keys
        params = {key: value for key, value in raw.items() if key not in common or key in keys}
        return args, _made(section, plugin, params, [*common, *keys], mistakes)
    except Exception as error:  # third-party code
        mistakes.add(place, f"'{name}' fails: {failure(error)}")
        return args, None


def _made(place: str, plugin: Any, raw: Mapping[str, Any], keys: Sequence[str], mistakes: Mistakes) -> Any:
    mistakes.unknown_keys(place, raw, keys)
    params = mistakes.validated(place, plugin.Params, raw)
    if params is None or any(key == place or key.startswith(f"{place}.") for key in mistakes.wrong):
        return None
    update = {
        key: absolute(path, mistakes.folder(f"{place}.{key}"))
        for key, field in plugin.Params.model_fields.items()
        if IS_PATH in field.metadata and (path := getattr(params, key)) not in (AUTO, NONE)
    }
    return checked(plugin(params.model_copy(update=update) if update else params))


def _combination(section: str, parts: Sequence[str], raw: Mapping[str, Any], mistakes: Mistakes) -> Method | None:
    place, common = f"{section}.method", keys_of(MethodArgs)
    for name in dict.fromkeys(parts):
        if known("methods", name, place, mistakes) and parts.count(name) > 1:
            mistakes.add(place, f"{name} occurs twice; allowed: each method once")
    params = {key: value for key, value in raw.items() if key not in common}
    mistakes.unknown_keys(section, params, [*common, *parts])
    if place in mistakes.wrong:
        return None
    methods: dict[str, Method] = {}
    try:
        for name in parts:
            plugin, keys, where = catalog.load("methods", name), params.get(name, {}), f"{section}.{name}"
            if not isinstance(keys, dict):
                mistakes.add(where, f"{quoted(keys)} is not a mapping; allowed: the parameters of {name}")
            elif (method := _made(where, plugin, keys, [*keys_of(plugin.Params)], mistakes)) is not None:
                methods[name] = method
        return None if mistakes.lines else combined.combine(methods)
    except LabelSkewError as error:
        mistakes.add(place, str(error))
        return None


def trackers(place: str, raw: Sequence[Any], mistakes: Mistakes) -> list[dict[str, dict[str, Any]]]:
    """Trackers with all parameters."""
    chosen: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(raw, 1):
        name, params = next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (item, {})
        where = f"{place}.{name}"
        if not isinstance(name, str) or not isinstance(params, dict):
            form = "a name, or a name and its parameters, such as {wandb: {project: mine}}"
            mistakes.add(place, f"item {number} is of the wrong form; allowed: {form}")
        elif name in chosen:
            mistakes.add(place, f"{quoted(name)} occurs twice; allowed: each tracker once")
        elif known("trackers", name, place, mistakes):
            if place in mistakes.overridden:
                mistakes.overridden.add(where)
            chosen[name] = params
            try:
                model = catalog.load("trackers", name).Params
            except PluginError as error:
                if error.__cause__ is None:  # a failed import only causes a warning: results do not depend on it
                    mistakes.add(place, " ".join(str(error).split()))
                continue
            mistakes.unknown_keys(where, params, [*keys_of(model)])
            args = mistakes.validated(where, model, params)
            chosen[name] = params if args is None else args.model_dump(mode="json", by_alias=True)
    return [{name: params} for name, params in chosen.items()]


def of_silo(place: str, method: Method, raw: Any, mistakes: Mistakes) -> Method | None:
    """``method`` with a silo's own choices."""
    parts = method.parts if isinstance(method, combined.Combined) else {}
    choices = [name for name, part in parts.items() if part.silo_choices] or method.silo_choices
    if not isinstance(raw, dict):
        form = ", ".join(choices) or "none"
        mistakes.add(place, f"{quoted(raw)} is not a mapping of keys to values; allowed: {form}")
        return None
    mistakes.unknown_keys(place, raw, choices)
    good = {key: value for key, value in raw.items() if key in choices}
    if parts:
        chosen = {name: of_silo(f"{place}.{name}", part, good.get(name, {}), mistakes) for name, part in parts.items()}
        whole = {name: part for name, part in chosen.items() if part is not None}
        return combined.combine(whole) if len(whole) == len(parts) else None
    given = method.params.model_dump(mode="json", by_alias=True, exclude_unset=True) | good
    try:
        made: Method | None = _made(place, type(method), given, [*given], mistakes)
        return None if mistakes.wrong else made
    except Exception as error:  # third-party code
        mistakes.add(place, failure(error))
        return None


def from_objects(
    *,
    model: nn.Module | Network | None = None,
    dataset: object = None,
    method: Method | None = None,
    partition: Sequence[Sequence[int]] | Partitioner | None = None,
) -> dict[str, Any]:
    """Turn objects into plugins, by section, see docs/python.md; raises LabelSkewError for a wrong type."""
    if isinstance(model, nn.Module):
        model = ModuleNetwork(model)
    if dataset is not None and not isinstance(dataset, Dataset):
        dataset = GivenData(given_data(dataset))
    if partition is not None and not isinstance(partition, Partitioner):
        if not isinstance(partition, Sequence | np.ndarray) or isinstance(partition, str):
            raise LabelSkewError(f"partition: {clean(partition)!r} is not a list; give a list of indices per client")
        partition = GivenPartition(partition)
    for name, value, kind, use in (
        ("model", model, Network, "an nn.Module, or name a function in model_args.model of the recipe"),
        ("method", method, Method, "an object of fl_labelskew_registry.Method"),
    ):
        if not isinstance(value, kind | None):
            raise LabelSkewError(f"{name}: {clean(value)!r} is a {type(value).__name__}; give {use}")
    given: dict[str, Any] = {"model": model, "dataset": dataset, "method": method, "partition": partition}
    made = {OBJECT_SECTIONS[name]: checked(plugin) for name, plugin in given.items() if plugin is not None}
    for plugin in made.values():
        if plugin.params is None:  # a class without parameters
            plugin.params = Params()
    return made


def object_description(plugin: Any) -> str:
    """An object as text, which must be the same when a run resumes."""
    return clean(getattr(plugin, "description", f"{type(plugin).__name__}({plugin.params!s})"), 1000)
