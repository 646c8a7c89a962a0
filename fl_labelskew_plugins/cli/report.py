"""``labelskew report``: tables and a page over finished runs."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import MistakesError, mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.exits import guarded, writing
from fl_labelskew_plugins.cli.options import FILE, PATH
from fl_labelskew_plugins.machine.files import replacing, write_text
from fl_labelskew_plugins.machine.text import clean, counted

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "csv", "markdown", "latex")
SUFFIXES = {".csv": "csv", ".md": "markdown", ".tex": "latex", ".parquet": "parquet"}
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
MATRIX = 12
"""Classes of a confusion matrix that 80 letters have room for."""
LEAST = (
    *("peak GPU MB", "peak MB", "s/round", "MB down", "MB up", "spread", "own tests", "local model", "rounds", "pairs"),
    *("worst client", "seeds needed", "rounds to baseline", "best", "rank", "data", "difference", "personalised"),
)
"""Columns that a narrow terminal goes without, the least important first."""


def shown(rows: DataFrame, form: str, columns: Sequence[str] = (), *, pivot: bool = False, room: int = 0) -> str:
    """The table in one of :data:`FORMATS`; for a terminal of ``room`` letters, with what has room there."""
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
    head, cells = table.aligned(head, cells, words)
    if not room:
        return table.plain(head, cells, wrap=False)
    names = texts.columns.tolist()
    # without a global test, the clients' differences matter more than ranks
    least = sorted(LEAST, key=("worst client", "spread").__contains__) if "test" in names else LEAST
    stay = range(len(head)) if columns or pivot else table.fitting(names, cells, least, room)
    head, *lines = [[row[i] for i in stay] for row in (head, *cells, *styles)]
    text = table.plain(head, lines[: len(cells)], lines[len(cells) :], wrap=False)
    left_out = ", ".join(name for i, name in enumerate(names) if i not in stay)
    note = f"left out for want of room: {left_out}; a wider terminal, or a pipe, has them"
    return "\n".join([text, *textwrap.wrap(note, room)]) if left_out else text


def confusions(rows: DataFrame) -> list[str]:
    """For each row with a confusion matrix its text, 80 letters wide; of many classes the pairs confused most.

    Raises:
        LabelSkewError: no row has one.
    """
    from fl_labelskew_plugins.studies.confused import summed

    matrices = [summed(runs) for runs in rows["runs"]]
    if not any(matrices):
        use = "runs that this version has finished, or `labelskew evaluate RUN DATA`"
        raise mistake("--confusion", "no run has a confusion.csv", use)
    texts = []
    for label, setting, matrix in zip(rows["label"], rows["setting"], matrices, strict=True):
        if matrix is None:
            texts.append(f"{label}, {setting}: no confusion.csv")
            continue
        samples = f"{counted(int(matrix.counts.sum()), 'test sample')} of {counted(matrix.runs, 'run')}"
        if len(matrix.names) > MATRIX:
            title = f"most confused classes of {len(matrix.names)}, final model, {samples}"
            head = ["class", "predicted as", "samples", "% of the class"]
            cells = [[label, said, str(n), f"{share:.1f}"] for label, said, n, share in matrix.pairs()]
        else:
            title = f"final model, {samples}; % of a class (row) predicted as (column)"
            width = 76 - 5 * len(matrix.names)
            names = [
                clean(str(number) if name == str(number) else f"{number} {name}", width)
                for number, name in enumerate(matrix.names)
            ]
            head = ["", *(f"{number:>3}" for number in range(len(names)))]
            shares = zip(names, matrix.shares.tolist(), strict=True)
            cells = [[name, *("  ." if math.isnan(v) else f"{v:3.0f}" for v in values)] for name, values in shares]
        texts.append(
            "\n".join([*textwrap.wrap(f"{label}, {setting}: {title}", 80), table.plain(head, cells, wrap=False)])
        )
    return texts


def room() -> int:
    """Letters of a line on the terminal; 0 where the table goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def check_save(path: Path) -> None:
    """Raise LabelSkewError where a table cannot be saved under this name."""
    if path.suffix.lower() not in SUFFIXES:
        raise mistake(f"--save {clean(path)}", "no such kind of table", f"a name that ends in {' or '.join(SUFFIXES)}")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            install = "pip install 'fl-labelskew-plugins[parquet]', or --save FILE.csv"
            raise mistake(f"--save {clean(path)}", "needs pyarrow, which is not installed", install) from None


def check_plot(path: Path | None, size: str | None, diagnostic: str | None) -> None:
    """Raise LabelSkewError if a picture cannot be drawn under this name, or options of one are there without it."""
    from fl_labelskew_plugins.plots import SUFFIXES as PICTURES
    from fl_labelskew_plugins.studies import diagnosed

    for option, value in (("--size", size), ("--diagnostic", diagnostic)):
        if path is None and value:
            raise mistake(f"{option} {clean(value)}", "there is no picture", "it with --plot FILE")
    if path is not None and path.suffix.lower() not in PICTURES:
        allowed = f"a name that ends in {' or '.join(PICTURES)}"
        raise mistake(f"--plot {clean(path)}", "no such kind of picture", allowed)
    if diagnostic is not None:
        diagnosed.check(diagnostic)


def draw(rows: DataFrame, path: Path, size: str | None, diagnostic: str | None) -> None:
    """Draw the rows' accuracies, or a diagnostic."""
    from fl_labelskew_plugins.plots import compare
    from fl_labelskew_plugins.runs.measure import GLOBAL, NAMED
    from fl_labelskew_plugins.studies import diagnosed, report

    width = SIZES[size] if size else None
    with writing(path):
        if diagnostic is None:
            of_clients = rows["test"].nunique() == 1 and rows["test"][0] != NAMED[GLOBAL].name
            tested = rows["test"][0] if of_clients else ""  # of several, names of settings say it
            compare(report.curves(rows), path, methods=report.methods(rows), width=width, tested=tested)
        else:
            diagnosed.plot(rows, diagnostic, path, width=width)


def save(rows: DataFrame, path: Path, columns: Sequence[str], *, pivot: bool) -> None:
    """Write the table in the form that the file's suffix says; Parquet holds the numbers themselves."""
    from fl_labelskew_plugins.studies import printed

    form = SUFFIXES[path.suffix.lower()]
    if form != "parquet":
        write_text(path, shown(rows, form, columns, pivot=pivot) + "\n")
        return
    numbers = printed.numbers(rows, columns)
    with replacing(path) as part:
        (printed.pivoted(rows, numbers, float("nan")) if pivot else numbers).to_parquet(part, index=False)


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
@click.option("--save", "file", type=FILE, metavar="FILE", help="Also write the table: .csv, .md, .tex or .parquet.")
@click.option(
    "--html", type=FILE, metavar="FILE", help="Also write a page with curves and heat maps, complete in itself."
)
@click.option("--confusion", is_flag=True, help="Also print the final models' confusion matrices.")
@click.option("--plot", type=FILE, metavar="FILE", help="Also draw the accuracies: a .png, .pdf or .svg file.")
@click.option(
    "--diagnostic",
    metavar="NAME",
    help="With --plot: draw this diagnostic, which the runs have recorded, instead of the accuracies.",
)
@click.option(
    "--size",
    type=click.Choice([*SIZES]),
    metavar="VENUE",
    help=f"With --plot: width and letters of a paper's column, or with -wide of its page: {', '.join(SIZES)}.",
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
    size: str | None,
    confusion: bool,
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
    where that leaves 0 out. Seeds needed: to see one of that size in 8 of 10 studies.

    The best of a setting is bold, the second best underlined, in LaTeX (booktabs, siunitx) and Markdown in italics. A
    terminal gets the columns that it has room for, a file or pipe all.

    \b
    labelskew report runs/sweep_digits --only fedavg --only fedlc
    labelskew report runs/sweep_digits --columns accuracy,difference
    labelskew report runs/sweep_digits --pivot --save table.tex
    labelskew report runs/sweep_digits --plot drift.pdf --diagnostic client_drift
    """  # noqa: D301  # click reads the backspace as "leave these lines as they are"
    from fl_labelskew_plugins.recipe.mistakes import unknown
    from fl_labelskew_plugins.studies import printed, report

    check_plot(plot, size, diagnostic)
    if file is not None:
        check_save(file)
    if wrong := [f"--columns: {unknown(name, printed.MEASURES)}" for name in columns if name not in printed.MEASURES]:
        raise MistakesError(wrong)
    if confusion and form != "table":
        raise mistake(f"--format {form}", "--confusion prints text", "--format table")
    columns = columns or ["accuracy"] * pivot
    read, missing = report.read_all(runs)
    if read:
        every = report.rows(report.grouped(read), last, baseline)
        rows = report.only(every, only)
        if pivot and not rows["whole"].any():
            raise mistake("--pivot", "no run has all its rounds yet", "the table without it")
        click.echo(shown(rows, form, columns, pivot=pivot, room=room()))
        if confusion:
            click.echo("".join(f"\n{text}\n" for text in confusions(rows)), nl=False)
        for note in report.notes(every, read):
            click.echo(note, err=True)
        if file is not None:
            with writing(file):
                save(rows, file, columns, pivot=pivot)
        if plot is not None:
            draw(rows, plot, size, diagnostic)
        if html is not None:
            from fl_labelskew_plugins.studies.page import page

            with writing(html):
                write_text(html, page(rows, last=last, baseline=baseline))
    if missing:
        raise MistakesError(missing)
