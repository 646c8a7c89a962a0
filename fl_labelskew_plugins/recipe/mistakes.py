"""Error messages about recipes: key, value, allowed values, nearest known name."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from fl_labelskew_registry import MistakesError
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fl_labelskew_plugins.machine.text import clean, counted, failure

ModelT = TypeVar("ModelT", bound=BaseModel)
Schema = Mapping[str, Any]

_RANGE = "{value} is out of range"
_TYPE = "{value} is of the wrong type"

PROBLEMS: dict[str, str] = {
    "missing": "missing",
    "extra_forbidden": "unknown key",
    "string_pattern_mismatch": "{value} has the wrong form",
    **dict.fromkeys(("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"), _RANGE),
    **dict.fromkeys(("finite_number", "int_parsing_size"), _RANGE),
    **dict.fromkeys(("int_type", "int_from_float", "float_type", "bool_type", "string_type", "list_type"), _TYPE),
    **dict.fromkeys(("tuple_type", "set_type", "dict_type", "model_type", "model_attributes_type"), _TYPE),
    "none_required": _TYPE,
    **dict.fromkeys(("too_short", "too_long", "string_too_short", "string_too_long"), "{value} has the wrong length"),
    **dict.fromkeys(("literal_error", "enum"), "{value} is unknown"),
}
"""pydantic's error types to our messages."""

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


def quoted(value: object) -> str:
    """Format a value as YAML on one line, shortened."""
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else f".{value}".replace(".-", "-.")
    elif isinstance(value, str):
        text = f"'{' '.join(value.split())}'"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return clean(text, 60)


def clean_path(path: object) -> str:
    """Format a path of any valid length."""
    return clean(path, 4096)


def closest(name: object, known: Iterable[str], limit: int = 1) -> list[str]:
    """List known names that resemble ``name``."""
    by_lower = {known_name.lower(): known_name for known_name in known}
    lower = str(name)[:100].lower()
    close = get_close_matches(lower, by_lower, n=limit) or [key for key in by_lower if len(lower) > 2 and lower in key]
    return [by_lower[key] for key in close[:limit]]


def nearest(name: object, known: Iterable[str], limit: int = 1) -> str:
    """Return ``; did you mean x?`` if a known name is similar."""
    close = closest(name, known, limit)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def unknown(name: object, known: Iterable[str]) -> str:
    """Error message for a name that is not ``known``."""
    names = list(known)
    return f"{quoted(name)} is unknown; allowed: {', '.join(names) or 'none'}{nearest(name, names)}"


def unknown_key(key: str, known: Iterable[str], kind: str = "key") -> str:
    """Error message for a key or section that is not ``known``."""
    keys = list(known)
    return f"unknown {kind}; allowed: {', '.join(keys) or 'none'}{nearest(key, keys)}"


def names_in(schema: Schema) -> list[str]:
    """List the names that a schema allows, if any."""
    if "const" in schema:
        return [str(schema["const"])]
    if "enum" in schema:
        return [str(name) for name in schema["enum"]]
    return [name for part in schema.get("anyOf", ()) for name in names_in(part)]


def allowed(schema: Schema, defs: Schema) -> str:
    """Describe the values that a JSON Schema allows."""
    if "$ref" in schema:
        return allowed(defs.get(schema["$ref"].rpartition("/")[2], {}), defs)
    if "anyOf" in schema:
        return ", or ".join(allowed(part, defs) for part in schema["anyOf"])
    if names := names_in(schema):
        return ", ".join(names)
    if keys := schema.get("properties"):
        return f"{{{', '.join(f'{key}: {allowed(part, defs)}' for key, part in keys.items())}}}"
    words = _KINDS.get(schema.get("type", ""), "any value")
    bounds = [text.format(f"{schema[key]:g}" if key in schema else "") for key, text in _BOUNDS if key in schema]
    if schema.get("maximum", 0) == 2**31 or schema.get("exclusiveMaximum", 0) == 2**31:
        bounds[-1] = "below 2**31"
    if bounds:
        words += " " + " and ".join(bounds)
    if prefix := schema.get("prefixItems"):
        return f"a list of {counted(len(prefix), 'item')}: {'; '.join(allowed(part, defs) for part in prefix)}"
    if schema.get("minItems"):
        words += f" of at least {counted(schema['minItems'], 'item')}"
    if items := schema.get("items"):
        words += f", each {allowed(items, defs)}"
    return words


@lru_cache(maxsize=256)
def schema_of(model: type[BaseModel]) -> Schema:
    """A model's JSON Schema; do not modify it."""
    return model.model_json_schema()


def keys_of(model: type[BaseModel]) -> dict[str, Schema]:
    """JSON Schema of each key."""
    properties: dict[str, Schema] = schema_of(model).get("properties", {})
    return properties


def validate(model: type[ModelT], raw: Mapping[str, Any]) -> tuple[ModelT | None, dict[str, str]]:
    """Return the model of valid keys, or None, and an error message per wrong key."""
    wrong: dict[str, str] = {}
    schema = schema_of(model)
    takes_any = model.model_config.get("extra") == "allow"
    good = {key: value for key, value in raw.items() if takes_any or key in schema.get("properties", {})}
    try:
        # pydantic accepts a JSON list for a tuple, but rejects '1' for a number
        return model.model_validate_json(json.dumps(good)), wrong
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = str(detail["loc"][0]) if detail["loc"] else ""
            wrong.setdefault(key, _message(detail, schema))
    except Exception as error:  # a plugin's own validator may raise anything
        wrong[""] = failure(error)
    try:
        return model.model_validate_json(json.dumps({k: v for k, v in good.items() if k not in wrong})), wrong
    except Exception:  # caused by the mistakes above
        return None, wrong


def checked(model: type[ModelT], raw: Any, place: str = "") -> tuple[ModelT | None, list[str]]:
    """Like :func:`validate`, but without a model if any key is wrong or unknown. Messages start with ``place``."""
    known = keys_of(model)
    if not isinstance(raw, dict):
        return None, [f"{place}{quoted(raw)} is not a mapping; allowed keys: {', '.join(known)}"]
    made, wrong = validate(model, raw)
    wrong = {key: unknown_key(key, known) for key in raw if key not in known} | wrong
    lines = [f"{place}{clean(key)}: {line}" if key else place + line for key, line in wrong.items()]
    return None if wrong else made, lines


def _message(detail: ErrorDetails, schema: Schema) -> str:
    key, *inner = detail["loc"] or ("",)
    defs = schema.get("$defs", {})
    part = schema.get("properties", {}).get(key)
    kind, value = detail["type"], detail["input"]
    if kind in ("value_error", "assertion_error"):
        return " ".join(str(detail.get("ctx", {}).get("error", detail["msg"])).split())
    problem = PROBLEMS.get(kind)
    if problem is None or part is None:
        return f"{quoted(value)}: {detail['msg']}"
    if inner and isinstance(inner[0], int):
        problem = f"item {inner[0] + 1}: {problem}"
    elif inner and (keys := _properties(part, defs)):
        name = str(inner[0])
        if kind == "extra_forbidden":
            return f"{clean(name)}: {unknown_key(name, keys)}"
        problem, part = f"{name}: {problem}", keys.get(name, part)
    names = names_in(part.get("items", part)) if kind in ("literal_error", "enum", "string_type") else ()
    return f"{problem.format(value=quoted(value))}; allowed: {allowed(part, defs)}{nearest(value, names)}"


def _properties(schema: Schema, defs: Schema) -> dict[str, Schema]:
    if "$ref" in schema:
        schema = defs.get(schema["$ref"].rpartition("/")[2], {})
    keys = [_properties(part, defs) for part in schema.get("anyOf", ())]
    return schema.get("properties") or next(filter(None, keys), {})


class RecipeError(MistakesError):
    """A recipe that cannot run, with all its mistakes."""


@dataclass
class Mistakes:
    """Mistakes of one file and its overrides."""

    path: Path
    lines: list[str] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    overridden: set[str] = field(default_factory=set)

    def add(self, key: str, message: str) -> None:
        """Add a mistake at ``section`` or ``section.key``."""
        given = not self.overridden.isdisjoint((key, key.rpartition(".")[0]))
        place = f"--set {key}" if given else f"{clean_path(self.path)}: {key}"
        self.lines.append(f"{clean_path(place)}: {message}")
        self.wrong.add(key)

    def folder(self, place: str) -> Path:
        """Folder of relative paths: the recipe's, or the current folder for ``--set``."""
        return Path() if place in self.overridden else self.path.parent

    def unknown_keys(self, place: str, raw: Mapping[str, Any], known: Sequence[str], kind: str = "key") -> None:
        """Report unknown keys; known keys that resemble them are then not reported as missing."""
        prefix = f"{place}." if place else ""
        for key in raw:
            if key not in known:
                self.add(f"{prefix}{key}", unknown_key(key, known, kind))
                self.wrong |= {f"{prefix}{near}" for near in closest(key, [name for name in known if name not in raw])}

    def validated(self, place: str, model: type[ModelT], raw: Mapping[str, Any]) -> ModelT | None:
        """Call :func:`validate` and add its mistakes."""
        args, wrong = validate(model, raw)
        for key, message in wrong.items():
            if (where := f"{place}.{key}" if key else place) not in self.wrong:
                self.add(where, message)
        return args

    def refuse(self, lines: Iterable[tuple[str, str]]) -> None:
        """Add mistakes by key; see :meth:`raise_if_any`."""
        for key, message in lines:
            if key not in self.wrong:
                self.add(key, message)
        self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise RecipeError if there are mistakes."""
        if self.lines:
            raise RecipeError(self.lines)
