"""Tables as plain text, CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
import re
import shutil
import textwrap
from collections.abc import Sequence

import click

Rows = Sequence[Sequence[str]]
Marks = Sequence[Sequence[int]]
"""Of each cell: 1 for the best of its kind, 2 for the second, 0 for others."""
STYLES: dict[int, dict[str, bool]] = {1: {"bold": True}, 2: {"underline": True}}


def plain(head: Sequence[str], rows: Rows, marks: Marks = (), *, wrap: bool = True) -> str:
    """Columns under a head; the last one wraps at the terminal's width. Of ``marks`` 1 is bold, 2 is underlined."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    left = sum(widths) + 2 * len(widths)
    room = max(shutil.get_terminal_size((120, 24)).columns - left, 24)
    lines = []
    for row, styles in zip((head, *rows), ([0] * len(head), *(marks or [[0] * len(head)] * len(rows))), strict=True):
        first, *more = (textwrap.wrap(row[-1], room) if wrap else [row[-1]]) or [""]
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        styled = [_styled(cell, style) for cell, style in zip([*cells, first], styles, strict=True)]
        lines.append("  ".join(styled).rstrip())
        lines += [" " * left + line for line in more]
    return "\n".join(lines)


def _styled(cell: str, mark: int) -> str:
    text = cell.strip()  # no line below the space around it
    return cell.replace(text, click.style(text, **STYLES[mark])) if mark else cell


CELL = re.compile(r"([-+]?\d+(?:\.\d+)?)(?: ± ([\d.]+))?( .*)?")
"""A number, its standard deviation, and what follows them."""


def aligned(head: Sequence[str], rows: Rows, words: int) -> tuple[list[str], list[list[str]]]:
    """The same cells, where from column ``words`` on numbers stand under each other at their decimal points."""
    columns = [_aligned(name, cells) for name, *cells in list(zip(head, *rows, strict=True))[words:]]
    lines = [[*row[:words], *cells] for row, cells in zip((head, *rows), zip(*columns, strict=True), strict=True)]
    return lines[0], lines[1:]


def _aligned(name: str, cells: Sequence[str]) -> list[str]:
    parts = [(match.groups("") if (match := CELL.fullmatch(cell)) else (cell, "", "")) for cell in cells]
    number, std, rest = (max((len(part[i]) for part in parts), default=0) for i in range(3))
    lines = []
    for part in parts:
        spread = f" ± {part[1]:>{std}}" if part[1] else " " * (std and std + 3)
        lines.append(f"{part[0]:>{number}}{spread}{part[2]:<{rest}}")
    width = max(map(len, (name, *lines)))
    return [line.rjust(width) for line in (name, *lines)]


def fitting(head: Sequence[str], rows: Rows, order: Sequence[str], room: int) -> list[int]:
    """Which columns have room in a line of :func:`plain`: of those of ``order`` the last ones first, and all others."""
    widths = [max(len(row[i]) for row in (head, *rows)) + 2 for i in range(len(head))]
    stay = [i for i, name in enumerate(head) if name not in order]
    for name in reversed(order):
        if name in head and sum(widths[i] for i in (*stay, head.index(name))) - 2 <= room:
            stay.append(head.index(name))
    return sorted(stay)


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
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().rstrip("\n")


LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{letter: f"{{{letter}}}" for letter in "[]*"},  # after the end of a line they would be an argument of it
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "|": "\\textbar{}",
        "<": "$<$",
        ">": "$>$",
        "±": "$\\pm$",
    }
)
SETUP = """\
% \\usepackage{booktabs, siunitx}
{\\sisetup{separate-uncertainty, retain-explicit-plus, detect-weight, detect-shape, mode=text}%
\\renewcommand{\\textpm}{\\ensuremath{\\pm}}\\renewcommand{\\textminus}{\\ensuremath{-}}% of a vector font"""


def latex(head: Sequence[str], rows: Rows, marks: Marks, words: int) -> str:
    """A tabular of the packages booktabs and siunitx; from column ``words`` on, numbers stand at their decimal points.

    Of ``marks`` 1 is bold, 2 is in italics.
    """

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(cells)} \\\\"

    names = [[cell.translate(LATEX) for cell in column] for column in list(zip(head, *rows, strict=True))[:words]]
    columns = list(zip(head, zip(*rows, strict=True), zip(*marks, strict=True), strict=True))[words:]
    numbers = [_siunitx(*column) for column in columns]
    form = "l" * words + "".join(form for form, _ in numbers)
    first, *body = map(line, zip(*names, *(cells for _, cells in numbers), strict=True))
    lines = [f"\\begin{{tabular}}{{{form}}}", "\\toprule", first, "\\midrule", *body, "\\bottomrule", "\\end{tabular}}"]
    return "\n".join([SETUP, *lines])


def _siunitx(name: str, cells: Sequence[str], marks: Sequence[int]) -> tuple[str, list[str]]:
    """The form of a column and its cells, head first; what follows a number has a column of its own."""
    parts = [CELL.fullmatch(cell) for cell in cells]
    known = [match.groups("") for match in parts if match]
    whole, decimals, std, rest = (
        max((len(text) for text in texts), default=0)
        for texts in (
            [number.lstrip("+-").partition(".")[0] for number, _, _ in known],
            [number.partition(".")[2] for number, _, _ in known],
            [std.replace(".", "").lstrip("0") for _, std, _ in known],
            [rest for _, _, rest in known],
        )
    )
    sign = "+" if any(number[0] in "+-" for number, _, _ in known) else ""
    form = f"S[table-format={sign}{max(whole, 1)}.{decimals}{f'({std})' if std else ''}]" + "@{~}l" * bool(rest)
    lines = [f"\\multicolumn{{2}}{{c}}{{{name.translate(LATEX)}}}" if rest else f"{{{name.translate(LATEX)}}}"]
    for cell, match, mark in zip(cells, parts, marks, strict=True):
        font = ("", "\\bfseries ", "\\itshape ")[mark]
        dashed = "--" if cell == "-" else cell.translate(LATEX)
        number, spread, more = match.groups("") if match else (f"{{{dashed}}}", "", "")
        text = font + number + (f" \\pm {spread}" if spread else "")
        after = more.strip().translate(LATEX).replace("-", "$-$")
        lines.append(f"{text} & {font}{after}".rstrip() if rest else text)
    return form, lines
