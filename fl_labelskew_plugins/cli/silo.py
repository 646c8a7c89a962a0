"""``labelskew silo``: which silos take part in a run, while it runs and before it is resumed."""

from __future__ import annotations

from pathlib import Path

import click

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.options import RUN


@click.group("silo")
def silo_group() -> None:
    """Leave silos out of a run across silos, on the server's machine."""


@silo_group.command("exclude")
@RUN
@click.argument("rank", type=click.IntRange(1))
@click.option("--why", default="", metavar="TEXT", help="Reason for the server's log and its audit log.")
@guarded
def exclude(folder: Path, rank: int, why: str) -> None:
    """Leave silo RANK out of a run, from its next round on.

    RUN is the server's folder. The silo stays connected and is not asked, and not waited for. A run that has ended
    keeps to it when it is resumed.
    """
    from fl_labelskew_plugins.runtimes.silo import excluded

    _tell(f"silo {rank} is left out from the next round on", excluded.exclude(folder, rank, why))


@silo_group.command("include")
@RUN
@click.argument("rank", type=click.IntRange(1))
@guarded
def include(folder: Path, rank: int) -> None:
    """Let silo RANK take part again, from the next round on.

    RUN is the server's folder.
    """
    from fl_labelskew_plugins.runtimes.silo import excluded

    _tell(f"silo {rank} takes part again from the next round on", excluded.include(folder, rank))


def _tell(what: str, known: dict[int, str]) -> None:
    click.echo(f"{what}; excluded now: {', '.join(map(str, sorted(known))) or 'none'}")
