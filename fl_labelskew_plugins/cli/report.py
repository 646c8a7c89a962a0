"""``labelskew report``: a table over finished runs."""

from __future__ import annotations

from pathlib import Path

import click
from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.exits import guarded

FORMATS = {"table": table.plain, "csv": table.comma_separated, "markdown": table.markdown}


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--last", default=5, show_default=True, type=click.IntRange(1), help="Tests that a mean is taken over.")
@click.option("--format", "form", default="table", show_default=True, type=click.Choice(list(FORMATS)))
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Also draw the accuracies, as PNG.")
@guarded
def report_command(runs: tuple[Path, ...], last: int, form: str, plot: Path | None) -> None:
    """Compare run folders; RUNS that differ only in their seed share a row, as mean and std over the seeds."""
    from fl_labelskew_plugins import report

    found, missing = report.read_all(runs)
    if found:
        groups = report.grouped(found)
        head, rows = report.table(groups, last, split=form == "csv")
        click.echo(FORMATS[form](head, rows))
        if plot is not None:
            from fl_labelskew_plugins.plots import compare

            try:
                compare(report.curves(groups), plot)
            except OSError as error:
                raise LabelSkewError(f"{plot}: cannot be written: {error.strerror}") from None
    if missing:
        raise MistakesError(missing)
