from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from fl_labelskew_registry import MistakesError, mistake

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import FILE, PATH
from fl_labelskew_plugins.machine.files import write_text, writing
from fl_labelskew_plugins.machine.text import clean, comma_separated

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "csv", "markdown", "latex")
DROPPED_FIRST = (
    *("peak GPU MB", "peak MB", "s/round", "MB down", "MB up", "spread", "own tests", "local model", "rounds", "pairs"),
    *("worst client", "rounds to baseline", "rank", "data", "difference", "personalised", "best"),
)


def shown(rows: DataFrame, form: str, columns: Sequence[str] = (), *, pivot: bool = False) -> str:
    """The table in one of :data:`FORMATS`."""
    from fl_labelskew_plugins.studies import printed

    texts, marks = printed.texts(rows, columns, split=form == "csv"), printed.marks(rows, columns)
    words = 1 if pivot else len(texts.columns.intersection(printed.WORDS))
    if pivot:
        texts = printed.pivoted(rows, texts, "" if form == "csv" else "-")
        marks = printed.pivoted(rows, marks, 0).assign(method=0)
    head, cells, styles = texts.columns.tolist(), texts.to_numpy().tolist(), marks.to_numpy().tolist()
    if form == "csv":
        return comma_separated(head, cells)
    if form == "latex":
        return table.latex(head, cells, styles, words)
    if form == "markdown":
        return table.markdown(head, cells, styles, words)
    # without a global test set, differences between clients matter more than ranks
    least = sorted(DROPPED_FIRST, key=("worst client", "spread").__contains__) if "test" in texts else DROPPED_FIRST
    return table.plain(head, cells, styles, words=words, least=() if columns or pivot else least)


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    return [name.strip() for name in (value or "").split(",") if name.strip()]


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--last", default=5, show_default=True, type=click.IntRange(1), help="Number of last tests to average.")
@click.option(
    "--baseline", default="fedavg", show_default=True, metavar="NAME", help="Method or row to compare the others with."
)
@click.option("--only", multiple=True, metavar="NAME", help="Show only this method, partition or data; repeatable.")
@click.option("--columns", metavar="NAME,NAME", callback=_names, help="Columns of numbers to show, in this order.")
@click.option("--pivot", is_flag=True, help="Show a row per method and a column per partition.")
@click.option("--format", "form", default="table", show_default=True, type=click.Choice(FORMATS), help="Table format.")
@click.option("--html", type=FILE, metavar="FILE", help="Also write a self-contained page with tables and curves.")
@click.option("--plot", type=FILE, metavar="FILE", help="Also draw the accuracies: a .png, .pdf or .svg file.")
@click.option(
    "--diagnostic", metavar="NAME", help="With --plot: draw this recorded diagnostic instead of the accuracies."
)
@click.option("--width", type=click.FloatRange(1, 50), metavar="INCHES", help="With --plot: width of a paper's column.")
def report_command(
    runs: tuple[Path, ...],
    last: int,
    baseline: str,
    only: tuple[str, ...],
    columns: list[str],
    pivot: bool,
    form: str,
    html: Path | None,
    plot: Path | None,
    diagnostic: str | None,
    width: float | None,
) -> None:
    """Compare finished runs, as a table, a picture or a page.

    RUNS that differ only in their seed share a row, as mean and std over the seeds. A folder may contain several run
    folders. Accuracies are in per cent; docs/sweeps.md describes rows, columns and marks. A terminal shows the columns
    that fit, a file or pipe all.

    \b
    labelskew report runs/sweep_digits --only fedavg --only fedlc
    labelskew report runs/sweep_digits --columns accuracy,difference
    labelskew report runs/sweep_digits --pivot --format latex > table.tex
    labelskew report runs/sweep_digits --plot drift.pdf --diagnostic client_drift
    """  # noqa: D301  # a backspace keeps lines unwrapped
    from fl_labelskew_plugins import plots
    from fl_labelskew_plugins.recipe.mistakes import unknown
    from fl_labelskew_plugins.recipe.sections import DiagnosticName
    from fl_labelskew_plugins.studies import diagnosed, finished, printed, report

    for option, value in (("--width", width), ("--diagnostic", diagnostic)):
        if plot is None and value:
            raise mistake(f"{option} {clean(value)}", "needs --plot", "it with --plot FILE")
    if plot is not None and plot.suffix.lower() not in plots.SUFFIXES:
        use = f"a name that ends in {' or '.join(plots.SUFFIXES)}"
        raise mistake(f"--plot {clean(plot)}", "unsupported picture format", use)
    names = get_args(DiagnosticName)
    wrong = [f"--diagnostic: {unknown(diagnostic, names)}"] if diagnostic not in (None, *names) else []
    wrong += [f"--columns: {unknown(name, printed.MEASURES)}" for name in columns if name not in printed.MEASURES]
    if wrong:
        raise MistakesError(wrong)
    columns = columns or ["accuracy"] * pivot
    read, missing = finished.read_all(runs)
    if read:
        all_rows = report.rows(finished.grouped(read), last, baseline)
        rows = report.only(all_rows, only)
        if pivot and not rows["complete"].any():
            raise mistake("--pivot", "needs at least one completed run", "the table without it")
        click.echo(shown(rows, form, columns, pivot=pivot))
        for note in report.notes(all_rows, read, last):
            click.echo(note, err=True)
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
