"""Recipes: a FedML configuration in YAML, checked as a whole before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fl_labelskew_registry import Dataset, Method, MistakesError, Network, Partitioner, PluginError, catalog
from pydantic import BaseModel

from fl_labelskew_plugins import mistakes, plain_yaml, settings
from fl_labelskew_plugins.settings import PLAIN, PLUGGED, SECTIONS, PluginSection


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
        tracking: what is kept.
        security: the host's attacks and defences.
        dp: the host's differential privacy.
        dataset: the data set, with its parameters.
        partitioner: the partition, with its parameters.
        network: the network's builder, with its parameters.
        method: the method, with its parameters.
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
    tracking: settings.TrackingArgs
    security: settings.SecurityArgs
    dp: settings.DpArgs
    dataset: Dataset
    partitioner: Partitioner
    network: Network
    method: Method

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Every section and key with its value, as plain YAML values; of the host's own two, the keys in use."""
        parts: dict[str, tuple[BaseModel, ...]] = {
            "common_args": (self.common,),
            "data_args": (self.data, self.dataset.params),
            "partition_args": (self.partition, self.partitioner.params),
            "model_args": (self.model, self.network.params),
            "train_args": (self.train,),
            "method_args": (settings.MethodArgs(method=self.method_name), self.method.params),
            "validation_args": (self.validation,),
            "device_args": (self.device,),
            "comm_args": (self.comm,),
            "tracking_args": (self.tracking,),
        }
        host = {"security_args": self.security.host_keys(), "dp_args": self.dp.host_keys()}
        return {section: _merged(models) for section, models in parts.items()} | host

    def dump(self) -> str:
        """The resolved recipe as YAML text; loading it gives the same recipe."""
        name = "".join(letter if letter.isprintable() else "?" for letter in self.name)
        return f"# fedml run {name}.yaml\n{plain_yaml.write(self.resolved())}"


def _merged(models: Sequence[BaseModel]) -> dict[str, Any]:
    # The recipe's own keys go last: where a plugin repeats one, the recipe's value is the one in force.
    values: dict[str, Any] = {}
    for model in models:
        values |= {
            key: value for key, value in model.model_dump(mode="json", by_alias=True).items() if key not in values
        }
    return values


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, with ``section.key=value`` overrides.

    Raises:
        RecipeError: with every mistake of the file and the overrides.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(plain_yaml.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecipeError([f"{_shown(path)}: cannot be read: {reason}"]) from None
    if len(content) > plain_yaml.MAX_BYTES:
        raise RecipeError([f"{_shown(path)}: larger than 1 MiB; a recipe is a page of YAML"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError([f"{_shown(path)}: not text: byte {error.start + 1} is not UTF-8"]) from None
    return parse(text, source=path, overrides=overrides)


def parse(text: str, *, source: str | Path = "recipe.yaml", overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a text; ``source`` is what messages call it.

    Raises:
        RecipeError: with every mistake of the text and the overrides.
    """
    return _Check(Path(source)).recipe(text, overrides)


def different(a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``section.key`` of all that differs between two resolved recipes; where results are kept does not count."""
    return [
        f"{section}.{key}"
        for section in dict.fromkeys([*a, *b])
        if section != "tracking_args"
        for key in dict.fromkeys([*a.get(section, {}), *b.get(section, {})])
        if (key in a.get(section, {})) != (key in b.get(section, {})) or a[section][key] != b[section][key]
    ]


def json_schema() -> dict[str, Any]:
    """JSON Schema of a recipe, for editors; a plugin that does not load is known by its name alone."""
    defs: dict[str, Any] = {}
    sections = {section: _section_schema(section, defs) for section in SECTIONS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fl-labelskew-plugins recipe",
        "type": "object",
        "properties": sections,
        "required": ["data_args", "model_args", "method_args"],
        "additionalProperties": False,
        "$defs": defs,
    }


def _section_schema(section: str, defs: dict[str, Any]) -> dict[str, Any]:
    if section in PLAIN:
        schema = _model_schema(PLAIN[section], section, defs)
        if section == "comm_args":
            schema["properties"]["backend"]["enum"] = _names("runtimes")
        return schema
    plugged = PLUGGED[section]
    schema = _model_schema(plugged.model, section, defs)
    schema["properties"][plugged.key]["enum"] = _names(plugged.kind)
    del schema["additionalProperties"]
    schema["unevaluatedProperties"] = False
    schema["allOf"] = list(_plugin_schemas(section, plugged, defs))
    return schema


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


def _shown(path: str | Path) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(path))


@dataclass
class _Check:
    """One recipe on its way from text to plugins; mistakes gather here."""

    path: Path
    mistakes: list[str] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    overridden: set[str] = field(default_factory=set)

    def recipe(self, text: str, overrides: Sequence[str]) -> Recipe:
        raw = self._sections(text)
        self._override(raw, overrides)
        plain: dict[str, BaseModel | None] = {}
        chosen: dict[str, tuple[BaseModel, Any]] = {}
        for section in SECTIONS:
            if section in PLAIN:
                plain[section] = self._plain(section, raw.get(section, {}))
            elif section not in self.wrong and (pair := self._plugged(section, raw.get(section, {}))) is not None:
                chosen[section] = pair
        self._conflicts(plain)
        if self.mistakes:
            raise RecipeError(self.mistakes)
        return self._build(plain, chosen)

    def _say(self, key: str, message: str) -> None:
        """Note a mistake at ``section`` or ``section.key``."""
        place = f"--set {key}" if key in self.overridden else f"{_shown(self.path)}: {key}"
        self.mistakes.append(f"{_shown(place)}: {message}")
        self.wrong.add(key)

    def _meant(self, prefix: str, name: str, absent: Sequence[str]) -> None:
        """Where an unknown name stands for an absent one, that absence is no second mistake."""
        if (close := mistakes.closest(name, absent)) is not None:
            self.wrong.add(prefix + close)

    def _sections(self, text: str) -> dict[str, dict[str, Any]]:
        try:
            content, twice = plain_yaml.read(text)
        except plain_yaml.YamlError as error:
            raise RecipeError([f"{_shown(self.path)}: {error}"]) from None
        if content is None:
            raise RecipeError([f"{_shown(self.path)}: empty; a recipe has the sections {', '.join(SECTIONS)}"])
        if not isinstance(content, dict):
            raise RecipeError([f"{_shown(self.path)}: {mistakes.show(content)} is no mapping of sections to keys"])
        self.mistakes += [f"{_shown(self.path)}: {line}" for line in twice]
        raw: dict[str, dict[str, Any]] = {}
        for section, keys in content.items():
            if section not in SECTIONS:
                self._say(
                    section, f"unknown section; allowed: {', '.join(SECTIONS)}{mistakes.nearest(section, SECTIONS)}"
                )
                self._meant("", section, [known for known in SECTIONS if known not in content])
            elif not isinstance(keys, dict):
                self._say(
                    section, f"{mistakes.show(keys)} is no mapping of keys to values; allowed: section: {{key: value}}"
                )
            else:
                raw[section] = keys
        return raw

    def _override(self, raw: dict[str, dict[str, Any]], overrides: Sequence[str]) -> None:
        for override in overrides:
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
        if name != keys.get(plugged.key, plugged.model.model_fields[plugged.key].default):
            for key in set(keys) - set(mistakes.keys_of(plugged.model)) - self._set_keys(section):
                del keys[key]

    def _set_keys(self, section: str) -> set[str]:
        return {place.partition(".")[2] for place in self.overridden if place.startswith(f"{section}.")}

    def _set(self, keys: dict[str, Any], section: str, key: str, text: str) -> None:
        place = f"{section}.{key}"
        self.overridden.add(place)
        try:
            value, twice = plain_yaml.read(text)
        except plain_yaml.YamlError as error:
            self._say(place, f"{mistakes.show(text)} is no YAML value: {error}")
            return
        if section in PLUGGED and key == PLUGGED[section].key:
            self._drop_parameters(keys, section, value)
        keys[key] = value
        for line in twice:
            self._say(place, line)

    def _plain(self, section: str, raw: dict[str, Any]) -> BaseModel | None:
        known = mistakes.keys_of(PLAIN[section])
        self._unknown_keys(section, raw, list(known))
        args = self._validated(section, PLAIN[section], raw)
        if isinstance(args, settings.CommArgs):
            self._backend(args)
        return args

    def _plugged(self, section: str, raw: dict[str, Any]) -> tuple[BaseModel, Any] | None:
        """The section's common keys, and the plugin object that it chooses."""
        plugged = PLUGGED[section]
        common = mistakes.keys_of(plugged.model)
        place = f"{section}.{plugged.key}"
        if plugged.key not in raw and plugged.model.model_fields[plugged.key].is_required():
            near = mistakes.closest(plugged.key, [key for key in raw if key not in common])
            instead = f"; found instead: {near}" if near else ""
            self._say(place, f"missing; allowed: {', '.join(_names(plugged.kind))}{instead}")
        args = self._validated(section, plugged.model, raw)
        plugin = self._plugin(section, plugged, args)
        if args is None or plugin is None:
            return None
        own = {key: value for key, value in raw.items() if key not in common}
        try:
            self._unknown_keys(section, own, [*common, *mistakes.keys_of(plugin.Params)])
            params = self._validated(section, plugin.Params, own)
            clean = section not in self.wrong and not any(wrong.startswith(f"{section}.") for wrong in self.wrong)
            return (args, plugin(params)) if params is not None and clean else None
        except Exception as error:  # a plugin of anybody's: its fault is one line, the rest is still checked
            self._say(
                place, f"'{getattr(args, plugged.key)}' fails: {type(error).__name__}: {' '.join(str(error).split())}"
            )
            return None

    def _plugin(self, section: str, plugged: PluginSection, args: BaseModel | None) -> Any:
        place = f"{section}.{plugged.key}"
        if args is None or place in self.wrong:
            return None
        name, known = getattr(args, plugged.key), _names(plugged.kind)
        if name not in known:
            self._say(place, mistakes.unknown(name, known))
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
        known = _names("runtimes")
        if "comm_args.backend" not in self.wrong and comm.backend not in known:
            self._say("comm_args.backend", mistakes.unknown(comm.backend, known))

    def _conflicts(self, plain: Mapping[str, BaseModel | None]) -> None:
        train = cast("settings.TrainArgs", plain["train_args"])
        security = cast("settings.SecurityArgs", plain["security_args"])
        dp = cast("settings.DpArgs", plain["dp_args"])
        for conflict in list(settings.conflicts(train, security, dp)):
            places = {conflict.key, *conflict.others}
            if not self.wrong & (places | {place.partition(".")[0] for place in places}):
                section, _, key = conflict.key.partition(".")
                words = f"; allowed: {mistakes.needed(PLAIN[section], key)}" if conflict.missing else ""
                self._say(conflict.key, conflict.message + words)

    def _build(self, plain: Mapping[str, Any], chosen: Mapping[str, tuple[Any, Any]]) -> Recipe:
        train = plain["train_args"]
        data, partition, model, method = (chosen[section] for section in PLUGGED)
        return Recipe(
            name=self.path.stem,
            path=self.path,
            common=plain["common_args"],
            data=data[0],
            partition=partition[0],
            model=model[0],
            train=train.model_copy(update={"client_num_per_round": train.clients_per_round}),
            method_name=method[0].method,
            validation=plain["validation_args"],
            device=plain["device_args"],
            comm=plain["comm_args"],
            tracking=plain["tracking_args"],
            security=plain["security_args"],
            dp=plain["dp_args"],
            dataset=data[1],
            partitioner=partition[1],
            network=model[1],
            method=method[1],
        )
