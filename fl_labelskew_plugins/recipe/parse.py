"""Read and check recipes and silos' own files."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.params import IS_PATH, absolute
from fl_labelskew_plugins.recipe import compatibility, mistakes, plugins, policy, privacy, shipped, yaml
from fl_labelskew_plugins.recipe.conflicts import column_conflicts, conflicts, data_conflicts
from fl_labelskew_plugins.recipe.mistakes import Mistakes, ModelT, RecipeError, clean_path, keys_of, quoted
from fl_labelskew_plugins.recipe.model import ATTRIBUTES, EXPECTED, PARTS, PLUGGED, POLICY, SECTIONS, SILO_KEYS, Recipe
from fl_labelskew_plugins.recipe.sections import CommArgs, Expected, Policy, TrackingArgs, TrainArgs
from fl_labelskew_plugins.recipe.sections import names as split

Objects = Mapping[str, Any]
NOTHING: Objects = MappingProxyType({})
OF_REFERENCE = (
    "common_args",
    "data_args",
    "partition_args",
    "model_args",
    "validation_args",
    "device_args",
    "tracking_args",
)
"""Sections that apply to a reference run."""
OF_SERVER = ("federated_optimizer", "proxy_aggregation", "proxy_smoothing")


def load(path: str | Path, overrides: Sequence[str] = (), *, objects: Objects = NOTHING) -> Recipe:
    """Read a recipe by path or name; see :func:`parse`."""
    return parse(read_text(path), source=path, overrides=overrides, objects=objects)


def read_text(path: str | Path) -> str:
    """Text of a file, or of the package's recipe of this name; raises MistakesError."""
    if (text := shipped.text(path)) is not None:
        return text
    try:
        return yaml.text_of(Path(path))
    except yaml.YamlError as error:
        hint = "" if os.path.exists(path) else shipped.hint(path)
        raise RecipeError([f"{clean_path(path)}: {error}{hint}"]) from None


def parse(
    text: str, *, source: str | Path = "recipe.yaml", overrides: Sequence[str] = (), objects: Objects = NOTHING
) -> Recipe:
    """Parse and check a recipe; raises RecipeError with every mistake. ``objects``: see :func:`.from_objects`."""
    recipe = _Check(Path(source)).recipe(text, overrides, objects)
    if recipe.train.reference is None:
        return recipe
    kept = {section: plugin for section, plugin in objects.items() if section in OF_REFERENCE}
    return _Check(Path(source)).recipe(_reference(recipe), (), kept)


def _reference(recipe: Recipe) -> str:
    """The text of a reference run's recipe: FedAvg in one process."""
    if recipe.own_data:
        problem = "needs all data in one place, but client_specific_args.data_silo_config names the silos' own data"
        raise mistake("train_args.reference", f"{recipe.train.reference} {problem}", "a recipe with a partition")
    everything = recipe.resolved()
    content = {section: dict(everything[section]) for section in OF_REFERENCE}
    known = keys_of(TrainArgs).keys() - {*OF_SERVER}
    content["train_args"] = {key: value for key, value in everything["train_args"].items() if key in known}
    content["method_args"] = {"method": "fedavg"}
    content["tracking_args"].pop("diagnostics")
    return yaml.write(content)


def silo(recipe: Recipe, rank: int, *, survey: bool = False) -> Recipe:
    """The recipe for silo ``rank`` (``1 .. K``), changed by its own file; raises RecipeError with every mistake.

    For a survey, only ``server_fingerprint`` of the policy is checked, as nothing is trained.
    """
    silos = recipe.train.client_num_in_total
    if not 1 <= rank <= silos:
        raise RecipeError([f"--rank {rank}: out of range; allowed: 1 to {silos}, one per silo"])
    if not recipe.own_data:
        return recipe
    path = Path(recipe.client_specific.data_silo_config[rank - 1])
    return _Check(path).silo(read_text(path), recipe, survey=survey)


def check(path: Path, overrides: Sequence[str] = (), host: str | None = None) -> str:
    """Check a recipe, or a silo's own file with each of its recipes; return ``ok``, and remarks.

    Raises RecipeError with every mistake, and LabelSkewError as :func:`.compatibility.hosted`.
    """
    text = read_text(path)
    if not _is_silo_file(_content(text)):
        recipe = parse(text, source=path, overrides=overrides)
        compatibility.hosted(recipe, host)
        report = ["ok", *([privacy.reported_accuracy(recipe)] if recipe.only_sums else [])]
        try:
            compatibility.check_extras(recipe)
        except LabelSkewError as error:
            report.append(f"it cannot run on this machine: {error}")
        return "; ".join(report)
    named = recipes_naming(path)
    for base in [load(other, overrides) for other, _ in named]:
        _Check(path).silo(text, base)
    if named:
        return "ok, " + " and ".join(f"silo {rank} of {clean_path(other.name)}" for other, rank in named)
    checker = _Check(path)
    checker.changes(text)
    checker.raise_if_any()
    return "ok, as a silo's own file; method_args were not checked, because no recipe in this folder names the file"


def _is_silo_file(content: object) -> bool:
    if not isinstance(content, dict) or not content or not content.keys() <= SILO_KEYS.keys():
        return False
    method = content.get("method_args")
    return not (isinstance(method, dict) and "method" in method)


def _content(text: str) -> Any:
    with contextlib.suppress(yaml.YamlError):
        return yaml.read(text)[0]
    return None


def recipes_naming(path: Path) -> list[tuple[Path, int]]:
    """Recipes in the folder that name this silo's own file, each with the silo's rank, from 1."""
    found: list[tuple[Path, int]] = []
    for recipe in sorted(path.parent.glob("*.y*ml")):
        with contextlib.suppress(RecipeError, KeyError, TypeError, ValueError):  # not a recipe, or without this file
            files = _content(read_text(recipe))["client_specific_args"]["data_silo_config"]
            found.append((recipe, absolute(files, recipe.parent).index(os.path.abspath(path)) + 1))
    return found


class _Check(Mistakes):
    def recipe(self, text: str, overrides: Sequence[str], objects: Objects) -> Recipe:
        raw = self._sections(text, PARTS, "a recipe")
        numbers = raw.pop(EXPECTED, ())
        self._override(raw, overrides)
        args: dict[str, Any] = {}
        made: dict[str, Any] = {}
        for section, name in ATTRIBUTES.items():
            keys = raw.get(section, {})
            if section not in PLUGGED:
                args[name] = self._plain(section, SECTIONS[section], keys)
            elif section not in self.wrong:
                chooser = PLUGGED[section]
                choice = plugins.chosen(section, chooser, keys, self, instead=objects.get(section))
                args[name], made[chooser.attribute] = choice
        self.raise_if_any()
        train = args["train"]
        try:
            made["method"].stages(train.epochs)
        except LabelSkewError as error:
            self.add("method_args.method", str(error))
        args["train"] = train.model_copy(update={"client_num_per_round": train.clients_per_round})
        recipe = Recipe(name=self.path.stem, path=self.path, expected=numbers, objects=objects, **args, **made)
        self.refuse([*conflicts(recipe), *data_conflicts(recipe), *compatibility.conflicts(recipe)])
        self.refuse(privacy.refused(recipe))
        return recipe

    def silo(self, text: str, base: Recipe, *, survey: bool = False) -> Recipe:
        changes = self.changes(text, base)
        made = base.model_copy(update={name: value for name, value in changes.items() if value is not None})
        self.raise_if_any()
        self.refuse([*conflicts(made), *compatibility.conflicts(made)])
        params = base.dataset.params if type(base.dataset) is type(made.dataset) else None
        self.refuse(column_conflicts(made.dataset.params, params))
        for key, value in made.normalisation.items():
            if (common := base.normalisation[key]) != value:
                shown = f"that of {base.data.dataset}" if common is None else quoted(common)
                problem = f"{quoted(value)} here but {shown} in the recipe; all silos share one normalisation"
                self.add(f"data_args.{key}", f"{problem}: set mean and std in the recipe to numbers, imagenet or data")
                self.raise_if_any()
        refused = policy.refused(made.policy, made) if made.policy is not None else ()
        self.refuse((f"{POLICY}.{key}", line) for key, line in refused if not survey or key == "server_fingerprint")
        if not survey:
            self.refuse(privacy.refused(made))
        return made

    def changes(self, text: str, base: Recipe | None = None) -> dict[str, Any]:
        """A silo's settings: a value per attribute of a recipe, None for an invalid section."""
        resolved = {} if base is None else base.resolved()
        changes: dict[str, Any] = {}
        for section, keys in self._sections(text, tuple(SILO_KEYS), "a silo's file").items():
            if section == "data_args":
                common = {} if base is None else {k: v for k, v in base.normalisation.items() if v is not None}
                changes["data"], changes["dataset"] = plugins.chosen(section, PLUGGED[section], common | keys, self)
            elif section == "method_args":
                changes["method"] = base and plugins.of_silo(section, base.method, keys, self)
            elif section == POLICY:
                changes[section] = limits = self._plain(POLICY, Policy, keys)
                for name in (limits and limits.methods) or ():
                    plugins.known("methods", name, f"{POLICY}.methods", self)
            else:
                args = self._plain(section, SECTIONS[section], keys, SILO_KEYS[section], resolved.get(section, NOTHING))
                changes[ATTRIBUTES[section]] = args
        return changes

    def _expected(self, raw: object) -> tuple[Expected, ...]:
        form = f"a mapping with {', '.join(keys_of(Expected))}, or a list of them"
        numbers: list[Expected | None] = []
        for i, item in enumerate(raw if isinstance(raw, list) else [raw], 1):
            place = f"{EXPECTED}[{i}]" if isinstance(raw, list) else EXPECTED
            if isinstance(item, dict):
                self.unknown_keys(place, item, [*keys_of(Expected)])
                numbers.append(self.validated(place, Expected, item))
            else:
                self.add(place, f"{quoted(item)} is not a mapping of keys to values; allowed: {form}")
        return tuple(number for number in numbers if number is not None)

    def _sections(self, text: str, allowed: Sequence[str], kind: str) -> dict[str, Any]:
        try:
            content, duplicates = yaml.read(text)
        except yaml.YamlError as error:
            raise RecipeError([f"{clean_path(self.path)}: {error}"]) from None
        if content is None:
            raise RecipeError([f"{clean_path(self.path)}: empty; {kind} has the sections {', '.join(allowed)}"])
        if not isinstance(content, dict):
            raise RecipeError([f"{clean_path(self.path)}: {quoted(content)} is not a mapping of sections to keys"])
        if "tables" in content:
            use = f"use one of its rows: {clean_path(self.path.with_suffix('') / 'ROW')}"
            raise RecipeError([f"{clean_path(self.path)}: is a table of recipes; {use}"])
        self.lines += [f"{clean_path(self.path)}: {line}" for line in duplicates]
        self.unknown_keys("", content, allowed, "section")
        raw: dict[str, Any] = {section: keys for section, keys in content.items() if section in allowed}
        for section, keys in raw.copy().items():
            if section == EXPECTED:
                raw[section] = self._expected(keys)
            elif not isinstance(keys, dict):
                problem = f"{quoted(keys)} is not a mapping of keys to values"
                self.add(section, f"{problem}; allowed: section: {{key: value}}")
                del raw[section]
        return raw

    def _override(self, raw: dict[str, dict[str, Any]], overrides: Sequence[str]) -> None:
        # plugin choices first: another plugin deletes the parameters in the file, but must not delete overrides
        choosers = {f"{section}.{model.key}" for section, model in PLUGGED.items()}
        for override in sorted(overrides, key=lambda text: text.partition("=")[0].strip() not in choosers):
            place, equals, text = override.partition("=")
            section, dot, key = place.strip().partition(".")
            if not (equals and dot and section and key):
                form = "allowed: section.key=value, such as train_args.epochs=2"
                self.lines.append(f"--set {clean_path(override)}: malformed; {form}")
            elif section not in SECTIONS:
                place = f"--set {clean_path(section)}.{clean_path(key)}"
                self.lines.append(f"{place}: {mistakes.unknown_key(section, SECTIONS, 'section')}")
            else:
                self._set(raw.setdefault(section, {}), section, key, text)

    def _set(self, keys: dict[str, Any], section: str, key: str, text: str) -> None:
        place = f"{section}.{key}"
        self.overridden.add(place)
        try:
            value, duplicates = yaml.read(text)
        except yaml.YamlError as error:
            self.add(place, f"{quoted(text)} is not a YAML value: {error}")
            return
        if section in PLUGGED and key == (model := PLUGGED[section]).key:
            named = keys.get(key, model.model_fields[key].default)
            if {*split(value)} != {*split(named)}:  # another plugin starts with its own defaults
                for parameter in keys.keys() - keys_of(model).keys():
                    del keys[parameter]
        name, dot, inner = key.partition(".")
        if dot and section == "method_args" and name in plugins.names("methods"):  # a parameter of a combined method
            if name not in keys:
                self.overridden.add(f"{section}.{name}")
            if isinstance(nested := keys.get(name, {}), dict):
                keys[name] = {**nested, inner: value}
        else:
            keys[key] = value
        for line in duplicates:
            self.add(place, line)

    def _plain(
        self, section: str, model: type[ModelT], raw: dict[str, Any], keys: Sequence[str] = (), base: Objects = NOTHING
    ) -> ModelT | None:
        known = keys or [*keys_of(model)]
        if model.model_config.get("extra") == "allow":
            known = [*known, *raw]
        self.unknown_keys(section, raw, known)
        args = self.validated(section, model, {**base, **{k: v for k, v in raw.items() if k in known}})
        if isinstance(args, CommArgs) and "comm_args.backend" not in self.wrong:
            plugins.known("runtimes", args.backend, "comm_args.backend", self)

        update: dict[str, Any] = {}
        if isinstance(args, TrackingArgs):
            update["trackers"] = plugins.trackers(f"{section}.trackers", args.trackers, self)
        for key, field in model.model_fields.items():
            if IS_PATH in field.metadata and (value := getattr(args, key, None)) is not None:
                # a resumed run reads the recipe from another folder
                update[key] = absolute(value, self.folder(f"{section}.{key}"))
        return args and args.model_copy(update=update)
