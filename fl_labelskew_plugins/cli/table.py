"""Tables as plain text, CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
import shutil
import textwrap
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def plain(head: Sequence[str], rows: Rows) -> str:
    """Columns under a head; the last one wraps at the terminal's width."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    left = sum(widths) + 2 * len(widths)
    room = max(shutil.get_terminal_size((120, 24)).columns - left, 24)
    lines = []
    for row in (head, *rows):
        first, *more = textwrap.wrap(row[-1], room) or [""]
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, first]).rstrip())
        lines += [" " * left + line for line in more]
    return "\n".join(lines)


def markdown(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def comma_separated(head: Sequence[str], rows: Rows) -> str:
    """CSV with a head."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().rstrip("\n")


LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "±": "$\\pm$",
    }
)


def latex(head: Sequence[str], rows: Rows, marks: Sequence[Sequence[int]]) -> str:
    """A tabular of the package booktabs; ``marks``: 1 is bold, 2 is underlined."""

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(cells)} \\\\"

    forms = ("{}", "\\textbf{{{}}}", "\\underline{{{}}}")
    body = [
        line([forms[mark].format(cell.translate(LATEX)) for cell, mark in zip(row, row_marks, strict=True)])
        for row, row_marks in zip(rows, marks, strict=True)
    ]
    start = f"\\begin{{tabular}}{{{'l' * len(head)}}}"
    middle = ["\\toprule", line([cell.translate(LATEX) for cell in head]), "\\midrule", *body, "\\bottomrule"]
    return "\n".join(["% \\usepackage{booktabs}", start, *middle, "\\end{tabular}"])
