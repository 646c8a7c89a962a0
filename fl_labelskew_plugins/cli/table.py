"""Tables as plain text, CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fl_labelskew_plugins.machine.text import clean, csv_cell, room, wrapped

Rows = Sequence[Sequence[str]]
Marks = Sequence[Sequence[int]]
"""Of each cell: 1 for the best of its kind, 2 for the second, 0 for others."""
STYLES = ("", "bold", "underline")
LONGEST = 4096
"""Letters of a cell."""


def plain(
    head: Sequence[str],
    rows: Rows,
    marks: Marks = (),
    *,
    words: int | None = None,
    least: Sequence[str] = (),
    limit: int = 0,
) -> str:
    """Columns under a head, in lines that fit the terminal; in a pipe or a file, one line per row.

    Cells wrap at spaces. If that is not enough, columns are dropped, which a line below names. If that is not enough
    either, the columns continue in further tables below, after the first column.

    Args:
        head: names of the columns.
        rows: the cells; control characters are replaced.
        marks: of each cell; 1 is bold, 2 is underlined.
        words: columns of text; those behind them are flush right and do not wrap. Default: all.
        least: columns that may be dropped, the least important one first.
        limit: letters of a line, in place of :func:`.machine.text.room`.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    limit = limit or room()
    styles = [[0] * len(head), *(marks or [[0] * len(head)] * len(rows))]
    cells = [
        [Text.assemble((clean(cell, LONGEST), STYLES[mark])) for cell, mark in zip(row, of_row, strict=True)]
        for row, of_row in zip((head, *rows), styles, strict=True)
    ]
    console = Console(file=io.StringIO(), width=limit, force_terminal=True, color_system="standard")

    def block(columns: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for i in columns:
            if words is None or i < words:
                table.add_column(overflow="fold")
            else:
                table.add_column(justify="right", min_width=max(row[i].cell_len for row in cells))
        for row in cells:
            table.add_row(*(row[i] for i in columns))
        return table

    def fits(columns: Sequence[int]) -> bool:
        return Measurement.get(console, console.options.update_width(10**6), block(columns)).minimum <= limit

    shown = list(range(len(head)))
    for name in least:
        if fits(shown):
            break
        shown = [i for i in shown if head[i] != name]
    blocks = [shown[:1]]
    for i in shown[1:]:
        if len(blocks[-1]) > 1 and not fits([*blocks[-1], i]):
            blocks.append(shown[:1])
        blocks[-1].append(i)
    texts = []
    for columns in blocks:
        table = block(columns)
        console.width = min(limit, Measurement.get(console, console.options.update_width(10**6), table).maximum)
        with console.capture() as captured:
            console.print(table)
        texts.append("\n".join(line.rstrip() for line in captured.get().splitlines()))
    dropped = ", ".join(name.strip() for i, name in enumerate(head) if i not in shown)
    note = f"\n{wrapped(f'columns not shown: {dropped} (a wider terminal or a pipe has them)')}" if dropped else ""
    return "\n\n".join(texts) + note


MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\|*_<`["})


def markdown(head: Sequence[str], rows: Rows, marks: Marks = (), words: int | None = None) -> str:
    """A Markdown table.

    Args:
        head: names of the columns.
        rows: the cells.
        marks: of each cell; 1 is bold, 2 is in italics.
        words: columns of anybody's words, whose signs mean nothing in Markdown; those behind them are flush right.
    """
    count = len(head) if words is None else words
    signs = ("", "**", "*")
    lines = []
    for row, styles in zip(rows, marks or [[0] * len(head)] * len(rows), strict=True):
        cells = [cell.translate(MARKDOWN) for cell in row[: words or 0]]
        cells += [cell.replace("|", "\\|") for cell in row[words or 0 :]]
        lines.append([f"{signs[style]}{cell}{signs[style]}" for cell, style in zip(cells, styles, strict=True)])
    rule = ["---"] * count + ["---:"] * (len(head) - count)
    names = [name.translate(MARKDOWN) for name in head]
    return "\n".join("| " + " | ".join(row) + " |" for row in (names, rule, *lines))


def comma_separated(head: Sequence[str], rows: Rows) -> str:
    """CSV with a head."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(csv_cell, row)] for row in (head, *rows))
    return text.getvalue().rstrip("\n")


LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{letter: f"{{{letter}}}" for letter in "[]*"},  # after the end of a line they would be an argument of it
        **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "|": "\\textbar{}"},
        **{"<": "$<$", ">": "$>$", "±": "$\\pm$"},
    }
)


def latex(head: Sequence[str], rows: Rows, marks: Marks, words: int) -> str:
    """A tabular of the package booktabs, from column ``words`` on flush right; of ``marks`` 1 is bold, 2 in italics."""
    fonts = ("", "\\bfseries ", "\\itshape ")
    lines = [[cell.translate(LATEX) for cell in row] for row in (head, *rows)]
    for row, styles in zip(lines[1:], marks, strict=True):
        for i, style in enumerate(styles):
            row[i] = fonts[style] + (row[i].replace("-", "$-$") if i >= words and row[i] != "-" else row[i])
    first, *body = (f"{' & '.join(row)} \\\\" for row in lines)
    form = "l" * words + "r" * (len(head) - words)
    begin = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{form}}}", "\\toprule", first, "\\midrule"]
    return "\n".join([*begin, *body, "\\bottomrule", "\\end{tabular}"])
