"""What pydantic finds wrong, as lines that a person reads: the value, what is allowed, the nearest known name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fl_labelskew_plugins.machine.text import clean

Schema = Mapping[str, Any]

_RANGE = "{value} is out of range"
_TYPE = "{value} is of the wrong type"
_SIZE = "{value} has the wrong length"
_NAME = "{value} is unknown"

PROBLEMS: dict[str, str] = {
    "missing": "missing",
    "extra_forbidden": "unknown key",
    "greater_than": _RANGE,
    "greater_than_equal": _RANGE,
    "less_than": _RANGE,
    "less_than_equal": _RANGE,
    "multiple_of": _RANGE,
    "finite_number": _RANGE,
    "int_parsing_size": _RANGE,
    "int_type": _TYPE,
    "int_from_float": _TYPE,
    "float_type": _TYPE,
    "bool_type": _TYPE,
    "string_type": _TYPE,
    "list_type": _TYPE,
    "tuple_type": _TYPE,
    "set_type": _TYPE,
    "dict_type": _TYPE,
    "model_type": _TYPE,
    "model_attributes_type": _TYPE,
    "none_required": _TYPE,
    "too_short": _SIZE,
    "too_long": _SIZE,
    "string_too_short": _SIZE,
    "string_too_long": _SIZE,
    "string_pattern_mismatch": "{value} has the wrong form",
    "literal_error": _NAME,
    "enum": _NAME,
}
"""pydantic's type of error to the house's words; any other type keeps pydantic's own."""

_BOUNDS = (
    ("minimum", "of at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"),
)
_KINDS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "array": "a list",
    "object": "a mapping",
}


def show(value: object) -> str:
    """A value as YAML writes it, cut to a readable length, on one line."""
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else f".{value}".replace(".-", "-.")
    elif isinstance(value, str):
        text = f"'{' '.join(value.split())}'"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return clean(text, 60)


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    by_lower = {each.lower(): each for each in known}
    lower = str(name)[:100].lower()
    close = get_close_matches(lower, by_lower, n=1) or [each for each in by_lower if len(lower) > 2 and lower in each]
    return by_lower[close[0]] if close else None


def nearest(name: object, known: Iterable[str]) -> str:
    """``; nearest: x``, or nothing where no known name is close."""
    close = closest(name, known)
    return f"; nearest: {close}" if close else ""


def unknown(name: object, known: Iterable[str]) -> str:
    """A name that is none of ``known``."""
    names = list(known)
    return f"{show(name)} is unknown; allowed: {', '.join(names) or 'none'}{nearest(name, names)}"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """A key that is none of ``known``."""
    keys = list(known)
    return f"unknown key; allowed: {', '.join(keys) or 'none'}{nearest(key, keys)}"


def names_in(schema: Schema) -> list[str]:
    """The names that a schema admits, if it is a choice of names."""
    if "const" in schema:
        return [str(schema["const"])]
    if "enum" in schema:
        return [str(name) for name in schema["enum"]]
    return [name for part in schema.get("anyOf", ()) for name in names_in(part)]


def allowed(schema: Schema, defs: Schema) -> str:
    """What a key admits, in words, from its JSON Schema."""
    if "$ref" in schema:
        return allowed(defs.get(schema["$ref"].rpartition("/")[2], {}), defs)
    if "anyOf" in schema:
        return ", or ".join(allowed(part, defs) for part in schema["anyOf"])
    if names := names_in(schema):
        return ", ".join(names)
    words = _KINDS.get(schema.get("type", ""), "any value")
    bounds = [text.format(f"{schema[key]:g}" if key in schema else "") for key, text in _BOUNDS if key in schema]
    if schema.get("maximum", 0) == 2**31 or schema.get("exclusiveMaximum", 0) == 2**31:
        bounds[-1] = "below 2**31"
    if bounds:
        words += " " + " and ".join(bounds)
    if prefix := schema.get("prefixItems"):
        return f"a list of {len(prefix)}: {'; '.join(allowed(part, defs) for part in prefix)}"
    if schema.get("minItems"):
        words += f" of at least {schema['minItems']}"
    if items := schema.get("items"):
        words += f", each {allowed(items, defs)}"
    return words


def needed(model: type[BaseModel], key: str) -> str:
    """What an optional key admits where it is not optional."""
    schema = schema_of(model)
    parts = schema["properties"][key].get("anyOf", [schema["properties"][key]])
    return allowed({"anyOf": [part for part in parts if part.get("type") != "null"]}, schema.get("$defs", {}))


@lru_cache(maxsize=256)
def schema_of(model: type[BaseModel]) -> Schema:
    """A model's JSON Schema; to be read only."""
    return model.model_json_schema()


def keys_of(model: type[BaseModel]) -> dict[str, Schema]:
    """The keys that a parameter model takes from a recipe, each with its JSON Schema."""
    properties: dict[str, Schema] = schema_of(model).get("properties", {})
    return properties


def validate(model: type[BaseModel], raw: Mapping[str, Any]) -> tuple[BaseModel | None, dict[str, str]]:
    """The model of ``raw``, and a message for each key that is wrong.

    Where keys are wrong, the model is made of the others, so that further checks can go on; it is None where even
    that cannot be had.
    """
    wrong: dict[str, str] = {}
    schema = schema_of(model)
    good = {key: value for key, value in raw.items() if key in schema.get("properties", {})}
    try:
        # From JSON text: a list may become a tuple, and still no text becomes a number.
        return model.model_validate_json(json.dumps(good)), wrong
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = str(detail["loc"][0]) if detail["loc"] else ""
            wrong.setdefault(key, _message(detail, schema))
    except Exception as error:  # a plugin's own validator may raise anything
        wrong[""] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    try:
        return model.model_validate_json(json.dumps({k: v for k, v in good.items() if k not in wrong})), wrong
    except Exception:  # nothing new: what is left to say follows from the mistakes above
        return None, wrong


def _message(detail: ErrorDetails, schema: Schema) -> str:
    key, *inner = detail["loc"] or ("",)
    defs = schema.get("$defs", {})
    part = schema.get("properties", {}).get(key)
    kind, value = detail["type"], detail["input"]
    if kind in ("value_error", "assertion_error"):
        return " ".join(str(detail.get("ctx", {}).get("error", detail["msg"])).split())
    problem = PROBLEMS.get(kind)
    if problem is None or part is None:
        return f"{show(value)}: {detail['msg']}"
    if inner and isinstance(inner[0], int):
        problem = f"item {inner[0] + 1}: {problem}"
    words = allowed(part, defs)
    return f"{problem.format(value=show(value))}; allowed: {words}{_near(kind, value, part.get('items', part))}"


def _near(kind: str, value: object, part: Schema) -> str:
    return nearest(value, names_in(part)) if kind in ("literal_error", "enum", "string_type") else ""
