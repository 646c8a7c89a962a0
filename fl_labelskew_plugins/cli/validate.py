"""``labelskew validate``: every mistake of every file, without building anything."""

from __future__ import annotations

from pathlib import Path

import click

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.cli.options import PATH, SET


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=PATH)
@SET
@guarded
def validate_command(files: tuple[Path, ...], overrides: tuple[str, ...]) -> None:
    """Check recipes and silos' own files; all mistakes of all FILES are shown, and the exit code is 2 if there are any.

    A silo's own file is checked with the recipes in its folder whose client_specific_args.data_silo_config names it.
    """
    from fl_labelskew_plugins.recipe.parse import RecipeError, check

    found: list[str] = []
    for file in files:
        try:
            click.echo(f"{file}: {check(file, overrides)}")
        except RecipeError as error:
            found += error.mistakes
    if found:
        raise RecipeError(found)
