"""Imports point one way, down the floors of docs/architecture.md, and few places know the host."""

import ast
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS, REGISTRY = "fl_labelskew_plugins", "fl_labelskew_registry"
FLOORS = (
    {"machine", "tensors", "ops", "seeds", "params", "checked", "plots"},
    {"partition"},
    {"methods", "optimizers", "models", "data", "trackers"},
    {"recipe"},
    {"engine"},
    {"diagnostics", "ledgers"},
    {"runs"},
    {"show", "surveys"},
    {"host"},
    {"runtimes"},
    {"trained"},
    {"front"},
    {"studies"},
    {"cli"},
)
"""From the ground. A room imports from floors below its own, and on the ground floor from its neighbours, too."""
LAZY = {f"{REGISTRY}.{name}" for name in ("contracts", "answers", "testing")}
"""Modules of the registry that import torch and numpy when a function needs them."""
KNOWS_THE_HOST = ("host", "runtimes.sp.hosted")
METHODS_MAY_IMPORT = {f"{OURS}.params", f"{OURS}.ops", f"{OURS}.seeds", f"{OURS}.tensors"}
INHERITS = {"fedphp": "map", "reweighting": "fedshift"}


@dataclass(frozen=True)
class Import:
    """One imported name, such as ``torch.nn``; ``lazy`` inside a function, ``typing`` under ``if TYPE_CHECKING``."""

    name: str
    line: int
    lazy: bool
    typing: bool


def imports(source: str, module: str) -> Iterator[Import]:
    """Every import of a module, ``import_module("...")`` included."""

    def walk(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from walk(child, lazy, True)
            for child in node.orelse:
                yield from walk(child, lazy, typing)
            return
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [base])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            names = [str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
        yield from (Import(name, node.lineno, lazy, typing) for name in names)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy, typing)

    yield from walk(ast.parse(source), lazy=False, typing=False)


def within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or lies in it."""
    return name == package or name.startswith(package + ".")


def part(name: str) -> str:
    """The part of our package that a name lies in: ``methods`` of ``fl_labelskew_plugins.methods.map``."""
    return [*name.split("."), ""][1] if within(name, OURS) else ""


def violations(source: str, module: str) -> list[str]:
    """A sentence for every import of ``module`` that breaks a rule."""
    return [
        f"{module}:{i.line} imports {i.name}: {why}" for i in imports(source, module) for why in _why_not(i, module)
    ]


def _why_not(imported: Import, module: str) -> Iterator[str]:
    name, here, there = imported.name, part(module), part(imported.name)
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    if here in floor and there in floor and here != there and floor[there] >= (floor[here] or 1):
        yield "imports point down the floors"
    if imported.typing:  # which loads nothing
        return
    if within(module, REGISTRY):
        heavy = any(within(name, heavy) for heavy in ("torch", "numpy", "fedml", "pydantic", OURS))
        if heavy and not (imported.lazy and module in LAZY and not within(name, OURS)):
            yield "the registry stays light"
        return
    if not any(within(module, f"{OURS}.{room}") for room in KNOWS_THE_HOST) and (
        within(name, "fedml") or (within(name, f"{OURS}.host") and not imported.lazy)
    ):
        yield "only host and what a hosted simulation is made of know the host"
    if here == "partition" and (within(name, "torch") or within(name, "torchvision")):
        yield "partitions are pure numpy"
    if here == "machine" and within(name, OURS) and there not in {"machine", "hook"}:
        yield "the machine knows nothing of learning"
    if there == "cli" and here not in {"cli", "hook"}:
        yield "nothing imports the command line but the hook"
    if here == "methods" and within(name, OURS) and not any(within(name, may) for may in METHODS_MAY_IMPORT):
        parent = INHERITS.get(module.rpartition(".")[2])
        if parent is None or not within(name, f"{OURS}.methods.{parent}"):
            yield "a method imports params, ops, seeds, tensors and the registry"


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
    assert {f"{OURS}.host.trainer", f"{OURS}.hook.__init__", f"{OURS}.cli.__init__", f"{REGISTRY}.catalog"} <= names


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_one_way(module, path):
    assert violations(path.read_text(encoding="utf-8"), module) == []


def test_no_modules_import_each_other_in_a_circle():
    house = runpy.run_path(str(ROOT / "tools" / "house.py"))
    imports = house["arrows"](house["modules"]())
    assert "recipe.mistakes" in imports["recipe.parse"]
    assert house["circles"](imports) == []
    assert house["circles"]({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (f"{OURS}.engine.local", "import fedml"),
        (f"{OURS}.data.digits", "def f():\n    from fedml.data import x"),
        (f"{OURS}.engine.local", "from importlib import import_module\nimport_module('fedml.core')"),
        (f"{OURS}.partition.iid", "import torch.nn as nn"),
        (f"{OURS}.machine.files", f"from {OURS}.tensors import State"),
        (f"{OURS}.front.start", f"from {OURS}.cli import main"),
        (f"{OURS}.front.start", f"from {OURS} import cli"),
        (f"{OURS}.front.start", "from ..cli.run import run_command"),
        (f"{OURS}.host.trainer", f"import {OURS}.runtimes.sp"),
        (f"{OURS}.runtimes.mpi.runtime", "from fedml.core import x"),
        (f"{OURS}.runtimes.sp.runtime", f"from {OURS}.host.trainer import Trainer"),
        (f"{OURS}.recipe.compatibility", f"if TYPE_CHECKING:\n    from {OURS}.engine.local import LocalTrainer"),
        (f"{OURS}.diagnostics.watch", f"from {OURS}.host import trainer"),
        (f"{OURS}.runs.rounds", f"from {OURS}.host import aggregator"),
        (f"{OURS}.methods.fedlc", f"from {OURS}.engine.local import train"),
        (f"{OURS}.methods.fedlc", f"from {OURS}.methods.map import mmd"),
        (f"{OURS}.methods.fedlc", "from .map import mmd"),
        (f"{OURS}.methods.reweighting", f"from {OURS}.methods.map import MAP"),
        (f"{OURS}.methods.fedlc", "class A:\n    def loss(self):\n        from ..host.trainer import Trainer"),
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
        (f"{OURS}.host.trainer", "from fedml.core import ClientTrainer"),
        (f"{OURS}.runtimes.sp.hosted", f"import fedml\nfrom {OURS}.host.trainer import Trainer"),
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
