"""Recipes: a FedML configuration in YAML, checked as a whole before anything runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from fl_labelskew_registry import (
    Dataset,
    LabelSkewError,
    Method,
    MistakesError,
    Network,
    Optimizer,
    Partitioner,
    PluginError,
    catalog,
)
from pydantic import BaseModel

from fl_labelskew_plugins.checked import checked
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.methods import combined
from fl_labelskew_plugins.recipe import compatibility, mistakes, policy, shipped, yaml
from fl_labelskew_plugins.recipe import sections as settings
from fl_labelskew_plugins.recipe.objects import named
from fl_labelskew_plugins.recipe.sections import EXPECTED, PLAIN, PLUGGED, SECTIONS, Expected, PluginSection

PARTS = (*SECTIONS, EXPECTED)


class RecipeError(MistakesError):
    """A recipe that cannot be run, with a line for each thing to put right."""


@dataclass(frozen=True)
class Recipe:
    """One run, with every default filled in and every plugin chosen.

    Args:
        name: stem of the recipe's file.
        path: the recipe's file.
        common: what kind of run this is.
        data: which data set, and where it lies.
        partition: which partition.
        model: which network.
        train: the federation and its local training.
        method_name: the method's registered name.
        validation: when and what is measured.
        device: where tensors are computed.
        comm: how clients and server talk.
        client_specific: what differs from silo to silo.
        tracking: what is kept.
        security: the host's attacks and defences.
        dp: the host's differential privacy.
        dataset: the data set, with its parameters.
        partitioner: the partition, with its parameters.
        network: the network's builder, with its parameters.
        optimizer: how the federation optimises, with its parameters.
        method: the method, with its parameters.
        expected: a paper's numbers, to compare the outcome with; no part of what is run.
        policy: what this silo takes part in, from its own file alone; no part of what is run.
        objects: plugins that stand in for names, by section; no file says them.
    """

    name: str
    path: Path
    common: settings.CommonArgs
    data: settings.DataArgs
    partition: settings.PartitionArgs
    model: settings.ModelArgs
    train: settings.TrainArgs
    method_name: str
    validation: settings.ValidationArgs
    device: settings.DeviceArgs
    comm: settings.CommArgs
    client_specific: settings.ClientSpecificArgs
    tracking: settings.TrackingArgs
    security: settings.SecurityArgs
    dp: settings.DpArgs
    dataset: Dataset
    partitioner: Partitioner
    network: Network
    optimizer: Optimizer
    method: Method
    expected: tuple[Expected, ...] = ()
    policy: policy.Policy | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_data(self) -> bool:
        """Whether each silo trains on all of a data set of its own, so that nothing is partitioned."""
        return bool(self.client_specific.data_silo_config)

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Every section and key with its value, as plain YAML values; of the host's own two, the keys in use."""
        parts: dict[str, tuple[BaseModel, ...]] = {
            "common_args": (self.common,),
            "data_args": (self.data, self.dataset.params),
            "partition_args": (self.partition, self.partitioner.params),
            "model_args": (self.model, self.network.params),
            "train_args": (self.train, self.optimizer.params),
            "method_args": (settings.MethodArgs(method=self.method_name), self.method.params),
            "validation_args": (self.validation,),
            "device_args": (self.device,),
            "comm_args": (self.comm,),
            "client_specific_args": (self.client_specific,),
            "tracking_args": (self.tracking,),
        }
        host = {"security_args": self.security.host_keys(), "dp_args": self.dp.host_keys()}
        return {section: _merged(models) for section, models in parts.items()} | host

    def dump(self) -> str:
        """The resolved recipe as YAML text; loading it gives the same recipe."""
        content: dict[str, Any] = {**self.resolved()}
        if self.expected:
            content[EXPECTED] = [each.model_dump(mode="json", exclude_none=True) for each in self.expected]
        return f"# fedml run {clean(self.name)}.yaml\n{yaml.write(content)}"


def _merged(models: Sequence[BaseModel]) -> dict[str, Any]:
    # The recipe's own keys go last: where a plugin repeats one, the recipe's value is the one in force.
    values: dict[str, Any] = {}
    for model in models:
        values |= {
            key: value for key, value in model.model_dump(mode="json", by_alias=True).items() if key not in values
        }
    return values


def load(
    path: str | Path, overrides: Sequence[str] = (), *, objects: Mapping[str, Any] = MappingProxyType({})
) -> Recipe:
    """The recipe in a file, with ``section.key=value`` overrides and ``objects`` as in :func:`parse`.

    Raises:
        RecipeError: with every mistake of the file and the overrides.
    """
    return parse(read_text(path), source=path, overrides=overrides, objects=objects)


def read_text(path: str | Path) -> str:
    """A recipe's file, or another of its kind, as text; or the recipe of this name.

    Raises:
        RecipeError: it cannot be read, or is no page of text.
        MistakesError: it is neither a file nor the name of a recipe.
    """
    if (text := shipped.text(path, read_text)) is not None:
        return text
    try:
        with Path(path).open("rb") as file:
            content = file.read(yaml.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecipeError([f"{_shown(path)}: cannot be read: {reason}"]) from None
    if len(content) > yaml.MAX_BYTES:
        raise RecipeError([f"{_shown(path)}: larger than 1 MiB; a recipe is a page of YAML"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError([f"{_shown(path)}: not text: byte {error.start + 1} is not UTF-8"]) from None


def parse(
    text: str,
    *,
    source: str | Path = "recipe.yaml",
    overrides: Sequence[str] = (),
    objects: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """The recipe in a text; ``source`` is what messages call it.

    Args:
        text: YAML.
        source: the file's name.
        overrides: ``section.key=value`` each.
        objects: plugins in place of those that sections name, by section; see :mod:`.objects`.

    Raises:
        RecipeError: with every mistake of the text and the overrides.
    """
    return _Check(Path(source), objects=objects).recipe(text, overrides)


def silo(recipe: Recipe, rank: int) -> Recipe:
    """The recipe as silo ``rank`` (``1 .. K``) runs it: with its own file of ``data_silo_config``, if there are any.

    That file's ``data_args`` take the place of the recipe's; of other sections, the keys that it gives. Nothing else
    need exist on this machine.

    Raises:
        RecipeError: with every mistake of that file.
    """
    if not 1 <= rank <= recipe.train.client_num_in_total:
        raise RecipeError(
            [f"--rank {rank}: out of range; allowed: 1 to {recipe.train.client_num_in_total}, one a silo"]
        )
    if not recipe.own_data:
        return recipe
    path = Path(recipe.client_specific.data_silo_config[rank - 1])
    own = _Check(path, allowed=tuple(settings.SILO)).silo(read_text(path), recipe)
    return cast("Recipe", own)


def check(path: Path, overrides: Sequence[str] = ()) -> str:
    """Check a file as what it is: a recipe, or a silo's own file, together with each recipe beside it that names it.

    Args:
        path: the file.
        overrides: ``section.key=value``, of the recipe.

    Returns:
        ``ok``, and what it was checked as where it is no recipe.

    Raises:
        RecipeError: with every mistake of the file, or of the recipe that names it.
    """
    text = read_text(path)
    if not settings.silos_own(_content(text)):
        parse(text, source=path, overrides=overrides)
        return "ok"
    homes = [(beside, rank) for beside in sorted(path.parent.glob("*.y*ml")) if (rank := _rank(path, beside))]
    bases: list[Recipe | None] = [load(beside, overrides) for beside, _ in homes]
    for base in bases or [None]:
        _Check(path, allowed=tuple(settings.SILO)).silo(text, base)
    if homes:
        return "ok, " + " and ".join(f"silo {rank} of {_shown(beside.name)}" for beside, rank in homes)
    return "ok, as a silo's own file; method_args were not checked, for no recipe beside it names it"


def _content(text: str) -> Any:
    """What a text holds; None where it is no YAML, which is told elsewhere."""
    try:
        return yaml.read(text)[0]
    except yaml.YamlError:
        return None


def _rank(path: Path, beside: Path) -> int:
    """Which silo's file ``path`` is for the recipe in ``beside``, from 1; 0: none's."""
    with contextlib.suppress(RecipeError, KeyError, TypeError, ValueError):  # no recipe, or none that names it
        files = _content(read_text(beside))["client_specific_args"]["data_silo_config"]
        here = [os.path.abspath(beside.parent / os.path.expanduser(file)) for file in files]
        return here.index(os.path.abspath(path)) + 1
    return 0


def different(a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``section.key`` of all that differs between two resolved recipes.

    Where results are kept does not count, nor where processes find each other and how long they wait.
    """
    return [
        f"{section}.{key}"
        for section in dict.fromkeys([*a, *b])
        if section != "tracking_args"
        for key in dict.fromkeys([*a.get(section, {}), *b.get(section, {})])
        if section != "comm_args" or key == "backend"
        if (key in a.get(section, {})) != (key in b.get(section, {})) or a[section][key] != b[section][key]
    ]


def json_schema() -> dict[str, Any]:
    """JSON Schema of a recipe and of a silo's own file, for editors; of a plugin that does not load the name alone."""
    defs: dict[str, Any] = {}
    sections = {section: _section_schema(section, defs) for section in SECTIONS}
    one = _model_schema(Expected, EXPECTED, defs)
    sections[EXPECTED] = {"anyOf": [one, {"type": "array", "items": one}]}
    defs["recipe"] = {
        "properties": sections,
        "required": ["data_args", "model_args", "method_args"],
        "additionalProperties": False,
    }
    defs["silo"] = {
        "properties": {section: _silo_schema(section, keys) for section, keys in settings.SILO.items()},
        "additionalProperties": False,
    }
    chooses = {"properties": {"method_args": {"required": ["method"]}}, "required": ["method_args"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fl-labelskew-plugins recipe, or a silo's own file",
        "type": "object",
        "if": {"anyOf": [*({"required": [section]} for section in sections if section not in settings.SILO), chooses]},
        "then": {"$ref": "#/$defs/recipe"},
        "else": {"$ref": "#/$defs/silo"},
        "$defs": defs,
    }


def _silo_schema(section: str, keys: Sequence[str] | None) -> dict[str, Any]:
    """A section of a silo's own file; which parameters a method leaves to silos depends on the recipe's method."""
    if section == "method_args":
        return {"type": "object"}
    if section == policy.SECTION:
        return policy.Policy.model_json_schema()
    whole = f"#/$defs/recipe/properties/{section}"
    if keys is None:
        return {"$ref": whole}
    parts = {key: {"$ref": f"{whole}/properties/{key}"} for key in keys}
    return {"type": "object", "properties": parts, "additionalProperties": False}


def _section_schema(section: str, defs: dict[str, Any]) -> dict[str, Any]:
    if section in PLAIN:
        schema = _model_schema(PLAIN[section], section, defs)
        if section == "comm_args":
            schema["properties"]["backend"]["enum"] = _names("runtimes")
        return schema
    plugged = PLUGGED[section]
    schema = _model_schema(plugged.model, section, defs)
    del schema["additionalProperties"]
    schema["unevaluatedProperties"] = False
    schema["allOf"] = list(_plugin_schemas(section, plugged, defs))
    if plugged.kind == "methods":
        schema["allOf"].append(_combination_schema(schema["properties"][plugged.key], section))
    else:
        schema["properties"][plugged.key]["enum"] = _names(plugged.kind)
    return schema


def _combination_schema(key: dict[str, Any], section: str) -> dict[str, Any]:
    """Make the key one name or several; returns what each method's parameters are where there are several."""
    names = _names("methods")
    several = {"anyOf": [{"type": "array"}, {"type": "string", "pattern": r"\+"}]}
    a_list = {"type": "array", "items": {"enum": names}, "minItems": 2}
    key["anyOf"] = [{"enum": names}, {"type": "string", "pattern": r"\+"}, a_list]
    del key["type"]
    then = {"properties": {name: {"type": "object", "title": f"{section} of {name}"} for name in names}}
    return {"if": {"properties": {"method": several}, "required": ["method"]}, "then": then}


def _plugin_schemas(section: str, plugged: PluginSection, defs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _names(plugged.kind):
        try:
            params = catalog.load(plugged.kind, name).Params
        except PluginError:
            continue
        schema = _model_schema(params, f"{section}.{name}", defs)
        then = {key: schema[key] for key in ("properties", "required") if key in schema}
        default = plugged.model.model_fields[plugged.key].default
        required = [] if name == default else [plugged.key]
        yield {"if": {"properties": {plugged.key: {"const": name}}, "required": required}, "then": then}


def _model_schema(model: type[BaseModel], prefix: str, defs: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
    defs |= {f"{prefix}.{name}": part for name, part in schema.pop("$defs", {}).items()}
    return schema


def _names(kind: catalog.Kind) -> list[str]:
    return sorted({entry.name for entry in catalog.entries(kind)})


def _unknown(kind: catalog.Kind, name: str) -> str:
    return "; ".join([mistakes.unknown(name, _names(kind)), *catalog.misplaced(kind, name)])


def _shown(path: str | Path) -> str:
    return clean(path, 4096)  # as long as a path may be


@dataclass
class _Check:
    """One recipe, or one silo's own file, on its way from text to plugins; mistakes gather here."""

    path: Path
    allowed: tuple[str, ...] = PARTS
    objects: Mapping[str, Any] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    overridden: set[str] = field(default_factory=set)
    expected: list[Expected] = field(default_factory=list)

    def recipe(self, text: str, overrides: Sequence[str]) -> Recipe:
        raw = self._sections(text)
        self._override(raw, overrides)
        plain: dict[str, BaseModel | None] = {"train_args": settings.TrainArgs()}
        plugins: dict[str, Any] = {}
        for section in SECTIONS:
            if section in PLAIN:
                plain[section] = self._plain(section, raw.get(section, {}))
            elif section not in self.wrong:
                plain[section], plugins[section] = self._plugged(section, raw.get(section, {}))
        self._conflicts(plain, plugins.get("method_args"), plugins.get("train_args"))
        if (dataset := plugins.get("data_args")) is not None:
            args: list[Any] = [plain[section] for section in ("common_args", "data_args", "validation_args")]
            self._say_conflicts(settings.form_conflicts(args[0], args[1], args[2], dataset.params))
        if self.mistakes:
            raise RecipeError(self.mistakes)
        try:
            plugins["method_args"].stages(cast("settings.TrainArgs", plain["train_args"]).epochs)
        except LabelSkewError as error:
            self._say("method_args.method", str(error))
            raise RecipeError(self.mistakes) from error
        return self._build(plain, plugins)

    def _expected(self, raw: object) -> None:
        form = f"a mapping with {', '.join(mistakes.keys_of(Expected))}, or a list of them"
        for number, item in enumerate(raw if isinstance(raw, list) else [raw], 1):
            place = f"{EXPECTED}[{number}]" if isinstance(raw, list) else EXPECTED
            if not isinstance(item, dict):
                self._say(place, f"{mistakes.show(item)} is no mapping of keys to values; allowed: {form}")
                continue
            self._unknown_keys(place, item, list(mistakes.keys_of(Expected)))
            args = self._validated(place, Expected, item)
            if isinstance(args, Expected):
                self.expected.append(args)

    def silo(self, text: str, base: Recipe | None) -> Recipe | None:
        """``base`` with what a silo's own file says in place of it; None: the file is checked by itself."""
        raw = self._sections(text)
        resolved = {} if base is None else base.resolved()
        plain: dict[str, BaseModel | None] = {
            section: getattr(base, section.removesuffix("_args"), None) for section in (*PLAIN, "train_args")
        }
        changed: dict[str, Any] = {}
        for section, keys in raw.items():
            if section == "data_args":
                args, dataset = self._plugged(section, keys)
                changed |= {"data": args, "dataset": dataset}
            elif section == "method_args":
                changed["method"] = base and self._own_method(section, base.method, keys)
            elif section == policy.SECTION:
                changed["policy"] = self._policy(keys)
            else:
                known = settings.SILO[section] or tuple(mistakes.keys_of(PLAIN[section]))
                plain[section] = self._plain(section, keys, known, resolved.get(section))
        if base is not None:
            self._conflicts(plain, changed.get("method", base.method), base.optimizer)
        if self.mistakes:
            raise RecipeError(self.mistakes)
        if base is None:
            return None
        changed |= {section.removesuffix("_args"): args for section, args in plain.items() if section in raw}
        made = replace(base, **changed)
        for key, line in policy.refused(made.policy, made) if made.policy is not None else ():
            self._say(f"{policy.SECTION}.{key}", line)
        if self.mistakes:
            raise RecipeError(self.mistakes)
        return made

    def _policy(self, raw: dict[str, Any]) -> BaseModel | None:
        self._unknown_keys(policy.SECTION, raw, list(mistakes.keys_of(policy.Policy)))
        args = self._validated(policy.SECTION, policy.Policy, raw)
        for name in (isinstance(args, policy.Policy) and args.methods) or ():
            if name not in _names("methods"):
                self._say(f"{policy.SECTION}.methods", _unknown("methods", name))
        return args and self._located(policy.SECTION, args)

    def _own_method(self, place: str, method: Method, own: Any) -> Method | None:
        """``method`` with what a silo chooses for itself; of a combination, under the name of each part."""
        parts = method.parts if isinstance(method, combined.Combined) else {}
        choices = [name for name, part in parts.items() if part.silo_choices] or method.silo_choices
        if not isinstance(own, dict):
            form = ", ".join(choices) or "none"
            self._say(place, f"{mistakes.show(own)} is no mapping of keys to values; allowed: {form}")
            return None
        self._unknown_keys(place, own, choices)
        if parts:
            known = {name: own.get(name, {}) if name in choices else {} for name in parts}
            mine = {name: self._own_method(f"{place}.{name}", part, known[name]) for name, part in parts.items()}
            whole = {name: part for name, part in mine.items() if part is not None}
            return combined.combine(whole) if len(whole) == len(parts) else None
        good = {key: value for key, value in own.items() if key in choices}
        given = method.params.model_dump(mode="json", by_alias=True, exclude_unset=True) | good
        params = self._validated(place, type(method).Params, given)
        try:
            return None if params is None or self.wrong else checked(type(method)(params))
        except Exception as error:  # a plugin of anybody's
            self._say(place, f"{type(error).__name__}: {' '.join(str(error).split())}")
            return None

    def _say(self, key: str, message: str) -> None:
        """Note a mistake at ``section`` or ``section.key``."""
        given = not self.overridden.isdisjoint((key, key.rpartition(".")[0]))
        place = f"--set {key}" if given else f"{_shown(self.path)}: {key}"
        self.mistakes.append(f"{_shown(place)}: {message}")
        self.wrong.add(key)

    def _meant(self, prefix: str, name: str, absent: Sequence[str]) -> None:
        """Where an unknown name stands for an absent one, that absence is no second mistake."""
        if (close := mistakes.closest(name, absent)) is not None:
            self.wrong.add(prefix + close)

    def _sections(self, text: str) -> dict[str, dict[str, Any]]:
        try:
            content, twice = yaml.read(text)
        except yaml.YamlError as error:
            raise RecipeError([f"{_shown(self.path)}: {error}"]) from None
        if content is None:
            what = "a recipe" if self.allowed == PARTS else "a silo's file"
            raise RecipeError([f"{_shown(self.path)}: empty; {what} has the sections {', '.join(self.allowed)}"])
        if not isinstance(content, dict):
            raise RecipeError([f"{_shown(self.path)}: {mistakes.show(content)} is no mapping of sections to keys"])
        if "tables" in content:
            row = self.path.with_suffix("") / "ROW"
            raise RecipeError([f"{_shown(self.path)}: is a table of recipes; use one of its rows: {_shown(row)}"])
        self.mistakes += [f"{_shown(self.path)}: {line}" for line in twice]
        raw: dict[str, dict[str, Any]] = {}
        for section, keys in content.items():
            if section not in self.allowed:
                near = mistakes.nearest(section, self.allowed)
                self._say(section, f"unknown section; allowed: {', '.join(self.allowed)}{near}")
                self._meant("", section, [known for known in self.allowed if known not in content])
            elif section == EXPECTED:
                self._expected(keys)
            elif not isinstance(keys, dict):
                self._say(
                    section, f"{mistakes.show(keys)} is no mapping of keys to values; allowed: section: {{key: value}}"
                )
            else:
                raw[section] = keys
        return raw

    def _override(self, raw: dict[str, dict[str, Any]], overrides: Sequence[str]) -> None:
        # what names a plugin goes first: it drops parameters of another one, and these are the file's alone
        plugins = {f"{section}.{plugged.key}" for section, plugged in PLUGGED.items()}
        for override in sorted(overrides, key=lambda each: each.partition("=")[0].strip() not in plugins):
            place, equals, text = override.partition("=")
            section, dot, key = place.strip().partition(".")
            if not (equals and dot and section and key):
                form = "allowed: section.key=value, such as train_args.epochs=2"
                self.mistakes.append(f"--set {_shown(override)}: malformed; {form}")
            elif section not in SECTIONS:
                known = f"allowed: {', '.join(SECTIONS)}{mistakes.nearest(section, SECTIONS)}"
                self.mistakes.append(f"--set {_shown(section)}.{_shown(key)}: unknown section; {known}")
            else:
                self._set(raw.setdefault(section, {}), section, key, text)

    def _drop_parameters(self, keys: dict[str, Any], section: str, name: Any) -> None:
        """Parameters in the file are those of the plugin that it names; another one starts from its own defaults."""
        plugged = PLUGGED[section]
        named = keys.get(plugged.key, plugged.model.model_fields[plugged.key].default)
        if set(settings.names(name)) != set(settings.names(named)):
            for key in set(keys) - set(mistakes.keys_of(plugged.model)):
                del keys[key]

    def _set(self, keys: dict[str, Any], section: str, key: str, text: str) -> None:
        place = f"{section}.{key}"
        self.overridden.add(place)
        try:
            value, twice = yaml.read(text)
        except yaml.YamlError as error:
            self._say(place, f"{mistakes.show(text)} is no YAML value: {error}")
            return
        if section in PLUGGED and key == PLUGGED[section].key:
            self._drop_parameters(keys, section, value)
        name, dot, inner = key.partition(".")
        if dot and section == "method_args" and name in _names("methods"):  # a parameter of one of several methods
            if name not in keys:
                self.overridden.add(f"{section}.{name}")
            if isinstance(nested := keys.get(name, {}), dict):
                keys[name] = {**nested, inner: value}
        else:
            keys[key] = value
        for line in twice:
            self._say(place, line)

    def _plain(
        self, section: str, raw: dict[str, Any], known: Sequence[str] = (), base: Mapping[str, Any] | None = None
    ) -> BaseModel | None:
        """A section that is complete here: its ``known`` keys, all by default, on top of ``base``."""
        known = known or list(mistakes.keys_of(PLAIN[section]))
        self._unknown_keys(section, raw, known)
        args = self._validated(
            section, PLAIN[section], {**(base or {}), **{k: v for k, v in raw.items() if k in known}}
        )
        if isinstance(args, settings.CommArgs):
            self._backend(args)
        return args and self._located(section, args)

    def _located(self, section: str, args: BaseModel) -> BaseModel:
        """Paths made absolute: a run that is resumed reads them from another folder."""

        def absolute(key: str, path: str) -> str:
            folder = Path() if f"{section}.{key}" in self.overridden else self.path.parent
            return os.path.abspath(folder / os.path.expanduser(path))

        update: dict[str, Any] = {}
        for key in settings.PATHS.get(section, ()):
            value = getattr(args, key)
            if value is not None:
                update[key] = (
                    absolute(key, value) if isinstance(value, str) else [absolute(key, each) for each in value]
                )
        return args.model_copy(update=update)

    def _plugged(self, section: str, raw: dict[str, Any]) -> tuple[BaseModel | None, Any]:
        """The section's common keys, and the plugin object that it chooses; None for what cannot be had."""
        plugged = PLUGGED[section]
        common = mistakes.keys_of(plugged.model)
        place = f"{section}.{plugged.key}"
        if (plugin := self.objects.get(section)) is not None:
            keys = {key: value for key, value in raw.items() if key in common} | {plugged.key: named(plugin)}
            return self._validated(section, plugged.model, keys), plugin
        if plugged.key not in raw and plugged.model.model_fields[plugged.key].is_required():
            near = mistakes.closest(plugged.key, [key for key in raw if key not in common])
            instead = f"; found instead: {near}" if near else ""
            self._say(place, f"missing; allowed: {', '.join(_names(plugged.kind))}{instead}")
        args = self._validated(section, plugged.model, raw)
        if isinstance(args, settings.MethodArgs) and combined.SIGN in args.method:
            return args, self._combined(section, args.method.split(combined.SIGN), raw)
        plugin = self._plugin(section, plugged, args)
        if args is None or plugin is None:
            return args, None
        try:
            keys = mistakes.keys_of(plugin.Params)  # where it repeats a common key, it gets that too
            own = {key: value for key, value in raw.items() if key not in common or key in keys}
            self._unknown_keys(section, own, [*common, *keys])
            params = self._validated(section, plugin.Params, own)
            clean = section not in self.wrong and not any(wrong.startswith(f"{section}.") for wrong in self.wrong)
            return args, checked(plugin(params)) if params is not None and clean else None
        except Exception as error:  # a plugin of anybody's: its fault is one line, the rest is still checked
            self._say(
                place, f"'{getattr(args, plugged.key)}' fails: {type(error).__name__}: {' '.join(str(error).split())}"
            )
            return args, None

    def _combined(self, section: str, names: Sequence[str], raw: dict[str, Any]) -> Method | None:
        """Several methods in a row, each with its parameters under its own name."""
        place, known, common = f"{section}.method", _names("methods"), mistakes.keys_of(settings.MethodArgs)
        for name in dict.fromkeys(names):
            if name not in known:
                self._say(place, _unknown("methods", name))
            elif names.count(name) > 1:
                self._say(place, f"{name} stands there twice; allowed: each method once")
        own = {key: value for key, value in raw.items() if key not in common}
        self._unknown_keys(section, own, [*common, *names])
        if place in self.wrong:
            return None
        parts: dict[str, Method] = {}
        try:
            for name in names:
                if (part := self._part(f"{section}.{name}", name, own.get(name, {}))) is not None:
                    parts[name] = part
            return combined.combine(parts) if len(parts) == len(names) and not self.mistakes else None
        except LabelSkewError as error:
            self._say(place, str(error))
            return None

    def _part(self, place: str, name: str, keys: Any) -> Method | None:
        method = catalog.load("methods", name)
        if not isinstance(keys, dict):
            self._say(place, f"{mistakes.show(keys)} is no mapping; allowed: the parameters of {name}")
            return None
        before = len(self.mistakes)
        self._unknown_keys(place, keys, list(mistakes.keys_of(method.Params)))
        params = self._validated(place, method.Params, keys)
        return checked(method(params)) if params is not None and len(self.mistakes) == before else None

    def _plugin(self, section: str, plugged: PluginSection, args: BaseModel | None) -> Any:
        place = f"{section}.{plugged.key}"
        if args is None or place in self.wrong:
            return None
        name = getattr(args, plugged.key)
        if name not in _names(plugged.kind):
            self._say(place, _unknown(plugged.kind, name))
            return None
        try:
            return catalog.load(plugged.kind, name)
        except PluginError as error:
            self._say(place, " ".join(str(error).split()))
            return None

    def _unknown_keys(self, section: str, raw: dict[str, Any], known: Sequence[str]) -> None:
        for key in raw:
            if key not in known:
                self._say(f"{section}.{key}", mistakes.unknown_key(key, known))
                self._meant(f"{section}.", key, [each for each in known if each not in raw])

    def _validated(self, section: str, model: type[BaseModel], raw: dict[str, Any]) -> BaseModel | None:
        args, wrong = mistakes.validate(model, raw)
        for key, message in wrong.items():
            place = f"{section}.{key}" if key else section
            if place not in self.wrong:
                self._say(place, message)
        return args

    def _backend(self, comm: settings.CommArgs) -> None:
        if "comm_args.backend" not in self.wrong and comm.backend not in _names("runtimes"):
            self._say("comm_args.backend", _unknown("runtimes", comm.backend))

    def _conflicts(
        self, plain: Mapping[str, BaseModel | None], method: Method | None, optimizer: Optimizer | None
    ) -> None:
        args: dict[str, Any] = {section.removesuffix("_args"): model for section, model in plain.items()}
        names = ("common", "train", "comm", "client_specific", "tracking", "security", "dp")
        found = list(settings.conflicts(*(args[name] for name in names)))
        if method is not None and optimizer is not None:
            found += compatibility.conflicts(cast("Recipe", SimpleNamespace(**args)), method, optimizer)
        self._say_conflicts(found)

    def _say_conflicts(self, conflicts: Iterable[settings.Conflict]) -> None:
        for conflict in conflicts:
            places = {conflict.key, *conflict.others}
            if not self.wrong & (places | {place.partition(".")[0] for place in places}):
                section, _, key = conflict.key.partition(".")
                words = f"; allowed: {mistakes.needed(PLAIN[section], key)}" if conflict.missing else ""
                self._say(conflict.key, conflict.message + words)

    def _build(self, plain: Mapping[str, Any], plugins: Mapping[str, Any]) -> Recipe:
        train = plain["train_args"]
        return Recipe(
            name=self.path.stem,
            path=self.path,
            common=plain["common_args"],
            data=plain["data_args"],
            partition=plain["partition_args"],
            model=plain["model_args"],
            train=train.model_copy(update={"client_num_per_round": train.clients_per_round}),
            method_name=plain["method_args"].method,
            validation=plain["validation_args"],
            device=plain["device_args"],
            comm=plain["comm_args"],
            client_specific=plain["client_specific_args"],
            tracking=plain["tracking_args"],
            security=plain["security_args"],
            dp=plain["dp_args"],
            dataset=plugins["data_args"],
            partitioner=plugins["partition_args"],
            network=plugins["model_args"],
            optimizer=plugins["train_args"],
            method=plugins["method_args"],
            expected=tuple(self.expected),
            objects=self.objects,
        )
