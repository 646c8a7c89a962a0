"""``labelskew validate``: every mistake of every file, without building anything."""

from __future__ import annotations

from pathlib import Path

import click

from fl_labelskew_plugins.cli.exits import guarded


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a value; repeatable.")
@guarded
def validate_command(files: tuple[Path, ...], overrides: tuple[str, ...]) -> None:
    """Check recipes and silos' own files; all mistakes of all FILES are shown, and the exit code is 2 if there are any.

    A silo's own file is checked with the recipes in its folder whose client_specific_args.data_silo_config names it.
    """
    from fl_labelskew_plugins.recipe.mistakes import RecipeError
    from fl_labelskew_plugins.recipe.parse import check

    found: list[str] = []
    for file in files:
        try:
            click.echo(f"{file}: {check(file, overrides)}")
        except RecipeError as error:
            found += error.mistakes
    if found:
        raise RecipeError(found)
