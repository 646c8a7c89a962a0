"""``labelskew status``: what a run is doing, from its folder alone."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.options import PATH
from fl_labelskew_plugins.machine.text import clean

HEAD = ("silo", "name", "state", "since", "last upload", "bytes in", "bytes out", "address")


@click.command("status")
@click.argument("folder", metavar="RUN", type=PATH, shell_complete=completion.runs)
@click.option("--json", "as_json", is_flag=True, help="Print all that is known as JSON; its times are UTC.")
@guarded
def status_command(folder: Path, *, as_json: bool) -> None:
    """Show what a run is doing: round, accuracy, who is missing.

    Reads files in the folder RUN alone, on the machine where the run, or its server, writes them.
    """
    from fl_labelskew_plugins.runs import status

    known = status.read(folder)
    if as_json:
        click.echo(json.dumps(known, indent=2))
        return
    try:
        lines, rows = _lines(known), [_row(silo, known["held_by"]) for silo in known["silos"]]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        raise LabelSkewError(f"{folder / status.NAME}: {status.DAMAGED}") from None
    for line in lines:
        click.echo(clean(line, 1000))
    if rows:
        click.echo(table.plain(HEAD, rows))


def _lines(known: dict[str, Any]) -> list[str]:
    since = f" since {_local(known['began'])}" if known["began"] else ""
    lines = [f"{known['run']}: {known['state']}" + (f", {known['held_by']}{since}" if known["held_by"] else "")]
    lines.append(f"rounds done: {known['rounds_done']}" + (f" of {known['rounds']}" if known["rounds"] else ""))
    if known["accuracy"] is not None:
        lines[-1] += f"; accuracy {100 * known['accuracy']:.2f} % after round {known['accuracy_round']}"
    if waiting := known["waiting_for"]:
        lines.append(f"waiting for silos {', '.join(map(str, waiting['silos']))} ({waiting['what']})")
    lines += [f"{label}: {known[key]}" for label, key in (("why", "why"), ("to go on", "go_on")) if known[key]]
    if known["silos"]:
        lines.append(f"as of {_local(known['time'])}, listening on {known['address']}:")
    return lines


def _row(silo: dict[str, Any], held_by: str | None) -> list[str]:
    sizes = [f"{silo[way] / 1e6:.2f} MB" for way in ("bytes_in", "bytes_out")]
    upload = silo["upload"]
    last = f"{_local(upload['time'])}, round {upload['round']}, {upload['bytes'] / 1e6:.2f} MB" if upload else ""
    state, since = _state(silo) if held_by else "", _local(silo["since"])
    return list(map(clean, (silo["rank"], silo["name"], state, since, last, *sizes, silo["peer"] or "")))


def _state(silo: dict[str, Any]) -> str:
    if silo["turned_away"] is not None:
        return "turned away"
    here = "connected" if silo["connected"] else "away" if silo["since"] else "not seen yet"
    if silo["excluded"] is not None:
        return f"{here}, excluded"
    return f"{here}, left out" if silo["left_out"] else here


def _local(time: str | None) -> str:
    """A time as a clock here shows it."""
    return f"{datetime.fromisoformat(time.replace('Z', '+00:00')).astimezone():%Y-%m-%d %H:%M:%S}" if time else ""
