"""``labelskew methods`` and the commands of other plugins."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, get_args

import click
from fl_labelskew_registry import Kind, catalog
from fl_labelskew_registry.catalog import CONTRACTS

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.extras import PACKAGE
from fl_labelskew_plugins.machine.text import clean, failure, wrapped
from fl_labelskew_plugins.surveys import measured


def names(kind: Kind) -> str:
    """A table of the registered names, without importing plugins, which may be broken."""
    rows = []
    for entry in catalog.entries(kind):
        line = clean(_first_line(entry.target))
        if entry.distribution != PACKAGE:
            line = f"{line} ({clean(entry.distribution)})".strip()
        rows.append([entry.name, line])
    return table.plain(["name", "description"], rows)


def _first_line(target: str) -> str:
    module, _, name = target.partition(":")
    try:
        spec: Any = find_spec(module)  # imports the package of the module, but not the module
        tree = ast.parse(spec.loader.get_source(module))
        (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        return (ast.get_docstring(definition) or "").partition("\n")[0].replace("``", "")
    except Exception:  # raised by another package's code, import hook or syntax
        return ""


def details(kind: Kind, name: str) -> str:
    """A description of a plugin."""
    plugin = catalog.load(kind, name)
    first, *_ = (plugin.__doc__ or "").strip().split("\n")
    heads = [f"{name}: {first}".replace("``", "")]
    for fact in ("paper", "runtimes", "aggregation", "default_dir", "source"):
        if value := getattr(plugin, fact, None):
            heads.append(f"{fact}: {', '.join(value) if isinstance(value, tuple) else value}")
    lines = [wrapped(head, "  ") for head in heads]
    for text, is_equation in paragraphs(plugin.__doc__):
        is_list = re.search(r"^(?:\s|[-*] )", text, re.MULTILINE)
        plain = text if is_list else wrapped(" ".join(re.sub(r"``|\*\*", "", text).split()))
        lines += ["", textwrap.indent(text, "    ") if is_equation else plain]
    rows = [[key, default, f"{meaning} [{allowed}]"] for key, default, allowed, meaning in parameters(plugin.Params)]
    lines += ["", table.plain(["parameter", "default", "meaning [allowed]"], rows) if rows else "no parameters"]
    if deviations := _deviations(plugin):
        lines += ["", "Deviations of the defaults from the paper:"]
        lines += [wrapped(f"- {deviation}", "  ") for deviation in deviations]
    if kind == "methods":
        lines += _accuracies(name)
    return "\n".join(clean(line, 4096) for line in "\n".join(lines).split("\n"))


def paragraphs(docstring: str | None) -> Iterator[tuple[str, bool]]:
    r"""The paragraphs after a docstring's first line, and whether each is an equation.

    >>> list(paragraphs("A loss.\n\nEquation 1:\n\n.. math:: a^2\n"))
    [('Equation 1:', False), ('a^2', True)]
    """
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring or ""))[1:]:
        _, math, latex = block.rpartition(".. math::")
        yield textwrap.dedent(latex).strip() if math else block, bool(math)


def _deviations(plugin: Any) -> list[str]:
    from fl_labelskew_plugins.checked import checked

    if not hasattr(plugin, "deviations") or any(field.is_required() for field in plugin.Params.model_fields.values()):
        return []
    try:
        return list(checked(plugin()).deviations())
    except Exception as error:  # raised by another package
        return [f"not available: {failure(error)}"]


def _accuracies(name: str) -> list[str]:
    lines = []
    for result in measured.of_method(name):
        head, *rows = [[cell.replace("`", "") for cell in row] for row in (result.head, *result.rows)]
        if head[0] == "method":
            least = [column for column in head if "own splits" in column]
            lines += ["", f"Our accuracy in %: {result.setting}", table.plain(head, rows, words=2, least=least)]
    legend = "P10C2: 10 clients with 2 classes each; own splits: each client's model on its own test split. "
    legend += "Commands and more results: docs/results.md"
    return [*lines, "", wrapped(legend)] if lines else []


def parameters(model: Any) -> list[list[str]]:
    """Rows of name, default, allowed values, description."""
    from fl_labelskew_plugins.recipe import mistakes

    schema = mistakes.schema_of(model)
    rows = []
    for key, part in schema.get("properties", {}).items():
        default = mistakes.quoted(part["default"]).strip("'") if "default" in part else "required"
        rows.append([key, default, mistakes.allowed(part, schema.get("$defs", {})), part.get("description", "")])
    return rows


def _command(verb: str, kind: Kind, plural: str) -> click.Command:
    @click.command(verb, help=f"List the {plural}, or describe one.")
    @click.argument("name", required=False, shell_complete=completion.plugins(kind))
    def show(name: str | None) -> None:
        click.echo(names(kind) if name is None else details(kind, name))
        for line in catalog.misplaced(kind) if name is None else ():
            log.warn(line)

    return show


WORDS = {
    "methods": "label-skew methods",
    "optimizers": "optimisers",
    "datasets": "data sets",
    "models": "networks",
    "trackers": "trackers of a run's rounds",
}
VERBS = {kind: "partitions" if kind == "partitioners" else kind for kind in get_args(Kind) if kind in CONTRACTS}
PLUGIN_COMMANDS = [_command(verb, kind, WORDS.get(kind, verb)) for kind, verb in VERBS.items()]
