from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins.cli.options import HOST, PATH, SET
from fl_labelskew_plugins.machine.text import few

if TYPE_CHECKING:
    from fl_labelskew_plugins.recipe.tables import RecipeTable


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=PATH)
@SET
@HOST
def validate_command(files: tuple[Path, ...], overrides: tuple[str, ...], host: str | None) -> None:
    """Check recipes, tables of them and silos' own files.

    All mistakes of all FILES are shown, and the exit code is 2 if there are any. A table is checked row by row. A
    silo's own file is checked with the recipes in its folder whose client_specific_args.data_silo_config names it.
    """
    from fl_labelskew_plugins.recipe import parse, tables

    wrong: list[str] = []
    for file in files:
        try:
            text = parse.read_text(file)
            if tables.is_table(text):
                click.echo(f"{file}: ok, {_check_rows(tables.read(file), overrides, host)} recipes")
            else:
                click.echo(f"{file}: {parse.check(file, overrides, host)}")
        except LabelSkewError as error:
            wrong += error.mistakes if isinstance(error, MistakesError) else [f"{file}: {error}"]
    if wrong:
        raise MistakesError(wrong)


def _check_rows(table: RecipeTable, overrides: tuple[str, ...], host: str | None) -> int:
    from fl_labelskew_plugins.recipe import compatibility, parse

    wrong: dict[str, list[str]] = {}
    for name in table.cells:
        try:
            recipe = parse.parse(table.text(name, name), source=name, overrides=overrides)
            compatibility.hosted(recipe, host)
        except LabelSkewError as error:
            for line in error.mistakes if isinstance(error, MistakesError) else [str(error)]:
                wrong.setdefault(line.removeprefix(f"{name}: "), []).append(name)
    if wrong:
        raise MistakesError([f"{table.path}: {few(names, 4)}: {line}" for line, names in wrong.items()])
    return len(table.cells)
