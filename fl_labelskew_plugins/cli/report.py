"""``labelskew report``: tables and a page over finished runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import MistakesError, mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.exits import guarded, writing
from fl_labelskew_plugins.cli.options import FILE, PATH
from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.machine.text import clean

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "csv", "markdown", "latex")
SUFFIXES = {".csv": "csv", ".md": "markdown", ".tex": "latex"}
FEDAVG = "fedavg"
LEAST = (
    *("peak GPU MB", "peak MB", "s/round", "MB down", "MB up", "spread", "own tests", "local model", "rounds", "pairs"),
    *("worst client", "rounds to baseline", "best", "rank", "data", "difference", "personalised"),
)
"""Columns that a narrow terminal goes without, the least important first."""


def shown(rows: DataFrame, form: str, columns: Sequence[str] = (), *, pivot: bool = False) -> str:
    """The table in one of :data:`FORMATS`; a plain one has the columns that the terminal has room for."""
    from fl_labelskew_plugins.studies import printed

    texts, marks = printed.texts(rows, columns, split=form == "csv"), printed.marks(rows, columns)
    words = 1 if pivot else len(texts.columns.intersection(printed.WORDS))
    if pivot:
        texts = printed.pivoted(rows, texts, "" if form == "csv" else "-")
        marks = printed.pivoted(rows, marks, 0).assign(method=0)
    head, cells, styles = texts.columns.tolist(), texts.to_numpy().tolist(), marks.to_numpy().tolist()
    if form == "csv":
        return table.comma_separated(head, cells)
    if form == "latex":
        return table.latex(head, cells, styles, words)
    if form == "markdown":
        return table.markdown(head, cells, styles, words)
    # without a global test, the clients' differences matter more than ranks
    least = sorted(LEAST, key=("worst client", "spread").__contains__) if "test" in texts.columns else LEAST
    limit = 0 if sys.stdout.isatty() else sys.maxsize  # whatever COLUMNS says, for whoever reads a pipe
    return table.plain(head, cells, styles, words=words, least=() if columns or pivot else least, limit=limit)


def check_save(path: Path) -> None:
    """Raise LabelSkewError where a table cannot be saved under this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise mistake(f"--save {clean(path)}", "no such kind of table", f"a name that ends in {' or '.join(SUFFIXES)}")


def check_plot(path: Path | None, width: float | None, diagnostic: str | None) -> None:
    """Raise LabelSkewError if a picture cannot be drawn under this name, or options of one are there without it."""
    from fl_labelskew_plugins.plots import SUFFIXES as PICTURES
    from fl_labelskew_plugins.studies import diagnosed

    for option, value in (("--width", width), ("--diagnostic", diagnostic)):
        if path is None and value:
            raise mistake(f"{option} {clean(value)}", "there is no picture", "it with --plot FILE")
    if path is not None and path.suffix.lower() not in PICTURES:
        allowed = f"a name that ends in {' or '.join(PICTURES)}"
        raise mistake(f"--plot {clean(path)}", "no such kind of picture", allowed)
    if diagnostic is not None:
        diagnosed.check(diagnostic)


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    return [name.strip() for name in (value or "").split(",") if name.strip()]


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=PATH, shell_complete=completion.runs)
@click.option("--last", default=5, show_default=True, type=click.IntRange(1), help="Tests that a mean is taken over.")
@click.option(
    "--baseline",
    default=FEDAVG,
    show_default=True,
    metavar="NAME",
    help="Method, or row by its name, whose best is to be reached and that others differ from.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Show this method, partition or data alone; repeatable.")
@click.option("--columns", metavar="NAME,NAME", callback=_names, help="Columns of numbers to show, in this order.")
@click.option("--pivot", is_flag=True, help="A row for each method, a column for each partition.")
@click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(FORMATS), help="Form of the table."
)
@click.option("--save", "file", type=FILE, metavar="FILE", help="Also write the table: .csv, .md or .tex.")
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page with tables and curves, complete in itself.")
@click.option("--plot", type=FILE, metavar="FILE", help="Also draw the accuracies: a .png, .pdf or .svg file.")
@click.option(
    "--diagnostic",
    metavar="NAME",
    help="With --plot: draw this diagnostic, which the runs have recorded, instead of the accuracies.",
)
@click.option(
    "--width",
    type=click.FloatRange(1, 50),
    metavar="INCHES",
    help="With --plot: width of a paper's column, with letters of 7 and 8 points.",
)
@guarded
def report_command(
    runs: tuple[Path, ...],
    last: int,
    baseline: str,
    only: tuple[str, ...],
    columns: list[str],
    pivot: bool,
    form: str,
    file: Path | None,
    html: Path | None,
    plot: Path | None,
    diagnostic: str | None,
    width: float | None,
) -> None:
    """Compare finished runs, as a table, a picture or a page.

    RUNS that differ only in their seed share a row, as mean and std over the seeds. A folder that holds run folders
    stands for all of them. Accuracies are in per cent, over the last tests; ranks are by mean accuracy on the same data
    and partition; MB are what all clients of a round send and get; peak MB is the most memory that the server's process
    held. A run that has not all its rounds, as it diverged or is under way, is left out of a row that has whole ones,
    and has no rank where it is alone. Personalised is the accuracy of clients' own models on their own test splits,
    local model that of the models that clients have just trained, where a method keeps no others; the latter is not
    compared.

    Difference is the accuracy's from the baseline's, paired by seed, with a 95 % interval; it is called better or worse
    where that leaves 0 out.

    The best of a setting is bold, the second best underlined, in LaTeX (booktabs) and Markdown in italics. A
    terminal gets the columns that it has room for, a file or pipe all.

    \b
    labelskew report runs/sweep_digits --only fedavg --only fedlc
    labelskew report runs/sweep_digits --columns accuracy,difference
    labelskew report runs/sweep_digits --pivot --save table.tex
    labelskew report runs/sweep_digits --plot drift.pdf --diagnostic client_drift
    """  # noqa: D301  # click reads the backspace as "leave these lines as they are"
    from fl_labelskew_plugins.recipe.mistakes import unknown
    from fl_labelskew_plugins.studies import diagnosed, printed, report

    check_plot(plot, width, diagnostic)
    if file is not None:
        check_save(file)
    if wrong := [f"--columns: {unknown(name, printed.MEASURES)}" for name in columns if name not in printed.MEASURES]:
        raise MistakesError(wrong)
    columns = columns or ["accuracy"] * pivot
    read, missing = report.read_all(runs)
    if read:
        every = report.rows(report.grouped(read), last, baseline)
        rows = report.only(every, only)
        if pivot and not rows["whole"].any():
            raise mistake("--pivot", "no run has all its rounds yet", "the table without it")
        click.echo(shown(rows, form, columns, pivot=pivot))
        for note in report.notes(every, read):
            click.echo(note, err=True)
        if file is not None:
            with writing(file):
                write_text(file, shown(rows, SUFFIXES[file.suffix.lower()], columns, pivot=pivot) + "\n")
        if plot is not None:
            with writing(plot):
                if diagnostic is None:
                    report.plot(rows, plot, width)
                else:
                    diagnosed.plot(rows, diagnostic, plot, width=width)
        if html is not None:
            from fl_labelskew_plugins.studies.page import page

            with writing(html):
                write_text(html, page(rows, last=last, baseline=baseline))
    if missing:
        raise MistakesError(missing)
