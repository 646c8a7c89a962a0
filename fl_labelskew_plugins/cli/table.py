"""Tables as plain text, CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

from fl_labelskew_plugins.machine.text import csv_cell, room, shortened, wrapped

Rows = Sequence[Sequence[str]]
Marks = Sequence[Sequence[int]]
"""Of each cell: 1 for the best of its kind, 2 for the second, 0 for others."""
STYLES: dict[int, dict[str, bool]] = {1: {"bold": True}, 2: {"underline": True}}


ENOUGH = (24, 12)
"""Letters to which cells may wrap; to the second number if there is no room otherwise."""
NAME = 24
"""Letters to which words of the first and last column may be shortened."""


def plain(
    head: Sequence[str],
    rows: Rows,
    marks: Marks = (),
    *,
    wrap: bool = True,
    least: Sequence[str] = (),
    limit: int = 0,
) -> str:
    """Columns under a head, in lines that fit the terminal; in a pipe or a file, one line per row.

    Cells that do not fit wrap at spaces. If that is not enough, columns are dropped, which a line below names. If that
    is not enough either, the columns continue in further tables below, after the first column. A word that does not
    fit loses its middle, in the last and the first column.

    Args:
        head: names of the columns.
        rows: the cells.
        marks: of each cell; 1 is bold, 2 is underlined.
        wrap: whether cells may wrap.
        least: columns that may be dropped, the least important one first.
        limit: letters of a line, in place of :func:`.machine.text.room`.
    """
    limit = limit or room()
    styles = [[0] * len(head), *(marks or [[0] * len(head)] * len(rows))]
    cells = list(zip(head, *rows, strict=True))
    for enough in ENOUGH:
        columns = [Column(column, enough if wrap else limit) for column in cells]
        excess = _width([column.least for column in columns if column.name not in least]) - limit
        if excess <= 0:
            break
    short = columns[:]
    for i in (-1, 0):
        if excess > 0:
            short[i] = Column(cells[i], enough, max(NAME, columns[i].least - excess))
            excess -= columns[i].least - short[i].least
    widest = max((column.least + 2 for column in columns[1:]), default=0)
    columns = short if excess <= 0 else [Column(cells[0], enough, max(NAME, limit - widest)), *columns[1:]]
    stay = fitting(columns, least, limit)
    blocks = [stay[:1]]
    for i in stay[1:]:
        if len(blocks[-1]) > 1 and _width([columns[j].least for j in (*blocks[-1], i)]) > limit:
            blocks.append(stay[:1])
        blocks[-1].append(i)
    texts = [
        _block([columns[i] for i in block], [[marks[i] for i in block] for marks in styles], limit) for block in blocks
    ]
    dropped = dict.fromkeys(column.name for i, column in enumerate(columns) if i not in stay)
    note = wrapped(f"columns not shown: {', '.join(dropped)} (a wider terminal or a pipe has them)")
    return "\n\n".join(texts) + (f"\n{note}" if dropped else "")


class Column:
    """The cells of a column, the head's first, and the least width to which they may wrap."""

    def __init__(self, cells: Sequence[str], enough: int, most: int = sys.maxsize) -> None:
        """Cells may wrap to ``enough`` letters; words of more than ``most`` are shortened."""
        self.name = cells[0].strip()
        self.cells = [re.sub(r"\S+", lambda word: shortened(word[0], most), cell) for cell in cells]
        words = (max([min(len(cell), enough), *map(len, cell.split())]) for cell in self.cells[1:])
        self.full = max(map(len, self.cells))
        self.least = max([*map(len, self.cells[0].split()), *words], default=0)

    def lines(self, width: int) -> Iterator[list[str]]:
        """Each cell in lines of this width."""
        for cell in self.cells:
            fits = len(cell) <= width
            lines = [cell] if fits else textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
            yield [line.ljust(width) for line in lines]


def fitting(columns: Sequence[Column], order: Sequence[str], limit: int) -> list[int]:
    """Which columns have room in a line: of those of ``order`` the last ones first, and all others."""
    stay = [i for i, column in enumerate(columns) if column.name not in order]
    for i in sorted(set(range(len(columns))) - {*stay}, key=lambda i: -order.index(columns[i].name)):
        if _width([columns[j].least for j in (*stay, i)]) <= limit:
            stay.append(i)
    return sorted(stay)


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * len(widths) - 2


def _block(columns: Sequence[Column], styles: Marks, limit: int) -> str:
    """The columns next to each other, cut down to the greatest width that all of them may have."""
    cap = max(column.full for column in columns)
    while _width(widths := [max(column.least, min(column.full, cap)) for column in columns]) > limit and cap:
        cap -= 1
    lines = []
    rows = zip(*(column.lines(width) for column, width in zip(columns, widths, strict=True)), strict=True)
    for cells, marks in zip(rows, styles, strict=True):
        for parts in itertools.zip_longest(*cells):
            padded = [part or " " * width for part, width in zip(parts, widths, strict=True)]
            lines.append("  ".join(map(_styled, padded, marks)).rstrip())
    return "\n".join(lines)


def _styled(cell: str, mark: int) -> str:
    text = cell.strip()  # no line below the space around it
    return cell.replace(text, click.style(text, **STYLES[mark])) if mark and text else cell


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
