"""``labelskew report``: tables and a page over finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.exits import guarded, writing
from fl_labelskew_plugins.cli.options import FILE, PATH
from fl_labelskew_plugins.machine.files import write_text

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "csv", "markdown", "latex")
FEDAVG = "fedavg"


def shown(rows: DataFrame, form: str) -> str:
    """The table in one of :data:`FORMATS`."""
    from fl_labelskew_plugins.studies import report

    texts = report.texts(rows, split=form == "csv")
    head, cells = texts.columns.tolist(), texts.to_numpy().tolist()
    if form == "latex":
        return table.latex(head, cells, report.marks(rows).to_numpy().tolist())
    return {"table": table.plain, "csv": table.comma_separated, "markdown": table.markdown}[form](head, cells)


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=PATH, shell_complete=completion.runs)
@click.option("--last", default=5, show_default=True, type=click.IntRange(1), help="Tests that a mean is taken over.")
@click.option(
    "--baseline", default=FEDAVG, show_default=True, metavar="METHOD", help="Method whose best is to be reached."
)
@click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(FORMATS), help="Form of the table."
)
@click.option(
    "--html", type=FILE, metavar="FILE", help="Also write a page with curves and heat maps, complete in itself."
)
@click.option("--plot", type=FILE, metavar="FILE", help="Also draw the accuracies, as PNG.")
@guarded
def report_command(
    runs: tuple[Path, ...], last: int, baseline: str, form: str, html: Path | None, plot: Path | None
) -> None:
    """Compare finished runs, as a table, a picture or a page.

    RUNS that differ only in their seed share a row, as mean and std over the seeds. A folder that holds run folders
    stands for all of them. Accuracies are in per cent, over the last tests; ranks are by mean accuracy on the same data
    and partition; MB are what all clients of a round send and get; peak MB is the most memory that the server's process
    held. A run that has not all its rounds, as it diverged or is under way, is left out of a row that has whole ones,
    and has no rank where it is alone. Personalised is the accuracy of clients' own models on their own test splits,
    local model that of the models that clients have just trained, where a method keeps no others; the latter is not
    compared. With --format latex the best is bold, the second best underlined.
    """
    from fl_labelskew_plugins.recipe.mistakes import unknown
    from fl_labelskew_plugins.studies import report

    read, missing = report.read_all(runs)
    if read:
        rows = report.rows(report.grouped(read), last, baseline)
        methods = sorted(set(rows["method"]))
        if baseline not in (*methods, FEDAVG):
            raise LabelSkewError(f"--baseline: {unknown(baseline, methods)}")
        click.echo(shown(rows, form))
        for note in report.notes(rows, read):
            click.echo(note, err=True)
        if plot is not None:
            from fl_labelskew_plugins.plots import compare

            with writing(plot):
                compare(report.curves(rows), plot)
        if html is not None:
            from fl_labelskew_plugins.studies.page import page

            with writing(html):
                write_text(html, page(rows, last=last, baseline=baseline))
    if missing:
        raise MistakesError(missing)
