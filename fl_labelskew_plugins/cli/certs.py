"""``labelskew certs``: who may take part in a federation across machines."""

from __future__ import annotations

from pathlib import Path

import click

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.exits import guarded

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group("certs")
def certs_group() -> None:
    """Certificates of a server and its silos, for runs across machines."""


@certs_group.command("new")
@click.option("--silos", required=True, type=click.IntRange(1, 100_000), help="Number of silos.")
@click.option("--out", type=FOLDER, metavar="DIR", default="certs", show_default=True, help="Folder to write.")
@click.option(
    "--server",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Name or IP address at which silos reach the server; repeatable.  [default: this machine alone]",
)
@click.option("--days", type=click.IntRange(1, 36_500), default=825, show_default=True, help="How long they hold.")
@click.option("--add", is_flag=True, help="Keep what is in DIR and make what is missing; needs the authority's key.")
@guarded
def new(*, silos: int, out: Path, hosts: tuple[str, ...], days: int, add: bool) -> None:
    """Make an authority, a certificate for the server and one for each silo."""
    from fl_labelskew_plugins import certs

    made = certs.new(out, silos, hosts, days=days, add=add)
    click.echo(f"written to {out}: {', '.join(made) or 'nothing, all are there'}")
    for name in made:
        if name != "ca":
            whom = "the server's host" if name == "server" else f"silo {certs.rank_of(name)}"
            click.echo(f"to {whom}: ca.pem {name}.pem {name}.key")
    if "ca" in made:
        click.echo("keep ca.key off all of them: who has it can pose as anybody")


@certs_group.command("show")
@click.argument("folder", metavar="DIR", type=FOLDER)
@guarded
def show(folder: Path) -> None:
    """Show who the certificates in DIR are for, until when, and their SHA-256 fingerprints."""
    from fl_labelskew_plugins import certs

    shown, warnings = certs.show(folder)
    rows = [
        [each.file, each.who, f"{each.until:%Y-%m-%d}", each.fingerprint, " ".join(each.hosts) or "-"] for each in shown
    ]
    click.echo(table.plain(["file", "who", "until", "fingerprint", "hosts"], rows))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
