"""A report as one HTML page that is complete in itself: table, curves, heat maps, costs; nothing is fetched.

What comes from a run is escaped; the page's policy (a ``meta`` element) allows its own script alone, by its digest, and
no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import compress
from pathlib import Path

from fl_labelskew_plugins import __version__
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.studies import report
from fl_labelskew_plugins.studies.report import Row

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 44, 548, 12, 282
"""Size of a chart, and where its axes are."""
COLOURS = 10
"""Colours of page.css, ``--c0`` on; further lines have another dash."""
DASHES = ("", "7 4", "2 4", "10 3 2 3")
SHADES = ((240, 245, 251), (198, 219, 239), (107, 174, 214), (40, 120, 184), (8, 48, 107))
"""From the lowest value of a heat map to its highest."""
LONG = 24
"""Letters beyond which a cell of the summary is wrapped."""
MOST_LABELS = 24
"""Classes up to which a heat map's cells say their value."""
UPRIGHT = 4
"""Letters beyond which the heads of a heat map of more than three columns are turned."""


def page(found: Sequence[Row], *, last: int, baseline: str) -> str:
    """The page's text.

    Args:
        found: from :func:`fl_labelskew_plugins.studies.report.rows`.
        last: tests that means were taken over.
        baseline: the method whose best is to be reached.
    """
    here = Path(__file__)
    style = here.with_suffix(".css").read_text(encoding="utf-8")
    script = here.with_suffix(".js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    settings = list(dict.fromkeys(row.setting for row in found))
    names = list(dict.fromkeys(report.label(row) for row in found))
    runs = sum(len(row.runs) for row in found)
    body = [
        _summary(found, last, baseline),
        _curves(found, settings, names),
        _heat(found, settings, names),
        _classes(found, settings, last),
        _costs(found, settings, names),
        _settings(found),
    ]
    data = ", ".join(dict.fromkeys(row.data for row in found))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Report: {escape(data)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<header><h1>{escape(data)}</h1>",
            f'<p class="note">{runs} runs: {len(found)} rows of {counted(len(settings), "setting")}. '
            "Accuracies are in per cent.</p></header>\n<main>",
            *filter(None, body),
            f"</main>\n<footer>labelskew report, fl-labelskew-plugins {escape(__version__)}</footer>",
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _section(title: str, note: str, *content: str) -> str:
    return f'<section>\n<h2>{title}</h2>\n<p class="note">{note}</p>\n' + "\n".join(content) + "\n</section>"


def _summary(found: Sequence[Row], last: int, baseline: str) -> str:
    texts_of = [(column.name, {column.text(row) for row in found}) for column in report.columns(found)]
    # nothing is told by a column that is empty, and the title tells the data set
    told = [bool(texts - {"", "-"}) and (name != "data" or len(texts) > 1) for name, texts in texts_of]
    shown = list(compress(report.columns(found), told))
    marks = [list(compress(mine, told)) for mine in report.marks(found)]
    texts = [all(column.value(row) is None for row in found) and column.name != "rounds" for column in shown]
    texts = [text and not column.better for text, column in zip(texts, shown, strict=True)]
    head = "".join(
        f'<th scope="col"{_class(text)}><button type="button">{escape(column.name)}</button></th>'
        for column, text in zip(shown, texts, strict=True)
    )
    forms = ("{}", "<strong>{}</strong>", "<u>{}</u>")
    lines = []
    for row, mine in zip(found, marks, strict=True):
        cells = []
        for column, text, mark in zip(shown, texts, mine, strict=True):
            value = column.value(row)
            key = column.text(row) if text else "" if value is None else f"{value:.6g}"
            words = forms[mark].format(escape(column.text(row)))
            kind = ' class="text long"' if text and len(column.text(row)) > LONG else _class(text)
            cells.append(f'<td{kind} data-value="{escape(key)}">{words}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    note = (
        f"Means over the last {counted(last, 'test')} ± standard deviation over seeds; the best of a setting is "
        "bold, the second best underlined. Personalised: clients' own models, on their own test splits; local model: "
        "where a method keeps none, what a client has just trained, on its own test split; that is not compared. Rank: "
        "by mean accuracy on the same data and partition. Rounds to baseline: "
        f"until the mean over seeds reaches the highest of {escape(baseline)} with FedAvg, and how many times fewer "
        "that is (FedMR table 4, FedShift table 2). MB (10<sup>6</sup> bytes) a round, of all its clients (FedMR table "
        "3). Seconds a round, and the most memory that the server's process held (FedMR figure 4). A head sorts."
    )
    return _section("Summary", note, _table("summary", f"<tr>{head}</tr>", lines))


def _table(kind: str, head: str, lines: Sequence[str]) -> str:
    body = "\n".join(lines)
    return f'<div class="wide"><table class="{kind}">\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _class(text: bool) -> str:
    return ' class="text"' if text else ""


def _stroke(number: int) -> str:
    dash = DASHES[number // COLOURS % len(DASHES)]
    return f'stroke="var(--c{number % COLOURS})"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _curves(found: Sequence[Row], settings: Sequence[str], names: Sequence[str]) -> str:
    keys = "".join(
        f'<li><button type="button" aria-pressed="true" data-series="{number}">'
        '<svg viewBox="0 0 24 10" aria-hidden="true">'
        f'<line x1="1" x2="23" y1="5" y2="5" stroke-width="3" {_stroke(number)}/></svg>'
        f"{escape(name)}</button></li>"
        for number, name in enumerate(names)
    )
    if many := len(names) > COLOURS:
        keys += "".join(
            f'<li><button type="button" data-all="{on}">{word}</button></li>'
            for on, word in (("true", "all"), ("false", "none"))
        )
    charts = []
    for setting in settings:
        lines = [(report.label(row), row.curve) for row in found if row.setting == setting]
        charts.append(
            f'<figure><figcaption>{escape(setting)}</figcaption><div class="chart">\n'
            f"{_chart(setting, lines, names)}\n</div></figure>"
        )
    note = (
        "On the global test set. Lines are means over the seeds, bands reach from the lowest to the highest. A name "
        "takes its line out and back; in a chart, the pointer or the arrow keys read values off, of many lines "
        "those nearest to it."
    )
    if many:
        note += " A line has its band while its name is pointed at."
    figures = "\n".join(charts)
    return _section(
        "Accuracy over the rounds",
        note,
        f'<ul class="legend">{keys}</ul>\n<div class="charts side{" many" if many else ""}">\n{figures}\n</div>',
    )


def _chart(title: str, lines: Sequence[tuple[str, report.Curve]], names: Sequence[str]) -> str:
    """An SVG of ``lines``: name to accuracies."""
    series = [
        (name, [(r, 100 * statistics.fmean(v), 100 * min(v), 100 * max(v)) for r, v in sorted(curve.items())])
        for name, curve in lines
    ]
    everything = [point for _, points in series for point in points]
    first, last = min(p[0] for p in everything), max(p[0] for p in everything)
    low, high, step = _ticks(min(p[2] for p in everything), max(p[3] for p in everything))

    def x(round_: float) -> float:
        return LEFT + (RIGHT - LEFT) * ((round_ - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for round_ in _rounds(first, last):
        parts.append(f'<text x="{x(round_):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{round_}</text>')
    middle = (LEFT + RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">round</text>')
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{BOTTOM}"/>')
    for name, points in series:
        number = names.index(name)
        upper = [f"{x(p[0]):.1f},{y(p[3]):.1f}" for p in points]
        lower = [f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in reversed(points)]
        path = "M" + "L".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points)
        path += "h.01" if len(points) == 1 else ""  # a dot
        data = json.dumps([[p[0], *(round(value, 3) for value in p[1:])] for p in points])
        band = f'<polygon points="{" ".join(upper + lower)}" fill="var(--c{number % COLOURS})"/>'
        parts.append(
            f'<g class="series" data-series="{number}" data-name="{escape(name)}" data-points="{escape(data)}">'
            f'{band if any(p[2] < p[3] for p in points) else ""}<path d="{path}" {_stroke(number)}/></g>'
        )
    axes = f'data-first="{first}" data-last="{last}" data-left="{LEFT}" data-right="{RIGHT}" '
    axes += f'data-low="{low}" data-high="{high}" data-top="{TOP}" data-bottom="{BOTTOM}"'
    words = f"{title}: accuracy in per cent over the rounds, {counted(len(lines), 'line')}; arrow keys read values off"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{escape(words)}" {axes}>'
        + "\n".join(parts)
        + "</svg>"
    )


def _ticks(low: float, high: float) -> tuple[float, float, float]:
    """A round range around two values within 0 to 100, and the step of its ticks."""
    step = next(step for step in (1, 2, 5, 10, 20) if (high - low) / step <= 6 or step == 20)
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step)
    return bottom, max(top, bottom + step), step


def _rounds(first: int, last: int) -> list[int]:
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if (last - first) / (s * 10**e) <= 10)
    return sorted({first, *(r for r in range(first, last + 1) if r % step == 0 and r - first > step / 2)})


def _shade(value: float, low: float, high: float) -> tuple[str, str]:
    """Colours of a heat map's cell and of the text in it."""
    place = (value - low) / (high - low) * (len(SHADES) - 1) if high > low else 0.0
    i = min(int(place), len(SHADES) - 2)
    red, green, blue = (round(a + (b - a) * (place - i)) for a, b in zip(SHADES[i], SHADES[i + 1], strict=True))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140
    return f"rgb({red} {green} {blue})", "#fff" if dark else "#111"


def _heat_table(
    head: Sequence[str], lines: Sequence[tuple[str, Sequence[float | None]]], low: float, high: float, form: str | None
) -> str:
    """A heat map as a table; ``form``: how a cell says its value, None where there is no room."""

    def cell(value: float | None, column: str) -> str:
        if value is None:
            return '<td class="none">-</td>'
        back, text = _shade(value, low, high)
        words = format(value, form) if form else ""
        title = escape(f"{column}: {value:.2f}")
        return f'<td style="background:{back};color:{text}" title="{title}">{words}</td>'

    rows = [
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(cell(value, column) for value, column in zip(values, head, strict=True))
        + "</tr>"
        for name, values in lines
    ]
    heads = "".join(f'<th scope="col" title="{escape(name)}"><span>{escape(name)}</span></th>' for name in head)
    stops = ", ".join(f"rgb({r} {g} {b})" for r, g, b in SHADES)
    scale = f'{low:.1f} <i style="background:linear-gradient(90deg, {stops})"></i> {high:.1f}'
    kind = "heat upright" if max(map(len, head)) > UPRIGHT and len(head) > 3 else "heat"
    return _table(kind, f"<tr><td></td>{heads}</tr>", rows) + f'<div class="scale">{scale}</div>'


def _heat(found: Sequence[Row], settings: Sequence[str], names: Sequence[str]) -> str:
    means = {(report.label(row), row.setting): report.mean(row.accuracy) for row in found}
    known = [value for value in means.values() if value is not None]
    lines = [(name, [means.get((name, setting)) for setting in settings]) for name in names]
    return _section(
        "Methods and partitions",
        "Mean accuracy on the global test set, as in the summary; a dash where nothing was run.",
        _heat_table(settings, lines, min(known), max(known), ".2f"),
    )


def _classes(found: Sequence[Row], settings: Sequence[str], last: int) -> str:
    figures = []
    for setting in settings:
        lines = [(report.label(row), row.recall) for row in found if row.setting == setting and row.recall]
        classes = max((len(recall) for _, recall in lines), default=0)
        if classes:
            runs = [run for row in found if row.setting == setting for run in row.runs]
            numbers = [str(label) for label in range(classes)]
            head = next((run.class_names for run in runs if len(run.class_names) == classes), numbers)
            padded = [(name, [*recall, *[None] * (classes - len(recall))]) for name, recall in lines]
            form = ".0f" if classes <= MOST_LABELS else None
            table = _heat_table(head, padded, 0, 100, form)
            figures.append(f"<figure><figcaption>{escape(setting)}</figcaption>{table}</figure>")
    if not figures:
        return ""
    note = (
        "Share of each class's test samples that are right (recall), means over the last "
        f"{counted(last, 'test')} and the seeds."
    )
    return _section("Accuracy of each class", note, '<div class="side">', *figures, "</div>")


def _costs(found: Sequence[Row], settings: Sequence[str], names: Sequence[str]) -> str:
    measures: list[tuple[str, Callable[[Row], float | None], str]] = [
        ("Sent to the server, MB a round", lambda row: row.up, ".3f"),
        ("Sent to the clients, MB a round", lambda row: row.down, ".3f"),
        ("Seconds a round", lambda row: row.seconds, ".2f"),
        ("Peak memory, MB", lambda row: row.peak, ".0f"),
        ("Peak memory of the GPU, MB", lambda row: row.peak_gpu, ".0f"),
    ]
    figures = []
    for title, value, form in measures:
        most = max((known for row in found if (known := value(row)) is not None), default=None)
        if most is not None:
            bars = "\n".join(_bars(found, settings, names, value, form, most))
            figures.append(f'<figure><figcaption>{title}</figcaption>\n<div class="bars">\n{bars}\n</div></figure>')
    if not figures:
        return ""
    grid = '<div class="side">\n' + "\n".join(figures) + "\n</div>"
    return _section("What a round costs", "Seconds depend on what else the machine did meanwhile.", grid)


def _bars(
    found: Sequence[Row],
    settings: Sequence[str],
    names: Sequence[str],
    value: Callable[[Row], float | None],
    form: str,
    most: float,
) -> Iterator[str]:
    for setting in settings:
        yield f"<h4>{escape(setting)}</h4>"
        for row in found:
            known = value(row)
            if row.setting == setting and known is not None:
                name = report.label(row)
                share = 100 * known / most if most else 0
                fill = f"width:{share:.2f}%;background:var(--c{names.index(name) % COLOURS})"
                yield (
                    f'<span>{escape(name)}</span><div class="bar"><div class="track"><i style="{fill}"></i></div>'
                    f"<span>{known:{form}}</span></div>"
                )


def _settings(found: Sequence[Row]) -> str:
    """What all rows have in common, what those of a setting have, and for each the rest and its folders."""
    keys = list(dict.fromkeys(key for row in found for key in row.keys))
    several = [key for key in keys if len({json.dumps(row.keys.get(key)) for row in found}) > 1]
    scene = [key for key in several if key.startswith(report.SCENE)]
    own = [key for key in several if key not in scene]
    shared = {"Everywhere": _told(found[0], [key for key in keys if key not in several])}
    shared |= {row.setting: _told(row, scene) for row in found}
    lists = "\n".join(f"<dt>{escape(name)}</dt><dd>{words}</dd>" for name, words in shared.items() if words)
    lines = [
        f'<tr><th scope="row">{escape(report.label(row))}</th><td>{escape(row.setting)}</td><td>{_told(row, own)}</td>'
        f"<td>{'<br>'.join(escape(Path(run.name).name) for run in row.runs)}</td></tr>"
        for row in found
    ]
    head = "".join(f'<th scope="col">{name}</th>' for name in ("row", "setting", "its own", "folders"))
    table = _table("settings", f"<tr>{head}</tr>", lines)
    note = "Without seeds, and where and on what was computed; what is null is left out."
    return _section("Settings", note, f"<details><summary>Show</summary>\n<dl>{lists}</dl>\n{table}</details>")


def _told(row: Row, keys: Sequence[str]) -> str:
    """Keys and values, a line a section."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        if row.keys.get(key) is not None:
            section, _, name = key.partition(".")
            value = json.dumps(row.keys[key]).replace('"', "")
            sections.setdefault(section, []).append(f"{name}: {value}")
    return "<br>".join(f"{escape(section)}: {escape(', '.join(words))}" for section, words in sections.items())
