"""``labelskew methods``, ``optimizers``, ``partitions``, ``datasets``, ``models``, ``trackers``: what each takes."""

from __future__ import annotations

from typing import Any

import click
from fl_labelskew_registry import Kind, catalog

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.machine import log


def names(kind: Kind) -> str:
    """The registered names and their distributions; imports none of them, so a broken one hides no other."""
    return table.plain(["name", "distribution"], [[entry.name, entry.distribution] for entry in catalog.entries(kind)])


def details(kind: Kind, name: str) -> str:
    """One plugin: what it is, and its parameters."""
    plugin = catalog.load(kind, name)
    first, *_ = (plugin.__doc__ or "").strip().split("\n")
    lines = [f"{name}: {first}"]
    for fact in ("paper", "runtimes", "aggregation", "default_dir", "source"):
        value = getattr(plugin, fact, None)
        if value:
            lines.append(f"{fact}: {', '.join(value) if isinstance(value, tuple) else value}")
    rows = parameters(plugin.Params)
    parts = table.plain(["parameter", "default", "allowed", "meaning"], rows) if rows else "no parameters"
    return "\n".join([*lines, "", parts])


def parameters(model: Any) -> list[list[str]]:
    """A row for each key: name, default, what is allowed, help text."""
    from fl_labelskew_plugins.recipe import mistakes

    schema = mistakes.schema_of(model)
    return [
        [
            key,
            mistakes.show(part["default"]).strip("'") if "default" in part else "required",
            mistakes.allowed(part, schema.get("$defs", {})),
            part.get("description", ""),
        ]
        for key, part in schema.get("properties", {}).items()
    ]


def _command(verb: str, kind: Kind, what: str) -> click.Command:
    @click.command(verb, help=f"List the {what}; with NAME, show one and its parameters.")
    @click.argument("name", required=False)
    @guarded
    def show(name: str | None) -> None:
        click.echo(names(kind) if name is None else details(kind, name))
        for line in catalog.misplaced(kind) if name is None else ():
            log.warn(line)

    return show


PLUGIN_COMMANDS = (
    _command("methods", "methods", "label-skew methods"),
    _command("optimizers", "optimizers", "optimisers of a federation"),
    _command("partitions", "partitioners", "partitions"),
    _command("datasets", "datasets", "data sets"),
    _command("models", "models", "networks"),
    _command("trackers", "trackers", "trackers of a run's rounds"),
)
