"""JSON Schema of recipes and of silos' own files, for editors."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from fl_labelskew_registry import PluginError, catalog
from pydantic import BaseModel

from fl_labelskew_plugins.recipe import plugins
from fl_labelskew_plugins.recipe.model import EXPECTED, PLUGGED, POLICY, REQUIRED, SECTIONS, SILO_KEYS
from fl_labelskew_plugins.recipe.sections import Expected, MethodArgs, ModelArgs, PluginArgs, Policy


def json_schema() -> dict[str, Any]:
    """The schema; without parameters of plugins that cannot be imported."""
    defs: dict[str, Any] = {}
    sections = {section: _section_schema(section, defs) for section in SECTIONS}
    one = _model_schema(Expected, EXPECTED, defs)
    sections[EXPECTED] = {"anyOf": [one, {"type": "array", "items": one}]}
    defs["recipe"] = {"properties": sections, "required": REQUIRED, "additionalProperties": False}
    silo = {section: _silo_schema(section, keys, defs) for section, keys in SILO_KEYS.items()}
    defs["silo"] = {"properties": silo, "additionalProperties": False}
    chooses = {"properties": {"method_args": {"required": ["method"]}}, "required": ["method_args"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fl-labelskew-plugins recipe, or a silo's own file",
        "type": "object",
        "if": {"anyOf": [*({"required": [section]} for section in sections if section not in SILO_KEYS), chooses]},
        "then": {"$ref": "#/$defs/recipe"},
        "else": {"$ref": "#/$defs/silo"},
        "$defs": defs,
    }


def _silo_schema(section: str, keys: Sequence[str], defs: dict[str, Any]) -> dict[str, Any]:
    if section == "method_args":  # depends on the recipe's method
        return {"type": "object"}
    if section == POLICY:
        return _model_schema(Policy, POLICY, defs)
    whole = f"#/$defs/recipe/properties/{section}"
    if not keys:
        return {"$ref": whole}
    parts = {key: {"$ref": f"{whole}/properties/{key}"} for key in keys}
    return {"type": "object", "properties": parts, "additionalProperties": False}


def _section_schema(section: str, defs: dict[str, Any]) -> dict[str, Any]:
    schema = _model_schema(SECTIONS[section], section, defs)
    if section == "comm_args":
        schema["properties"]["backend"]["enum"] = plugins.names("runtimes")
    if section == "tracking_args":
        schema["properties"]["trackers"]["items"] = _trackers_schema(section, defs)
    if section not in PLUGGED:
        return schema
    chooser = PLUGGED[section]
    del schema["additionalProperties"]
    schema["unevaluatedProperties"] = False
    schema["allOf"] = list(_plugin_schemas(section, chooser, defs))
    if chooser is MethodArgs:
        schema["allOf"].append(_combination_schema(schema["properties"][chooser.key], section))
    elif chooser is ModelArgs:
        name, code = schema["properties"][chooser.key], {"pattern": r":[A-Za-z_]\w*$"}
        name["anyOf"] = [{"enum": plugins.names(chooser.kind)}, {"type": name.pop("type"), **code}]
        of_code = {"properties": {chooser.key: code}, "required": [chooser.key]}
        schema["allOf"].append({"if": of_code, "then": {"additionalProperties": True}})  # the function's parameters
    else:
        schema["properties"][chooser.key]["enum"] = plugins.names(chooser.kind)
    return schema


def _trackers_schema(section: str, defs: dict[str, Any]) -> dict[str, Any]:
    one: dict[str, Any] = {name: {"type": "object"} for name in plugins.names("trackers")}
    for name in one:
        with contextlib.suppress(PluginError):
            one[name] = _model_schema(catalog.load("trackers", name).Params, f"{section}.{name}", defs)
    mapping = {"type": "object", "properties": one, "additionalProperties": False, "minProperties": 1}
    return {"anyOf": [{"enum": [*one]}, mapping | {"maxProperties": 1}]}


def _combination_schema(key: dict[str, Any], section: str) -> dict[str, Any]:
    """Let the key be one name or several; return the schema of their parameters."""
    names = plugins.names("methods")
    several = {"anyOf": [{"type": "array"}, {"type": "string", "pattern": r"\+"}]}
    a_list = {"type": "array", "items": {"enum": names}, "minItems": 2}
    key["anyOf"] = [{"enum": names}, {"type": "string", "pattern": r"\+"}, a_list]
    del key["type"]
    then = {"properties": {name: {"type": "object", "title": f"{section} of {name}"} for name in names}}
    return {"if": {"properties": {"method": several}, "required": ["method"]}, "then": then}


def _plugin_schemas(section: str, chooser: type[PluginArgs], defs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in plugins.names(chooser.kind):
        try:
            params = catalog.load(chooser.kind, name).Params
        except PluginError:
            continue
        schema = _model_schema(params, f"{section}.{name}", defs)
        then = {key: schema[key] for key in ("properties", "required") if key in schema}
        default = chooser.model_fields[chooser.key].default
        required = [] if name == default else [chooser.key]
        yield {"if": {"properties": {chooser.key: {"const": name}}, "required": required}, "then": then}


def _model_schema(model: type[BaseModel], prefix: str, defs: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
    defs |= {f"{prefix}.{name}": part for name, part in schema.pop("$defs", {}).items()}
    return schema
