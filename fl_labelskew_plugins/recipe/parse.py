"""Recipes: a FedML configuration in YAML, checked as a whole before anything runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.params import IS_PATH, absolute
from fl_labelskew_plugins.recipe import compatibility, plugins, policy, privacy, shipped, yaml
from fl_labelskew_plugins.recipe.conflicts import column_conflicts, conflicts, form_conflicts, moments_conflicts
from fl_labelskew_plugins.recipe.mistakes import Mistakes, ModelT, RecipeError, keys_of, nearest, show, shown, takes_any
from fl_labelskew_plugins.recipe.model import (
    ATTRIBUTES,
    EXPECTED,
    PARTS,
    PLUGGED,
    POLICY,
    SECTIONS,
    SILO,
    Recipe,
    Sections,
)
from fl_labelskew_plugins.recipe.sections import HOSTS_TRACKING, CommArgs, Expected, Policy, TrackingArgs
from fl_labelskew_plugins.recipe.sections import names as split

NOTHING: Mapping[str, Any] = MappingProxyType({})
LAUNCH_JOB = {"workspace", "job", "bootstrap", "computing"}
"""Top-level keys of the YAML file of ``fedml launch``; no recipe has them."""


def load(path: str | Path, overrides: Sequence[str] = (), *, objects: Mapping[str, Any] = NOTHING) -> Recipe:
    """The recipe in a file or of a name, with ``section.key=value`` overrides and ``objects`` as in :func:`parse`.

    Raises:
        MistakesError: with every mistake of the file and the overrides.
    """
    return parse(read_text(path), source=path, overrides=overrides, objects=objects)


def read_text(path: str | Path) -> str:
    """A recipe's file, or another of its kind, as text; or the recipe of this name.

    Raises:
        RecipeError: it cannot be read, or is no page of text.
        MistakesError: it is neither a file nor the name of a recipe.
    """
    if (text := shipped.text(path)) is not None:
        return text
    try:
        return yaml.text_of(Path(path))
    except yaml.YamlError as error:
        hint = "" if os.path.exists(path) else shipped.hint(path)
        raise RecipeError([f"{shown(path)}: {error}{hint}"]) from None


def parse(
    text: str,
    *,
    source: str | Path = "recipe.yaml",
    overrides: Sequence[str] = (),
    objects: Mapping[str, Any] = NOTHING,
) -> Recipe:
    """The recipe in a text.

    Args:
        text: YAML.
        source: what messages call it.
        overrides: ``section.key=value`` each.
        objects: plugins in place of those that sections name, by section; see :func:`.plugins.from_objects`.

    Raises:
        RecipeError: with every mistake of the text and the overrides.
    """
    return _Check(Path(source)).recipe(text, overrides, objects)


def silo(recipe: Recipe, rank: int, *, survey: bool = False) -> Recipe:
    """The recipe as silo ``rank`` (``1 .. K``) runs it: with its own file of ``data_silo_config``, if there are any.

    That file's ``data_args`` take the place of the recipe's; of other sections, the keys that it gives. Nothing else
    need exist on this machine. For a survey, of what a policy says of a recipe its ``server_fingerprint`` counts alone:
    nothing is trained, and what leaves is looked at when it does.

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
    return _Check(path).silo(read_text(path), recipe, survey=survey)


def check(path: Path, overrides: Sequence[str] = (), host: str | None = None) -> str:
    """Check a file as what it is: a recipe, or a silo's own file, together with each recipe beside it that names it.

    ``host`` as in :func:`.compatibility.hosted`.

    Returns:
        ``ok``, and what it was checked as if it is no recipe, or which accuracy its server will see of summed silos.

    Raises:
        RecipeError: with every mistake of the file, or of the recipe that names it.
        LabelSkewError: the recipe cannot run with this host.
    """
    text = read_text(path)
    if not _silos_own(_content(text)):
        recipe = parse(text, source=path, overrides=overrides)
        compatibility.hosted(recipe, host)
        said = ["ok", *([privacy.reported_accuracy(recipe)] if recipe.sums_alone else [])]
        try:
            compatibility.check_extras(recipe)
        except LabelSkewError as error:
            said.append(f"to run here: {error}")
        return "; ".join(said)
    named = homes(path)
    for base in [load(beside, overrides) for beside, _ in named]:
        _Check(path).silo(text, base)
    if named:
        return "ok, " + " and ".join(f"silo {rank} of {shown(beside.name)}" for beside, rank in named)
    alone = _Check(path)
    alone.changes(text)
    alone.end()
    return "ok, as a silo's own file; method_args were not checked, for no recipe beside it names it"


def refuse_launch_job(path: Path, content: object) -> None:
    """Raise RecipeError if a file's content is a job for ``fedml launch``."""
    if isinstance(content, dict) and LAUNCH_JOB & content.keys() and "method_args" not in content:
        job = shown(path)
        raise RecipeError([f"{job}: a job of FedML's launcher, not a recipe; to start it: fedml launch {job}"])


def _silos_own(content: object) -> bool:
    """Whether a file's content has the form of a silo's own file: sections of :data:`SILO` alone, and no method."""
    if not isinstance(content, dict) or not content or not content.keys() <= SILO.keys():
        return False
    method = content.get("method_args")
    return not (isinstance(method, dict) and "method" in method)


def _content(text: str) -> Any:
    """What a text holds; None where it is no YAML, which is told elsewhere."""
    try:
        return yaml.read(text)[0]
    except yaml.YamlError:
        return None


def homes(path: Path) -> list[tuple[Path, int]]:
    """The recipes beside a silo's own file that name it, and which silo's it is, from 1."""
    return [(beside, rank) for beside in sorted(path.parent.glob("*.y*ml")) if (rank := _rank(path, beside))]


def _rank(path: Path, beside: Path) -> int:
    """Which silo's file ``path`` is for the recipe in ``beside``, from 1; 0: none's."""
    with contextlib.suppress(RecipeError, KeyError, TypeError, ValueError):  # no recipe, or none that names it
        files = _content(read_text(beside))["client_specific_args"]["data_silo_config"]
        return int(absolute(files, beside.parent).index(os.path.abspath(path))) + 1
    return 0


class _Check(Mistakes):
    """One recipe, or one silo's own file, on its way from text to plugins."""

    def recipe(self, text: str, overrides: Sequence[str], objects: Mapping[str, Any]) -> Recipe:
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
        sections = Sections.model_construct(**{name: part for name, part in args.items() if part is not None})
        self._conflicts(sections, made.get("method"), made.get("optimizer"))
        if (dataset := made.get("dataset")) is not None:
            self.say_conflicts(form_conflicts(sections, dataset.params))
            self.say_conflicts(moments_conflicts(sections, dataset))
        self.end()
        train = sections.train
        try:
            made["method"].stages(train.epochs)
        except LabelSkewError as error:
            self.say("method_args.method", str(error))
        self.end()
        args["train"] = train.model_copy(update={"client_num_per_round": train.clients_per_round})
        whole = Recipe(name=self.path.stem, path=self.path, expected=numbers, objects=objects, **args, **made)
        self._privacy(whole)
        return whole

    def silo(self, text: str, base: Recipe, *, survey: bool = False) -> Recipe:
        """``base`` with what a silo's own file says in place of it."""
        changes = self.changes(text, base)
        made = base.model_copy(update={name: value for name, value in changes.items() if value is not None})
        self._conflicts(made, changes.get("method", base.method), base.optimizer)
        self.end()
        whole = base.dataset.params if type(base.dataset) is type(made.dataset) else None
        for place, line in column_conflicts(made.dataset.params, whole):
            self.say(place, line)
        self.end()
        for key, value in made.normalisation.items():
            if not self.lines and base.normalisation[key] != value:
                of_all = base.normalisation[key]
                there = f"that of {base.data.dataset}" if of_all is None else show(of_all)
                what = f"{show(value)} here and {there} in the recipe, and silos share one normalisation"
                self.say(f"data_args.{key}", f"{what}; set mean and std in the recipe: numbers, imagenet or data")
        self.end()
        for key, line in policy.refused(made.policy, made) if made.policy is not None else ():
            if not survey or key == "server_fingerprint":
                self.say(f"{POLICY}.{key}", line)
        self.end()
        if not survey:
            self._privacy(made)
        return made

    def _privacy(self, recipe: Recipe) -> None:
        for key, line in privacy.refused(recipe):
            self.say(key, line)
        self.end()

    def changes(self, text: str, base: Recipe | None = None) -> dict[str, Any]:
        """What a silo's own file says, by a recipe's attributes; None for what cannot be had."""
        resolved = {} if base is None else base.resolved()
        changes: dict[str, Any] = {}
        for section, keys in self._sections(text, tuple(SILO), "a silo's file").items():
            if section == "data_args":
                common = {} if base is None else {k: v for k, v in base.normalisation.items() if v is not None}
                changes["data"], changes["dataset"] = plugins.chosen(section, PLUGGED[section], common | keys, self)
            elif section == "method_args":
                changes["method"] = base and plugins.of_silo(section, base.method, keys, self)
            elif section == POLICY:
                changes[section] = self._policy(keys)
            else:
                args = self._plain(section, SECTIONS[section], keys, SILO[section], resolved.get(section))
                changes[ATTRIBUTES[section]] = args
        return changes

    def _expected(self, raw: object) -> tuple[Expected, ...]:
        form = f"a mapping with {', '.join(keys_of(Expected))}, or a list of them"
        numbers: list[Expected | None] = []
        for number, item in enumerate(raw if isinstance(raw, list) else [raw], 1):
            place = f"{EXPECTED}[{number}]" if isinstance(raw, list) else EXPECTED
            if not isinstance(item, dict):
                self.say(place, f"{show(item)} is no mapping of keys to values; allowed: {form}")
                continue
            self.unknown_keys(place, item, [*keys_of(Expected)])
            numbers.append(self.validated(place, Expected, item))
        return tuple(number for number in numbers if number is not None)

    def _policy(self, raw: dict[str, Any]) -> Policy | None:
        args = self._plain(POLICY, Policy, raw)
        for name in (args and args.methods) or ():
            plugins.known("methods", name, f"{POLICY}.methods", self)
        return args

    def _sections(self, text: str, allowed: Sequence[str], what: str) -> dict[str, Any]:
        try:
            content, twice = yaml.read(text)
        except yaml.YamlError as error:
            raise RecipeError([f"{shown(self.path)}: {error}"]) from None
        if content is None:
            raise RecipeError([f"{shown(self.path)}: empty; {what} has the sections {', '.join(allowed)}"])
        if not isinstance(content, dict):
            raise RecipeError([f"{shown(self.path)}: {show(content)} is no mapping of sections to keys"])
        refuse_launch_job(self.path, content)
        if "tables" in content:
            row = self.path.with_suffix("") / "ROW"
            raise RecipeError([f"{shown(self.path)}: is a table of recipes; use one of its rows: {shown(row)}"])
        self.lines += [f"{shown(self.path)}: {line}" for line in twice]
        raw: dict[str, Any] = {}
        for section, keys in content.items():
            if section not in allowed:
                self.say(section, f"unknown section; allowed: {', '.join(allowed)}{nearest(section, allowed)}")
                self.meant("", section, [known for known in allowed if known not in content])
            elif section == EXPECTED:
                raw[section] = self._expected(keys)
            elif not isinstance(keys, dict):
                self.say(section, f"{show(keys)} is no mapping of keys to values; allowed: section: {{key: value}}")
            else:
                raw[section] = keys
        return raw

    def _override(self, raw: dict[str, dict[str, Any]], overrides: Sequence[str]) -> None:
        # what names a plugin goes first: it drops parameters of another one, and these are the file's alone
        choosers = {f"{section}.{model.key}" for section, model in PLUGGED.items()}
        for override in sorted(overrides, key=lambda text: text.partition("=")[0].strip() not in choosers):
            place, equals, text = override.partition("=")
            section, dot, key = place.strip().partition(".")
            if not (equals and dot and section and key):
                form = "allowed: section.key=value, such as train_args.epochs=2"
                self.lines.append(f"--set {shown(override)}: malformed; {form}")
            elif section not in SECTIONS:
                known = f"allowed: {', '.join(SECTIONS)}{nearest(section, SECTIONS)}"
                self.lines.append(f"--set {shown(section)}.{shown(key)}: unknown section; {known}")
            else:
                self._set(raw.setdefault(section, {}), section, key, text)

    def _set(self, keys: dict[str, Any], section: str, key: str, text: str) -> None:
        place = f"{section}.{key}"
        self.overridden.add(place)
        try:
            value, twice = yaml.read(text)
        except yaml.YamlError as error:
            self.say(place, f"{show(text)} is no YAML value: {error}")
            return
        if section in PLUGGED and key == (model := PLUGGED[section]).key:
            named = keys.get(key, model.model_fields[key].default)
            if {*split(value)} != {*split(named)}:  # another plugin starts from its own defaults
                for parameter in keys.keys() - keys_of(model).keys():
                    del keys[parameter]
        name, dot, inner = key.partition(".")
        if dot and section == "method_args" and name in plugins.names("methods"):  # a parameter of one of several
            if name not in keys:
                self.overridden.add(f"{section}.{name}")
            if isinstance(nested := keys.get(name, {}), dict):
                keys[name] = {**nested, inner: value}
        else:
            keys[key] = value
        for line in twice:
            self.say(place, line)

    def _plain(
        self,
        section: str,
        model: type[ModelT],
        raw: dict[str, Any],
        keys: Sequence[str] | None = None,
        base: Mapping[str, Any] | None = None,
    ) -> ModelT | None:
        """A section that is complete here: its ``keys``, all by default, on top of ``base``; its paths absolute."""
        known = keys or [*keys_of(model)]
        if model is TrackingArgs:
            for key in [key for key in raw if key in HOSTS_TRACKING]:
                self.say(f"{section}.{key}", HOSTS_TRACKING[key])
            raw = {key: value for key, value in raw.items() if key not in HOSTS_TRACKING}
        if takes_any(model):
            known = [*known, *raw]
        self.unknown_keys(section, raw, known)
        args = self.validated(section, model, {**(base or {}), **{k: v for k, v in raw.items() if k in known}})
        if isinstance(args, CommArgs) and "comm_args.backend" not in self.wrong:
            plugins.known("runtimes", args.backend, "comm_args.backend", self)

        update: dict[str, Any] = {}
        if isinstance(args, TrackingArgs):
            update["trackers"] = plugins.trackers(f"{section}.trackers", args.trackers, self)
        for key, field in model.model_fields.items():
            if IS_PATH in field.metadata and (value := getattr(args, key, None)) is not None:
                # a run that is resumed reads it from another folder
                update[key] = absolute(value, self.folder(f"{section}.{key}"))
        return args and args.model_copy(update=update)

    def _conflicts(self, recipe: Sections, method: Any, optimizer: Any) -> None:
        everything = list(conflicts(recipe))
        if method is not None and optimizer is not None:
            everything += compatibility.conflicts(recipe, method, optimizer)
        self.say_conflicts(everything)
