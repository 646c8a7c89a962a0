from pathlib import Path

import click
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import RUN
from fl_labelskew_plugins.ledgers import audit
from fl_labelskew_plugins.machine.text import clean, counted


@click.group("audit")
def audit_group() -> None:
    """Show or verify the audit log of a server or a silo: connections and messages."""


@audit_group.command("show")
@RUN
@click.option("--event", help="Show only this event, such as sent, received or refused.")
def show(folder: Path, event: str | None) -> None:
    """Show the log in RUN, the folder of a server or a silo."""
    from fl_labelskew_plugins.recipe import mistakes

    if event not in (None, *audit.EVENTS):
        raise LabelSkewError(f"--event: {mistakes.unknown(event, audit.EVENTS)}")
    entries = [content for _, _, content in audit.read(folder) if event in (None, content.get("event"))]
    keys = ("time", "event", "rank", "kind", "round", "bytes", "times", "peer", "sha256")
    used = [key for key in keys if any(key in content for content in entries)]
    further = ("reason", "role", "run", "of", "attempt", "silos", "lost", "log", "since")
    forms = {"reason": "{}", "log": "log {:.12}"}
    rows = []
    for content in entries:
        cells = [clean(content.get(key, ""))[: 12 if key == "sha256" else None] for key in used]
        more = [forms.get(key, key + " {}").format(clean(content[key])) for key in further if key in content]
        rows.append([*cells, "; ".join(more)])
    click.echo(table.plain([*used, "more"], rows) if rows else "no matching lines")


@audit_group.command("verify")
@RUN
@click.option("--last", default="", metavar="SHA256", help="SHA-256 of a required line, as printed at a run's end.")
def verify(folder: Path, last: str) -> None:
    """Check that no line of the log in RUN was changed, removed or moved.

    The exit code is 1 if a line was; the message names the first one. Lines removed from the end are detected only
    with --last.
    """
    log = audit.verify(folder, last.strip().lower())
    click.echo(f"ok: {counted(log.lines, 'line')} in {counted(log.files, 'file')}, last line's SHA-256 {log.last}")
    if log.missing or log.repaired:
        text = f"{counted(log.missing, 'line')} could not be written, {counted(log.repaired, 'line')} were incomplete"
        click.echo(f"reported by the log itself: {text}")
