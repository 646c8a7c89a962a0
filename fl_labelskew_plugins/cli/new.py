import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from fl_labelskew_registry import mistake

from fl_labelskew_plugins.cli import completion
from fl_labelskew_plugins.cli.options import FOLDER, PATH
from fl_labelskew_plugins.machine.log import warn
from fl_labelskew_plugins.machine.text import clean

OUT = click.argument("out", metavar="DIR", type=FOLDER)
DATA = partial(
    click.option,
    "--data",
    type=PATH,
    metavar="PATH",
    help="A folder of pictures (<class>/*, <hospital>/<class>/*, either with train/ and test/ before <class>), an .npz "
    "file, or a CSV or Parquet table.",
)
CLASSES = click.option("--classes", metavar="NAMES", help="Names of all classes, a,b,c.  [default: those in PATH]")
LABEL = click.option("--label", metavar="COLUMN", help="A table's column of classes.  [default: by its name]")
GROUP = click.option(
    "--group", metavar="COLUMN", help="A table's column of groups, such as hospitals.  [default: by its name, or none]"
)


def _names(classes: str | None) -> list[str]:
    if classes is None:
        return []
    names = [name.strip() for name in classes.split(",")]
    if not 2 <= len({*names} - {""}) == len(names):
        raise mistake(f"--classes {clean(classes)}", "expected at least two different names", "--classes benign,malign")
    return names


def _report(out: Path, commands: Sequence[str], notes: Sequence[str] = ()) -> None:
    for note in notes:
        click.echo(note)
    click.echo(f"written to {clean(out, 4096)}: {', '.join(sorted(clean(path.name) for path in out.iterdir()))}")
    click.echo("next (README.md has the rest):")
    for command in (f"cd {shlex.quote(clean(out, 4096))}", *commands):
        click.echo(f"  {command}")


@click.group("new")
def new_group() -> None:
    """Write a starting folder: recipes for your own data, a Flower app, or the package of a method."""


@new_group.command("simulation")
@OUT
@DATA(required=True)
@CLASSES
@LABEL
@GROUP
def simulation(out: Path, data: Path, *, classes: str | None, label: str | None, group: str | None) -> None:
    """Write a recipe that trains on all of PATH on this machine, and a README, to DIR, new or empty.

    Each group of the data (hospital, site) is a client; without groups, the samples are partitioned.
    """
    from fl_labelskew_plugins.front.new import look, write

    own_data = look.look(data, label, group, _names(classes))
    _report(out, write.simulation(own_data, out), own_data.notes)


@new_group.command("federation")
@OUT
@DATA()
@click.option(
    "--silos", type=click.IntRange(2, 100), metavar="N", help="Number of silos; required without --data or groups."
)
@CLASSES
@click.option("--image-size", type=click.IntRange(8, 1024), metavar="N", help="Without --data: pixels.  [default: 64]")
@click.option(
    "--columns",
    metavar="COLUMNS",
    help="Without --data: a table's features, such as age (a number), age=0..100 (with its range), sex=f/m "
    "(categories).",
)
@LABEL
@GROUP
@click.option("--secure", is_flag=True, help="Use secure aggregation: the server sees only sums of silos' updates.")
def federation(
    out: Path,
    data: Path | None,
    *,
    silos: int | None,
    classes: str | None,
    image_size: int | None,
    columns: str | None,
    label: str | None,
    group: str | None,
    secure: bool,
) -> None:
    """Write the recipe, silos' files and README of a federation across machines to DIR, new or empty.

    Each group of the data (hospital, site) is a silo. Without --data the options describe the data, and each silo
    sets its own path with labelskew silo data.
    """
    from fl_labelskew_plugins.front.new import look, write

    names = _names(classes)
    if data is None:
        if silos is None or not names or group is not None:
            use = "--silos 3 --classes a,b with --image-size or --columns, or --data"
            raise mistake("labelskew new federation", "without --data, number of silos and classes are missing", use)
        own_data = look.described(names, image_size or 64, columns, label)
    elif image_size is not None or columns is not None:
        option = "--columns" if image_size is None else "--image-size"
        raise mistake(option, "describes data on other machines, but --data is given", "only one of the two")
    else:
        own_data = look.look(data, label, group, names)
    commands = write.federation(own_data, out, silos, secure=secure)
    if data is not None and len(own_data.groups) < 2 and not names and own_data.dataset != "npz":
        problem = "has no groups; if these are the data of only one silo, other silos may have more classes"
        warn(f"{clean(data, 4096)}: {problem}; list all classes with --classes")
    _report(out, commands, own_data.notes)


@new_group.command("flower-app")
@OUT
@click.option(
    "--recipe",
    required=True,
    type=PATH,
    metavar="RECIPE",
    shell_complete=completion.recipes,
    help="A recipe's file, or the name of a recipe of the package.",
)
def flower_app(out: Path, recipe: Path) -> None:
    """Write a Flower app that runs RECIPE, and a README, to DIR, new or empty.

    Flower's command flwr run starts it, in a simulation or with a SuperLink and SuperNodes.
    """
    from fl_labelskew_plugins.front.new.flower_app import flower_app as write_app

    _report(out, write_app(recipe, out))


@new_group.command("method")
@click.argument("name")
@click.argument("out", metavar="[DIR]", required=False, type=FOLDER)
def method(name: str, out: Path | None) -> None:
    """Write a package with the method NAME, its recipe and its test to DIR, by default labelskew-NAME."""
    from fl_labelskew_plugins.front.new.method import package

    out = out or Path(f"labelskew-{name}")
    _report(out, package(name, out))
