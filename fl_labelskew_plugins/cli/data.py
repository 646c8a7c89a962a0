import os
import shlex
from pathlib import Path

import click
from fl_labelskew_registry import Dataset, MistakesError, RunError, catalog, mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.options import PATH, data_args, overrides
from fl_labelskew_plugins.machine.text import counted

SET = overrides("NAME's own data_args", "KEY=VALUE")


def _dataset(name: str, overrides: tuple[str, ...]) -> Dataset:
    from fl_labelskew_plugins.recipe import mistakes

    plugin = catalog.load("datasets", name)
    raw, wrong = data_args(overrides)
    params, lines = mistakes.checked(plugin.Params, raw)
    if wrong or lines:
        raise MistakesError([f"--set {line}" for line in wrong + lines])
    dataset: Dataset = plugin(params)
    return dataset


@click.group("data")
def data_group() -> None:
    """Check a data set's files, or write a small copy of one."""


@data_group.command("check")
@click.argument("name", shell_complete=completion.plugins("datasets"))
@click.argument("folder", metavar="[DIR]", required=False, type=PATH)
@click.option("--deep", is_flag=True, help="Also open every file, and list the broken ones.")
@SET
def check(name: str, folder: Path | None, *, deep: bool, overrides: tuple[str, ...]) -> None:
    """Compare the files of data set NAME with the expected ones.

    The exit code is 1 if a file is missing, differs or is broken. DIR is the value of data_args.data_cache_dir;
    default: the data set's own folder.
    """
    from fl_labelskew_plugins.data import fakes

    dataset = _dataset(name, overrides)
    place = folder or (Path(dataset.default_dir) if dataset.default_dir else None)
    if folder is not None and not os.path.exists(folder):
        raise mistake(folder, "does not exist", f"the folder of data set {name}")
    rows, copy = dataset.survey(folder), fakes.made_up(place)
    cells = [(*row[:2], "" if row[2] == "any" else row[2]) for row in rows]
    columns = 3 if any(row[2] for row in cells) else 2
    click.echo(table.plain(["what", "found", "expected"][:columns], [row[:columns] for row in cells]))
    where = f"data set {name}" + (f" in {place}" if place else "")
    if incomplete := fakes.wrong(rows, copy=copy):
        source = f"; get it from {dataset.source}" if dataset.source else ""
        listed = ", ".join(f"{part} ({state})" for part, state, _ in incomplete)
        raise RunError(f"{where}: not complete: {listed}{source}")
    broken = dataset.broken(folder) if deep else []
    for line in broken:
        click.echo(line)
    if broken:
        raise RunError(f"{where}: {counted(len(broken), 'broken file')}")
    click.echo(f"{where}: {'a small copy, ' if copy else ''}complete{', every file opened' if deep else ''}")


@data_group.command("fake")
@click.argument("name", shell_complete=completion.plugins("datasets"))
@click.option("--out", required=True, type=PATH, metavar="DIR", help="A new or empty folder.")
@click.option("--samples", "--images", type=click.IntRange(1, 20_000), help="Samples in all.  [default: a few hundred]")
@SET
def fake(name: str, out: Path, *, samples: int | None, overrides: tuple[str, ...]) -> None:
    """Write a small made-up data set that NAME reads.

    It can be learnt and is for trying recipes; results on it say nothing about the real data set. Image folders and
    tables have the real layout; data sets that torchvision downloads become one .npz file.
    """
    from fl_labelskew_plugins.data import fakes

    rows = fakes.write(_dataset(name, overrides), out, samples=samples)
    click.echo(table.plain(["what", "written"], [row[:2] for row in rows]))
    settings = [f"dataset={name}", f"data_cache_dir={out}", *(text.strip() for text in overrides)]
    sets = [f"--set {shlex.quote('data_args.' + text.removeprefix('data_args.'))}" for text in settings]
    click.echo(f"made-up data, not the real ones; to use them: labelskew run RECIPE.yaml {' '.join(sets)}")
