"""Networks from users' functions, ``net.py:make_network``.

A recipe's check only parses the file. No message, checkpoint or model file can choose it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import torch
from fl_labelskew_registry import LabelSkewError, Network, mistake
from pydantic import Field, create_model
from torch import nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine.files import read_bytes, read_pieces
from fl_labelskew_plugins.machine.text import clean, failure
from fl_labelskew_plugins.models.module import ModuleNetwork
from fl_labelskew_plugins.params import IS_PATH
from fl_labelskew_plugins.recipe.mistakes import keys_of, unknown
from fl_labelskew_plugins.recipe.model import Recipe

TYPES = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}
ADDED_DEFAULTS: dict[str, dict[str, Any]] = {
    "train_args": {"augment": []},
    "model_args": {"weights": None, "stem": "small"},
}
"""Omitted, so that digests stay the same as in version 0.2."""


@dataclass(frozen=True)
class Function:
    """A function that builds a network, used like a network's class."""

    file: Path
    name: str
    content: bytes
    sha256: str  # of the file
    Params: type[params.Params]

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"

    def __call__(self, params: params.Params) -> FunctionNetwork:
        """The network with these parameters."""
        return FunctionNetwork(self, params)

    def loaded(self) -> Callable[..., Any]:
        """Run the checked content, and return the function."""
        name = f"labelskew_network_{hashlib.sha256(bytes(self.file) + self.content).hexdigest()}"
        if (module := sys.modules.get(name)) is None:
            module = sys.modules[name] = types.ModuleType(name)
            vars(module)["__file__"] = str(self.file)
            try:
                exec(compile(self.content, self.file, "exec", dont_inherit=True), vars(module))
            except BaseException:
                del sys.modules[name]
                raise
        function: Callable[..., Any] = getattr(module, self.name)
        return function


class FunctionNetwork(Network):
    """A network built by a user's function."""

    def __init__(self, function: Function, params: params.Params) -> None:
        super().__init__(params)
        self.function = function

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Call the function; raises LabelSkewError if it fails or returns no suitable module."""
        schema = keys_of(self.function.Params)
        values = self.params.model_dump(mode="json", by_alias=True)
        # JSON may not represent a default's type or value
        changed = {k: v for k, v in values.items() if "default" not in schema[k] or v != schema[k]["default"]}
        try:
            with torch.random.fork_rng([]):  # or the weights would depend on whether the file ran before
                function = self.function.loaded()
            module = function(tuple(input_shape), num_classes, **changed)
        except LabelSkewError:
            raise
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(self.function.file)]
            place = f" (line {lines[-1]})" if lines else ""
            raise LabelSkewError(f"model_args.model: {self.function}: {clean(failure(error), 300)}{place}") from error
        if not isinstance(module, nn.Module):
            problem = f"{self.function} returned {type(module).__name__}"
            raise mistake("model_args.model", problem, "a function that returns a torch.nn.Module")
        return ModuleNetwork(module).build(input_shape, num_classes)


def find(name: str) -> Function:
    """Find a function without running code; raises LabelSkewError."""
    place, _, function = name.rpartition(":")
    if not place.endswith(".py") or not function.isidentifier():
        raise LabelSkewError(f"{clean(name)}: expected FILE.py:FUNCTION")
    file = Path(place).expanduser().absolute()
    where = clean(file, 4096)
    try:
        content = read_bytes(file)
        tree = ast.parse(content, str(file))
    except OSError as error:
        raise LabelSkewError(f"{where}: cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else failure(error)
        raise LabelSkewError(f"{where}: is not valid Python: {clean(line)}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in functions:
        raise LabelSkewError(f"{where}: function {unknown(function, functions)}")
    kind = _params(functions[function], f"{where}:{function}")
    return Function(file, function, content, hashlib.sha256(content).hexdigest(), kind)


def _params(node: ast.FunctionDef, where: str) -> type[params.Params]:
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    given = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    pairs = list(zip(positional, given, strict=True)) + list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    if len(positional) < 2:
        names = ", ".join(arg.arg for arg in positional)
        raise mistake(where, f"takes ({names})", "(input_shape, num_classes, ...), such as ((1, 28, 28), 10)")
    fields: dict[str, Any] = {}
    for number, (arg, default) in enumerate(pairs[2:]):
        types = [TYPES.get(part.strip()) for part in ast.unparse(arg.annotation).split("|")] if arg.annotation else []
        kind: Any = reduce(or_, types) if types and None not in types else Any
        if default is None:
            fields[f"field{number}"] = (kind, Field(alias=arg.arg))
            continue
        try:
            value = json.loads(json.dumps(ast.literal_eval(default), allow_nan=False))
        except (TypeError, ValueError):  # such as nn.ReLU
            value = None
        kind = kind if value is not None else Any
        fields[f"field{number}"] = (kind, Field(value, alias=arg.arg))
    return create_model("Params", __base__=params.Params, __doc__=f"Parameters of {node.name}.", **fields)


def files(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Path and SHA-256 of each file in ``model_args``."""
    network, params = recipe.network, recipe.network.params
    if isinstance(network, FunctionNetwork):
        return {"model": {"file": str(network.function.file), "sha256": network.function.sha256}}
    keys = [key for key, field in getattr(type(params), "model_fields", {}).items() if IS_PATH in field.metadata]
    paths = {key: str(getattr(params, key)) for key in keys}
    return {key: {"file": path, "sha256": _digest(path)} for key, path in paths.items() if os.path.isfile(path)}


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    for piece in read_pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def portable(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The resolved recipe, with SHA-256 instead of paths in ``model_args``."""
    resolved = recipe.resolved()
    for key, made in files(recipe).items():
        name = recipe.network_name.rpartition(":")[2] if key == "model" else "a file"
        resolved["model_args"] |= {key: name, f"{key}_sha256": made["sha256"]}
    for section, defaults in ADDED_DEFAULTS.items():
        keys = resolved[section]
        resolved[section] = {k: v for k, v in keys.items() if k not in defaults or v != defaults[k]}
    return resolved


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """A message if a run's :func:`files` differ from the local ones."""
    for key in {**before, **now}:
        then, here = (clean(side.get(key, {}).get("sha256", "no file"))[:16] for side in (before, now))
        if then != here:
            file = clean((now.get(key) or before[key])["file"], 4096)
            return f"model_args.{key}: {file} has SHA-256 {here}..., but the run began with {then}..."
    return ""
