"""``labelskew partition``: show a partition without training."""

from __future__ import annotations

from pathlib import Path

import click

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.exits import writing
from fl_labelskew_plugins.cli.options import PATH, RECIPE, SET
from fl_labelskew_plugins.cli.survey import holdings
from fl_labelskew_plugins.machine.files import write_text


@click.command("partition")
@RECIPE
@SET
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    default=".",
    show_default="here",
    help="Folder for the heat map and the table, RECIPE-partition.png and .csv.",
)
def partition_command(recipe: Path, overrides: tuple[str, ...], out: Path) -> None:
    """Show the samples per client and class under RECIPE's partition, as table and heat map, without training."""
    from fl_labelskew_plugins.recipe.parse import load
    from fl_labelskew_plugins.surveys.survey import of_partition

    checked = load(recipe, overrides)
    survey = of_partition(checked)
    head, rows = holdings(survey)
    click.echo(table.plain(head, rows))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / f"{checked.name}-partition.csv", table.comma_separated(head, rows) + "\n")
        survey.draw(out / f"{checked.name}-partition.png")
    click.echo(f"written: {out / checked.name}-partition.png and .csv")
