"""``labelskew convert``: convert a FedML configuration to a recipe."""

from __future__ import annotations

import os
from pathlib import Path

import click
from fl_labelskew_registry import mistake

from fl_labelskew_plugins.cli.exits import writing
from fl_labelskew_plugins.cli.options import PATH
from fl_labelskew_plugins.machine.files import write_text


@click.command("convert")
@click.argument("file", type=PATH)
@click.option("--out", type=PATH, metavar="RECIPE.yaml", help="Write the recipe to this new file.  [default: stdout]")
def convert_command(file: Path, out: Path | None) -> None:
    """Convert a FedML configuration, such as fedml_config.yaml, to a recipe.

    The command copies all keys that recipes also have. For each other key, and for each value that is still missing, it
    prints a line on stderr with what to do, and the exit code is 2.
    """
    from fl_labelskew_plugins.recipe import parse
    from fl_labelskew_plugins.recipe.convert import convert

    if out is not None and os.path.lexists(out):
        raise mistake(f"--out {out}", "exists already", "another file")
    converted = convert(parse.read_text(file), file)
    name = Path("recipe.yaml") if out is None else out
    text = converted.text(str(name))
    if out is None:
        click.echo(text, nl=False)
    else:
        with writing(out):
            write_text(out, text)
    for line in converted.notes:
        click.echo(f"{file}: {line}", err=True)
    parse.parse(text, source=name)
