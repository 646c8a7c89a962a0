"""YAML of plain values, without repeated keys, unbounded alias expansion, and tags that build objects."""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from fl_labelskew_plugins.machine.files import read_bytes
from fl_labelskew_plugins.machine.text import clean

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DIGITS = 100

_FLOAT = "tag:yaml.org,2002:float"
_INT = "tag:yaml.org,2002:int"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
_SCALARS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str")}


class YamlError(Exception):
    """Text that is not YAML with plain values."""


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # missing without libyaml
    def ignore_aliases(self, data: Any) -> bool:
        return True


# Dates are text.
for _tool in (_Loader, _Dumper):
    _tool.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != _TIMESTAMP]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _tool.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789."))
# 1:30 is text, not 90: YAML 1.2 dropped base 60, whose parsing takes quadratic time.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, re.compile("(?!.*:)" + pattern.pattern, pattern.flags)) for tag, pattern in pairs]
    for first, pairs in _Loader.yaml_implicit_resolvers.items()
}


def read(text: str) -> tuple[Any, list[str]]:
    """The value, and a message for each repeated key; raises YamlError."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, []
        _unfolded(root, {}, set())
        duplicates: list[str] = []
        return _value(loader, root, duplicates), duplicates
    except yaml.MarkedYAMLError as error:
        raise YamlError(_place(error)) from None
    except yaml.YAMLError as error:
        raise YamlError(f"not YAML: {_one_line(error)}") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None


def text_of(path: Path) -> str:
    """Read a text file; raises YamlError if it is unreadable, too large or not UTF-8."""
    try:
        content = read_bytes(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise YamlError(f"cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        raise YamlError("larger than 1 MiB, the limit for recipes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError(f"not text: byte {error.start + 1} is not UTF-8") from None


def write(value: Any) -> str:
    """YAML text of plain values."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def put(text: str, section: str, key: str, value: str) -> str:
    """Set one key in the text; raises YamlError if the section is missing.

    >>> put("data_args: {dataset: npz}  # mine", "data_args", "file", "a.npz")
    'data_args: {file: "a.npz", dataset: npz}  # mine'
    """
    read(text)
    root = yaml.compose(text, Loader=_Loader)
    sections = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((node for name, node in sections if name.value == section), None)
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise YamlError(f"has no {section}")
    written = json.dumps(value, ensure_ascii=False)
    for name, old in node.value:
        if name.value == key:
            return f"{text[: name.end_mark.index]}: {written}{text[old.end_mark.index :]}"
    start = node.value[0][0].start_mark.index
    end = ", " if node.flow_style else "\n" + " " * node.start_mark.column
    return f"{text[:start]}{key}: {written}{end}{text[start:]}"


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = _one_line(error.problem or error.context or "not YAML")
    if problem.startswith(("but found", "second occurrence")) and error.context:
        problem = f"{_one_line(error.context)}, {problem}"
    return where + problem


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _unfolded(node: yaml.Node, sizes: dict[int, int], open_nodes: set[int]) -> int:
    """Number of nodes with all aliases expanded."""
    key = id(node)
    if key in open_nodes:
        raise YamlError(f"{_line(node)}: an alias that contains itself")
    if key not in sizes:
        open_nodes.add(key)
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = sum(_unfolded(part, sizes, open_nodes) for part in inner) if not isinstance(inner, str) else 0
        open_nodes.remove(key)
        sizes[key] = 1 + below
        if sizes[key] > MAX_NODES:
            raise YamlError(f"{_line(node)}: unfolds to more than {MAX_NODES:,} values")
    return sizes[key]


def _value(loader: _Loader, node: yaml.Node, duplicates: list[str], place: str = "") -> Any:
    """``place``: the key and a colon, for messages."""
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(loader, node, duplicates)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(loader, part, duplicates, place) for part in node.value]
    if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
        return _scalar(loader, node, place)
    raise YamlError(f"{_line(node)}: tag {_short(node.tag)} is not allowed; allowed: plain values")


def _scalar(loader: _Loader, node: yaml.ScalarNode, place: str) -> Hashable:
    if node.tag in (_INT, _FLOAT) and len(node.value) > MAX_DIGITS:
        problem = f"a number of {len(node.value)} characters; use at most {MAX_DIGITS}, or quotes for text"
        raise YamlError(f"{_line(node)}: {place}{problem}")
    try:
        value: Hashable = loader.construct_object(node)
    except (ValueError, KeyError, OverflowError, yaml.YAMLError):
        raise YamlError(f"{_line(node)}: {_short(node.value)} is not a valid {node.tag.rpartition(':')[2]}") from None
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise YamlError(f"{_line(node)}: half of a surrogate pair, which is not valid text")
    return value


def _mapping(loader: _Loader, node: yaml.MappingNode, duplicates: list[str]) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    lines: dict[Any, str] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlError(f"{_line(key_node)}: a key that is not a single value")
        # yes stays yes, 1 stays 1
        key = _value(loader, key_node, duplicates) if key_node.style else key_node.value
        if key in lines:
            duplicates.append(f"{_line(key_node)}: key '{_short(key)}' occurs twice; first on {lines[key]}")
        lines.setdefault(key, _line(key_node))
        values[key] = _value(loader, value_node, duplicates, f"{_short(key)}: ")
    return values


def _short(text: object) -> str:
    return clean(_one_line(text), 60)
