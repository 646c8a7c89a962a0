"""``labelskew report``: tables and a page over finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import LabelSkewError, MistakesError, mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.exits import guarded, writing
from fl_labelskew_plugins.cli.options import FILE, PATH
from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.machine.text import clean

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "csv", "markdown", "latex")
FEDAVG = "fedavg"
SIZES = {
    **{"icml": 3.25, "icml-wide": 6.75, "neurips": 5.5, "ieee": 3.5, "ieee-wide": 7.16, "acm": 3.33, "acm-wide": 7.0},
    **{"lncs": 4.8, "cvpr": 3.25, "cvpr-wide": 6.875},
}
"""Widths of a column, or with ``-wide`` of both and the gap between them, in inches.

icml2025.sty: textwidth 6.75in, columnsep 0.25in. neurips_2025.sty: textwidth=5.5in; ICLR's is the same. IEEE Author
Center: 3.5 and 7.16 inches; IEEEtran.cls has 43pc. acmart.cls, sigconf: columnwidth 241.147pt, textwidth 506.295pt.
llncs.cls, as ECCV and MICCAI have it: textwidth 12.2cm. cvpr.sty: textwidth 6.875in, columns of 3.25in.
"""


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
@click.option("--plot", type=FILE, metavar="FILE", help="Also draw the accuracies: a .png, .pdf or .svg file.")
@click.option(
    "--size", type=click.Choice([*SIZES]), help="With --plot: width and letters of a paper's column, or of its page."
)
@guarded
def report_command(
    runs: tuple[Path, ...],
    last: int,
    baseline: str,
    form: str,
    html: Path | None,
    plot: Path | None,
    size: str | None,
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
    from fl_labelskew_plugins.plots import SUFFIXES, compare
    from fl_labelskew_plugins.recipe.mistakes import unknown
    from fl_labelskew_plugins.studies import report

    if plot is None and size:
        raise mistake(f"--size {size}", "there is no picture", "it with --plot FILE")
    if plot is not None and plot.suffix.lower() not in SUFFIXES:
        raise mistake(
            f"--plot {clean(plot)}", "no such kind of picture", f"a name that ends in {' or '.join(SUFFIXES)}"
        )
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
            with writing(plot):
                compare(report.curves(rows), plot, methods=report.methods(rows), width=SIZES[size] if size else None)
        if html is not None:
            from fl_labelskew_plugins.studies.page import page

            with writing(html):
                write_text(html, page(rows, last=last, baseline=baseline))
    if missing:
        raise MistakesError(missing)
