"""``labelskew new``: a folder to begin with, for data of one's own or for a plugin."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.options import FOLDER, PATH
from fl_labelskew_plugins.front.new.kinds import KINDS
from fl_labelskew_plugins.machine.text import clean

OUT = click.argument("out", metavar="DIR", type=FOLDER)
DATA = click.option(
    "--data",
    required=True,
    type=PATH,
    metavar="PATH",
    help="A folder of pictures (<class>/*, train/<class>/*, <hospital>/train/<class>/*), an .npz file, or a CSV or "
    "Parquet table.",
)
LABEL = click.option("--label", metavar="COLUMN", help="A table's column of classes.  [default: by its name]")
GROUP = click.option(
    "--group", metavar="COLUMN", help="A table's column of groups, such as hospitals.  [default: by its name, or none]"
)


def say(out: Path, commands: Sequence[str]) -> None:
    """Name what was written, and what to type next."""
    click.echo(f"written to {clean(out, 4096)}: {', '.join(sorted(clean(path.name) for path in out.iterdir()))}")
    click.echo("next (README.md has the rest):")
    for command in (f"cd {shlex.quote(clean(out, 4096))}", *commands):
        click.echo(f"  {command}")


@click.group("new")
def new_group() -> None:
    """Write a folder to begin with: recipes for data of your own, or the package of a plugin."""


@new_group.command("simulation")
@OUT
@DATA
@LABEL
@GROUP
@guarded
def simulation(out: Path, data: Path, *, label: str | None, group: str | None) -> None:
    """Write DIR, new or empty: a recipe that trains on all of PATH on this machine, and a README of the commands.

    Each group of the data (hospital, site) is a client; without groups, samples are dealt out.
    """
    from fl_labelskew_plugins.front.new import look, write

    say(out, write.simulation(look.look(data, label, group), out))


@new_group.command("federation")
@OUT
@DATA
@click.option(
    "--silos", type=click.IntRange(2, 100), metavar="N", help="Number of silos, where the data have no groups."
)
@LABEL
@GROUP
@guarded
def federation(out: Path, data: Path, *, silos: int | None, label: str | None, group: str | None) -> None:
    """Write DIR, new or empty: recipe and silos' files of a federation across machines, and a README of the commands.

    Each group of the data (hospital, site) is a silo.
    """
    from fl_labelskew_plugins.front.new import look, write

    say(out, write.federation(look.look(data, label, group), out, silos))


def add_plugin_command(kind: str, noun: str) -> None:
    """Add the command that writes the package of a plugin of this kind."""

    @new_group.command(
        kind,
        help=f"Write DIR, by default labelskew-NAME: a package with the {noun} NAME, its recipe and its test.",
        short_help=f"Write a package with a {noun} of your own.",
    )
    @click.argument("name")
    @click.argument("out", metavar="[DIR]", required=False, type=FOLDER)
    @guarded
    def plugin(name: str, out: Path | None) -> None:
        from fl_labelskew_plugins.front.new.plugin import package

        out = out or Path(f"labelskew-{name}")
        say(out, package(kind, name, out))


for _kind, (_, _noun, _place) in KINDS.items():
    add_plugin_command(_kind, _noun)
