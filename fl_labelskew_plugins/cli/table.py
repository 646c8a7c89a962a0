"""Tables as plain text, CSV, Markdown or LaTeX."""

import io
import re
from collections.abc import Sequence

from fl_labelskew_plugins.machine.text import clean, room, shortened, wrapped

Rows = Sequence[Sequence[str]]
Marks = Sequence[Sequence[int]]  # per cell: 1 for the best, 2 for the second best, 0 for others
STYLES = ("", "bold", "underline")


def plain(
    head: Sequence[str], rows: Rows, marks: Marks = (), *, words: int | None = None, least: Sequence[str] = ()
) -> str:
    """Format a table with aligned columns that fits the terminal; in a pipe or a file, one line per row.

    If necessary, the columns ``least`` are dropped in this order and named below, and the others continue in further
    tables, each with the first column. ``words``: number of text columns, which may wrap; default: all.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    limit = room()
    styles = [[0] * len(head), *(marks or [[0] * len(head)] * len(rows))]
    cleaned = [[clean(cell, 4096) for cell in row] for row in (head, *rows)]
    count = len(head) if words is None else words
    for most in (limit, 24):  # with numbers, columns are dropped before text wraps
        texts = [
            ["".join(shortened(word, most) for word in re.split(r"(\s+)", cell)) for cell in row] for row in cleaned
        ]
        full = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        longest = [max(cell_len(word) for row in texts for word in [*row[i].split(), ""]) for i in range(count)]
        narrow = (longest if words is None or most < limit else full[:count]) + full[count:]
        visible = list(range(len(head)))
        for name in least:
            if _width(narrow, visible) > limit:
                visible = [i for i in visible if head[i] != name]
        if _width(narrow, visible) <= limit:
            break

    blocks = [visible[:1]]
    for i in visible[1:]:
        if len(blocks[-1]) > 1 and _width(narrow, [*blocks[-1], i]) > limit:
            blocks.append(visible[:1])
        blocks[-1].append(i)
    console = Console(file=io.StringIO(), width=10**6, force_terminal=True, color_system="standard")
    texts_of_blocks = []
    for columns in blocks:
        widths = list(full)
        while _width(widths, columns) > limit:
            widest = max(columns, key=lambda i: widths[i] - narrow[i])
            if widths[widest] == narrow[widest]:
                break
            widths[widest] -= 1
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for i in columns:
            table.add_column(width=widths[i], justify="left" if i < count else "right", overflow="fold")
        for row, of_row in zip(texts, styles, strict=True):
            table.add_row(*(Text.assemble((row[i], STYLES[of_row[i]])) for i in columns))
        with console.capture() as captured:
            console.print(table)
        texts_of_blocks.append("\n".join(line.rstrip() for line in captured.get().splitlines()))
    dropped = ", ".join(name.strip() for i, name in enumerate(head) if i not in visible)
    note = f"\n{wrapped(f'columns not shown: {dropped} (use a wider terminal or a pipe)')}" if dropped else ""
    return "\n\n".join(texts_of_blocks) + note


def _width(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[i] for i in columns) + 2 * len(columns) - 2


MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\|*_<`["})


def markdown(head: Sequence[str], rows: Rows, marks: Marks = (), words: int | None = None) -> str:
    """Format a Markdown table; mark 1 is bold, 2 is italic.

    The first ``words`` columns (default: all) are left-aligned; if ``words`` is given, they are escaped.
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


LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{letter: f"{{{letter}}}" for letter in "[]*"},  # else an argument of a line break
        **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "|": "\\textbar{}"},
        **{"<": "$<$", ">": "$>$", "±": "$\\pm$"},
    }
)


def latex(head: Sequence[str], rows: Rows, marks: Marks, words: int) -> str:
    """Format a tabular for booktabs; ``words`` and ``marks`` as in :func:`markdown`."""
    fonts = ("", "\\bfseries ", "\\itshape ")
    lines = [[cell.translate(LATEX) for cell in row] for row in (head, *rows)]
    for row, styles in zip(lines[1:], marks, strict=True):
        for i, style in enumerate(styles):
            row[i] = fonts[style] + (row[i].replace("-", "$-$") if i >= words and row[i] != "-" else row[i])
    first, *body = (f"{' & '.join(row)} \\\\" for row in lines)
    form = "l" * words + "r" * (len(head) - words)
    begin = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{form}}}", "\\toprule", first, "\\midrule"]
    return "\n".join([*begin, *body, "\\bottomrule", "\\end{tabular}"])
