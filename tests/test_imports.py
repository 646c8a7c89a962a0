"""Imports point one way, ``cli -> runtimes -> trainer/aggregator -> methods -> ops``, and few places know the host."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS, REGISTRY = "fl_labelskew_plugins", "fl_labelskew_registry"
LAYERS = [{"cli"}, {"runtimes"}, {"trainer", "aggregator"}, {"methods"}, {"ops"}]
KNOWS_THE_HOST = {"trainer", "aggregator", "runtimes"}
METHODS_MAY_IMPORT = {f"{OURS}.params", f"{OURS}.ops"}
INHERITS = {"fedphp": "map", "reweighting": "fedshift"}


@dataclass(frozen=True)
class Import:
    """One imported name, such as ``torch.nn``; ``lazy`` inside a function; not those under ``if TYPE_CHECKING``."""

    name: str
    line: int
    lazy: bool


def imports(source: str, module: str) -> Iterator[Import]:
    """Every import of a module that can happen when it runs, ``import_module("...")`` included."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.orelse:
                yield from walk(child, lazy)
            return
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [base])])
            yield from (Import(f"{base}.{alias.name}", node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            yield from (Import(str(a.value), node.lineno, lazy) for a in node.args[:1] if isinstance(a, ast.Constant))
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy)

    yield from walk(ast.parse(source), lazy=False)


def within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or lies in it."""
    return name == package or name.startswith(package + ".")


def part(name: str) -> str:
    """The part of our package that a name lies in: ``methods`` of ``fl_labelskew_plugins.methods.map``."""
    return [*name.split("."), ""][1] if within(name, OURS) else ""


def violations(source: str, module: str) -> list[str]:
    """A sentence for every import of ``module`` that breaks a rule."""
    found = list(imports(source, module))
    return [f"{module}:{i.line} imports {i.name}: {why}" for i in found for why in _why_not(i, module)]


def _why_not(found: Import, module: str) -> Iterator[str]:
    name, here, there = found.name, part(module), part(found.name)
    if within(module, REGISTRY):
        lazy_torch = found.lazy and within(name, "torch") and module == f"{REGISTRY}.contracts"
        if any(within(name, heavy) for heavy in ("torch", "numpy", "fedml", "pydantic", OURS)) and not lazy_torch:
            yield "the registry stays light"
        return
    if within(name, "fedml") and here not in KNOWS_THE_HOST:
        yield "only trainer, aggregator and runtimes know the host"
    if here == "partition" and (within(name, "torch") or within(name, "torchvision")):
        yield "partitions are pure numpy"
    if here == "machine" and within(name, OURS) and there not in {"machine", "hook"}:
        yield "the machine knows nothing of learning"
    if there == "cli" and here not in {"cli", "hook"}:
        yield "nothing imports the command line but the hook"
    if here == "methods" and within(name, OURS) and not any(within(name, may) for may in METHODS_MAY_IMPORT):
        parent = INHERITS.get(module.rpartition(".")[2])
        if parent is None or not within(name, f"{OURS}.methods.{parent}"):
            yield "a method imports params, ops and the registry"
    rank = {p: level for level, parts in enumerate(LAYERS) for p in parts}
    if here in rank and there in rank and rank[there] < rank[here]:
        yield "imports point from the command line down to the formulas"


def modules() -> list[tuple[str, Path]]:
    """All modules of both distributions."""
    found = []
    for base in (ROOT, ROOT / "registry" / "src"):
        for package in (OURS, REGISTRY):
            for path in sorted((base / package).rglob("*.py")):
                parts = path.relative_to(base).with_suffix("").parts
                # A package counts as its __init__ module, so that relative imports resolve.
                found.append((".".join(parts), path))
    return found


def test_every_module_is_looked_at():
    names = {name for name, _ in modules()}
    assert {f"{OURS}.trainer", f"{OURS}.hook.__init__", f"{OURS}.cli.__init__", f"{REGISTRY}.catalog"} <= names


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_one_way(module, path):
    assert violations(path.read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (f"{OURS}.local", "import fedml"),
        (f"{OURS}.data.digits", "def f():\n    from fedml.data import x"),
        (f"{OURS}.local", "from importlib import import_module\nimport_module('fedml.core')"),
        (f"{OURS}.partition.iid", "import torch.nn as nn"),
        (f"{OURS}.machine.files", f"from {OURS}.tensors import State"),
        (f"{OURS}.run", f"from {OURS}.cli import main"),
        (f"{OURS}.run", f"from {OURS} import cli"),
        (f"{OURS}.run", "from .cli.run import run_command"),
        (f"{OURS}.trainer", f"import {OURS}.runtimes.sp"),
        (f"{OURS}.methods.fedlc", f"from {OURS}.local import train"),
        (f"{OURS}.methods.fedlc", f"from {OURS}.methods.map import mmd"),
        (f"{OURS}.methods.fedlc", "from .map import mmd"),
        (f"{OURS}.methods.reweighting", f"from {OURS}.methods.map import MAP"),
        (f"{OURS}.methods.fedlc", "class A:\n    def loss(self):\n        from ..trainer import Trainer"),
        (f"{OURS}.ops", f"from {OURS}.methods import fedlc"),
        (f"{REGISTRY}.catalog", "import numpy"),
        (f"{REGISTRY}.catalog", "def f():\n    import torch"),
        (f"{REGISTRY}.contracts", "import torch"),
        (f"{REGISTRY}.contracts", "if not ready:\n    from torch import nn"),
        (f"{REGISTRY}.__init__", f"from {OURS}.params import Params"),
    ],
)
def test_the_checker_sees_a_violation(module, source):
    message, *_ = violations(source, module)
    assert message.startswith(f"{module}:")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (f"{OURS}.trainer", "from fedml.core import ClientTrainer"),
        (f"{OURS}.runtimes.sp", f"import fedml\nfrom {OURS}.trainer import Trainer"),
        (f"{OURS}.methods.fedphp", f"from {OURS}.methods.map import MAP"),
        (f"{OURS}.methods.reweighting", f"from {OURS}.methods.fedshift import KnownPrior"),
        (f"{OURS}.methods.fedlc", f"import torch\nfrom {OURS}.params import Params\nfrom {OURS} import ops"),
        (f"{OURS}.hook.__init__", f"def f():\n    import {OURS}.cli.run"),
        (f"{REGISTRY}.contracts", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
        (f"{REGISTRY}.contracts", "def loss():\n    from torch.nn.functional import cross_entropy"),
        (f"{OURS}.data.digits", "import fedmlx"),
        (f"{OURS}.machine.log", f"from {OURS}.machine.text import clean"),
    ],
)
def test_the_checker_lets_the_rest_pass(module, source):
    assert violations(source, module) == []
