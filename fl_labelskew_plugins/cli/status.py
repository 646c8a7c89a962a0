import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import PATH
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.measure import GLOBAL, NAMED

HEAD = ("silo", "name", "state", "since", "last upload", "bytes in", "bytes out", "address")


@click.command("status")
@click.argument("folder", metavar="FOLDER", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON, with times in UTC.")
def status_command(folder: Path, *, as_json: bool) -> None:
    """Show the state of a run: round, accuracy, missing silos.

    If FOLDER belongs to a sweep or contains several runs, each run has a row. Only files in FOLDER are read, so this
    works on any machine that can read them.
    """
    try:
        facts = status.read(folder)
    except LabelSkewError:
        if not (names := _runs(folder)):
            raise
        _show_several(folder, names, as_json=as_json)
        return
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    try:
        lines, rows = _lines(facts), [_row(silo, facts["held_by"]) for silo in facts["silos"]]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        raise LabelSkewError(f"{folder / status.NAME}: {status.DAMAGED}") from None
    for line in lines:
        click.echo(clean(line, 1000))
    if rows:
        click.echo(table.plain(HEAD, rows))


def _runs(folder: Path) -> list[str]:
    if not os.path.isdir(folder):  # unlike pathlib's, False for a name that is too long
        return []
    from fl_labelskew_plugins.studies import finished

    begun = [str(path.relative_to(folder)) for path in finished.folders([folder]) if path != folder]
    return [*dict.fromkeys([*finished.sweep_names(folder), *begun])]


def _show_several(folder: Path, names: list[str], *, as_json: bool) -> None:
    runs = [status.read_planned(folder / name) for name in names]
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "runs": runs}, indent=2))
        return
    rows = [_run_row(name, facts) for name, facts in zip(names, runs, strict=True)]
    head = ["run", "state", "rounds", "accuracy", "process or reason"]
    columns = 5 if any(row[-1] for row in rows) else 4
    click.echo(table.plain(head[:columns], [row[:columns] for row in rows]))
    click.echo(status.totals([row[1] for row in rows]))


def _run_row(name: str, facts: dict[str, Any]) -> list[str]:
    name, state = clean(name, 300), facts["state"]
    try:
        rounds = f"{facts['rounds_done']}/{facts.get('rounds') or '?'}" if "rounds_done" in facts else ""
        accuracy = facts.get("accuracy")
        percent = "" if accuracy is None else f"{100 * accuracy:.2f} %"
        if percent and facts["measure"] != GLOBAL:
            percent += f" ({NAMED[facts['measure']].name})"
    except (ArithmeticError, TypeError, ValueError):
        return [name, status.UNREADABLE, "", "", "metrics.jsonl was changed or damaged"]
    return [name, state, rounds, percent, clean(facts.get("held_by") or facts.get("reason") or "", 1000)]


def _lines(facts: dict[str, Any]) -> list[str]:
    since = f" since {_local(facts['began'])}" if facts["began"] else ""
    lines = [f"{facts['run']}: {facts['state']}" + (f", {facts['held_by']}{since}" if facts["held_by"] else "")]
    lines.append(f"rounds done: {facts['rounds_done']}" + (f" of {facts['rounds']}" if facts["rounds"] else ""))
    if facts["accuracy"] is not None:
        lines[-1] += f"; accuracy {100 * facts['accuracy']:.2f} % after round {facts['accuracy_round']}"
        if facts["measure"] != GLOBAL:
            lines.append(f"tested on: {NAMED[facts['measure']].samples}")
    if waiting := facts["waiting_for"]:
        silos = "silo" if len(waiting["silos"]) == 1 else "silos"
        lines.append(f"waiting for {waiting['what']} of {silos} {', '.join(map(str, waiting['silos']))}")
    lines += [f"{label}: {facts[key]}" for label, key in (("reason", "reason"), ("to resume", "resume")) if facts[key]]
    if facts["silos"]:
        lines.append(f"as of {_local(facts['time'])}, listening on {facts['address']}:")
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
    connection = "connected" if silo["connected"] else "away" if silo["since"] else "not seen yet"
    if silo["excluded"]:
        return f"{connection}, excluded"
    return f"{connection}, skipped" if silo["left_out"] else connection


def _local(time: str | None) -> str:
    return f"{datetime.fromisoformat(time.replace('Z', '+00:00')).astimezone():%Y-%m-%d %H:%M:%S}" if time else ""
