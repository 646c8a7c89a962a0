import os
from collections import Counter
from pathlib import Path

import click

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import FILE, PATH, RUN
from fl_labelskew_plugins.machine.text import clean, few


@click.group("silo")
def silo_group() -> None:
    """Set a silo's data, on its machine; exclude silos from a run, on the server's."""


@silo_group.command("data")
@click.argument("file", type=FILE)
@click.argument("path", type=PATH)
def data(file: Path, path: Path) -> None:
    """Check the data in PATH, and write PATH into FILE, a silo's own file.

    The data must fit the recipe that lists FILE, in the same folder: layout, classes, size of pictures, columns and
    categories of a table. Nothing is sent. FILE is unchanged if the data do not fit.
    """
    from fl_labelskew_plugins.front.new.bind import bind

    place = Path(os.path.abspath(path.expanduser()))
    silo = bind(file, place).data
    names = [clean(name, 40) for name in silo.class_names]
    counts = [Counter(part.y.tolist()) for part in (silo.train, silo.test)]
    rows = [[name, *(str(part[c]) for part in counts)] for c, name in enumerate(names)]
    click.echo(table.plain(["class", "training", "test"], [*rows, ["all", *(str(part.total()) for part in counts)]]))
    if layout := silo.notes.get("layout.txt"):
        click.echo(f"this silo uses all of these samples: {layout.strip()}")
    if missing := [name for c, name in enumerate(names) if not counts[0][c]]:
        click.echo(f"no training samples of {few(missing, 20)}; a silo need not have all classes")
    click.echo(f"{clean(file, 4096)}: data_args.data_cache_dir is now {clean(place, 4096)}")


@silo_group.command("exclude")
@RUN
@click.argument("rank", type=click.IntRange(1))
def exclude(folder: Path, rank: int) -> None:
    """Exclude silo RANK from a run, from its next round on.

    RUN is the server's folder. The silo stays connected, but is not selected and not waited for. This also applies when
    a stopped run is resumed.
    """
    from fl_labelskew_plugins.runtimes.silo import members

    _report(f"silo {rank} is excluded from the next round on", members.exclude(folder, rank))


@silo_group.command("include")
@RUN
@click.argument("rank", type=click.IntRange(1))
def include(folder: Path, rank: int) -> None:
    """Include silo RANK again, from the next round on; RUN is the server's folder."""
    from fl_labelskew_plugins.runtimes.silo import members

    _report(f"silo {rank} takes part again from the next round on", members.include(folder, rank))


def _report(change: str, excluded: set[int]) -> None:
    click.echo(f"{change}; excluded now: {', '.join(map(str, sorted(excluded))) or 'none'}")
