"""A report as one HTML page that is complete in itself: table, curves, heat maps, costs; nothing is fetched.

Its markup is ``page.html.j2``, which escapes what comes from a run; the page's policy (a ``meta`` element) allows its
own script alone, by its digest, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, Template

from fl_labelskew_plugins import __version__, plots
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.studies import confused, printed, report
from fl_labelskew_plugins.studies.finished import mean

if TYPE_CHECKING:
    from pandas import DataFrame

SIZE = {"width": 560, "height": 320, "left": 44, "right": 548, "top": 12, "bottom": 282}
"""Of a chart, and where its axes are."""
STROKE = 2
"""Width of a line."""
SHADES = ((240, 245, 251), (198, 219, 239), (107, 174, 214), (40, 120, 184), (8, 48, 107))
"""Of a heat map, from 0 to 100 %."""
LONG = 24
"""Letters beyond which a cell of the summary is wrapped."""
MOST_LABELS = 24
"""Classes up to which a heat map's cells say their value."""
MOST_CLIENTS = 50
"""Clients that a table lists."""
UPRIGHT = 4
"""Letters beyond which the heads of a heat map of more than three columns are turned."""
COSTS = {
    "Sent to the server, MB a round": "MB up",
    "Sent to the clients, MB a round": "MB down",
    "Seconds a round": "s/round",
    "Peak memory, MB": "peak MB",
    "Peak memory of the GPU, MB": "peak GPU MB",
}


def page(frame: DataFrame, *, last: int, baseline: str) -> str:
    """The page's text, of :func:`fl_labelskew_plugins.studies.report.rows` with this ``last`` and ``baseline``."""
    style, script, markup = (
        Path(__file__).with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".css", ".js", ".html.j2")
    )
    settings, labels = frame["setting"].unique().tolist(), frame["label"].unique().tolist()
    looks = plots.looks(report.methods(frame))
    shared, rest = _settings(frame)
    folders = [[Path(run.name).name for run in runs] for runs in frame["runs"]]
    template = Template(markup, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    text: str = template.render(
        style=style,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        data=", ".join(frame["data"].unique()),
        rows=frame.assign(rest=rest, folders=folders).to_dict("records"),
        runs=sum(map(len, folders)),
        last=last,
        baseline=baseline,
        settings=settings,
        labels=labels,
        summary=_summary(frame),
        charts={setting: _chart(rows, labels) for setting, rows in frame.groupby("setting", sort=False)},
        means=_means(frame, settings, labels),
        classes=_classes(frame),
        confusions=_confusions(frame),
        clients=_clients(frame),
        tested_on=report.tested_on(frame),
        costs=_costs(frame, labels),
        shared=shared,
        size=SIZE,
        long=LONG,
        looks=[looks[label] for label in labels],
        dashes=[" ".join(f"{STROKE * part:g}" for part in dash) for dash in plots.DASHES],
        colours=plots.COLOURS,
        shades=", ".join(map(_rgb, SHADES)),
        counted=counted,
    )
    return text + "\n"


def _summary(frame: DataFrame) -> list[dict[str, Any]]:
    """The columns of the table that tell something: an empty one does not, and the title tells the data set."""
    texts, marks = printed.texts(frame), printed.marks(frame)
    columns = []
    for name in texts:
        different = set(texts[name])
        if different - {"", "-"} and (name != "data" or len(different) > 1):
            is_text = name in printed.WORDS
            keys = texts[name] if is_text else frame[name].map(_key)
            cells = list(zip(texts[name], marks[name], keys, strict=True))
            columns.append({"name": name, "is_text": is_text, "cells": cells})
    return columns


def _key(value: Any) -> str:
    """What a cell is sorted by."""
    return "" if isinstance(value, str) or math.isnan(value) else f"{min(value, 1e300):.6g}"


def _chart(rows: DataFrame, labels: Sequence[str]) -> dict[str, Any]:
    """What is drawn of a setting's rows, in a chart's own units."""
    series = [
        (name, [_point(round_, accuracies) for round_, accuracies in sorted(curve.items())])
        for name, curve in zip(rows["label"], rows["curve"], strict=True)
    ]
    everything = [point for _, points in series for point in points]
    first, last = min(p[0] for p in everything), max(p[0] for p in everything)
    low, high, step = _ticks(min(p[2] for p in everything), max(p[3] for p in everything))

    def x(round_: float) -> float:
        share = (round_ - first) / (last - first) if last > first else 0.5
        return SIZE["left"] + (SIZE["right"] - SIZE["left"]) * share

    def y(value: float) -> float:
        return SIZE["bottom"] - (SIZE["bottom"] - SIZE["top"]) * (value - low) / (high - low)

    def line(name: str, points: Sequence[tuple[int, float, float, float, float]]) -> dict[str, Any]:
        upper = [f"{x(p[0]):.1f},{y(p[3]):.1f}" for p in points]
        lower = [f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in reversed(points)]
        path = "M" + "L".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points)
        return {
            "number": labels.index(name),
            "name": name,
            "points": json.dumps([[p[0], round(p[1], 3), round(p[4], 3)] for p in points]),
            "path": path + ("h.01" if len(points) == 1 else ""),  # a dot
            "band": " ".join(upper + lower) if any(p[4] for p in points) else "",
        }

    levels = [low + number * step for number in range(round((high - low) / step) + 1)]
    return {
        **{"first": first, "last": last, "low": low, "high": high},
        "levels": [(y(value), f"{value:g}") for value in levels],
        "rounds": [(x(round_), round_) for round_ in _rounds(first, last)],
        "lines": [line(name, points) for name, points in series],
    }


def _point(round_: int, accuracies: Sequence[float]) -> tuple[int, float, float, float, float]:
    """Round, mean, ends of the band and its half, in per cent."""
    mean, std = 100 * statistics.fmean(accuracies), 100 * plots.std(accuracies)
    return round_, mean, max(0, mean - std), min(100, mean + std), std


def _ticks(low: float, high: float) -> tuple[float, float, float]:
    """A round range around two values within 0 to 100, and the step of its ticks."""
    step = next(step for step in (1, 2, 5, 10, 20) if (high - low) / step <= 6 or step == 20)
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step)
    return bottom, max(top, bottom + step), step


def _rounds(first: int, last: int) -> list[int]:
    """At most 11 multiples of a step."""
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if (last - first) / (s * 10**e) <= 10)
    return [round_ for round_ in range(first, last + 1) if round_ % step == 0]


def _shade(percent: float) -> tuple[str, str]:
    """Colours of a heat map's cell and of the text in it."""
    place = percent / 100 * (len(SHADES) - 1)
    i = min(int(place), len(SHADES) - 2)
    red, green, blue = (round(a + (b - a) * (place - i)) for a, b in zip(SHADES[i], SHADES[i + 1], strict=True))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140
    return _rgb((red, green, blue)), "#fff" if dark else "#111"


def _rgb(colour: Sequence[int]) -> str:
    return f"rgb({' '.join(map(str, colour))})"


def _heat_map(head: Sequence[str], lines: Iterable[tuple[str, Sequence[float]]], form: str | None) -> dict[str, Any]:
    """A table of shades of per cent, empty for NaN; ``form``: how a cell says its value, None if there is no room.

    The scale is 0 to 100 in every map, so that equal shades are equal values.
    """

    def cell(column: str, value: float) -> dict[str, str] | None:
        if math.isnan(value):
            return None
        back, ink = _shade(value)
        text = format(value, form) if form else ""
        return {"back": back, "ink": ink, "title": f"{column}: {value:.2f}", "text": text}

    return {
        "head": head,
        "upright": max(map(len, head)) > UPRIGHT and len(head) > 3,
        "lines": [(name, list(map(cell, head, values))) for name, values in lines],
    }


def _means(frame: DataFrame, settings: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    last = frame.drop_duplicates(["label", "setting"], keep="last")
    means = last.pivot(index="label", columns="setting", values="accuracy").loc[labels, settings]
    return _heat_map(settings, zip(labels, means.to_numpy().tolist(), strict=True), ".2f")


def _classes(frame: DataFrame) -> dict[str, dict[str, Any]]:
    """For each setting that has any, a heat map of its rows' recall."""
    maps = {}
    for setting, rows in frame.groupby("setting", sort=False):
        lines = [(label, recall) for label, recall in zip(rows["label"], rows["recall"], strict=True) if recall]
        if classes := max((len(recall) for _, recall in lines), default=0):
            names = [run.class_names for runs in rows["runs"] for run in runs if len(run.class_names) == classes]
            head = names[0] if names else [str(number) for number in range(classes)]
            padded = [(label, [*recall, *[math.nan] * (classes - len(recall))]) for label, recall in lines]
            maps[setting] = _heat_map(head, padded, ".0f" if classes <= MOST_LABELS else None)
    return maps


def _confusions(frame: DataFrame) -> dict[str, dict[str, dict[str, Any]]]:
    """Setting to label to the final models' confusion matrix, a heat map or, of many classes, ``pairs``."""
    maps: dict[str, dict[str, dict[str, Any]]] = {}
    for setting, label, runs in zip(frame["setting"], frame["label"], frame["runs"], strict=True):
        matrix = confused.summed(runs)
        if matrix is not None:
            lines = zip(matrix.names, matrix.shares.tolist(), strict=True)
            few = len(matrix.names) <= MOST_LABELS
            shown = _heat_map(matrix.names, lines, ".0f") if few else {"pairs": matrix.pairs()}
            maps.setdefault(setting, {})[label] = shown
    return maps


def _clients(frame: DataFrame) -> dict[str, dict[str, Any]]:
    """Setting to label to a table of clients and of the runs that tested them, the worst clients first.

    A client's samples are those of all runs, such as ``40-52``; its accuracies have a column for each run.
    """
    tables: dict[str, dict[str, Any]] = {}
    for setting, label, runs in zip(frame["setting"], frame["label"], frame["runs"], strict=True):
        tested = [run for run in runs if run.clients]
        rows = []
        for clients in zip(*(run.clients for run in tested), strict=False):
            names, *samples, shares = zip(*clients, strict=True)
            sizes = [[int(number) for number in numbers if number is not None] for numbers in samples]
            cells = [names[0], *(report.ends(known) if known else "-" for known in sizes)]
            cells += ["-" if share is None else f"{100 * share:.2f}" for share in shares]
            average = mean(shares)
            rows.append((math.inf if average is None else average, cells))
        if rows:
            head = [f"seed {run.seed}" for run in tested] if len(tested) > 1 else ["accuracy"]
            lines = [cells for _, cells in sorted(rows, key=lambda row: row[0])[:MOST_CLIENTS]]
            tables.setdefault(setting, {})[label] = {"head": head, "lines": lines, "left": len(rows) - len(lines)}
    return tables


def _costs(frame: DataFrame, labels: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Title to bars of what is known."""
    costs = {}
    for title, column in COSTS.items():
        known = frame[frame[column].notna()]
        if len(known):
            costs[title] = known.assign(
                number=known["label"].map(labels.index),
                share=100 * known[column] / (known[column].max() or 1),
                text=known[column].map(f"{{:{printed.FORMS[column]}}}".format),
            ).to_dict("records")
    return costs


def _settings(frame: DataFrame) -> tuple[dict[str, dict[str, list[str]]], list[dict[str, list[str]]]]:
    """What all rows have in common, and what those of a setting have; and of each row the rest."""
    keys = report.all_keys(frame)
    several = [key for key in keys if len({row.get(key, "null") for row in frame["keys"]}) > 1]
    scene = [key for key in several if key.startswith(report.SCENE)]
    shared = {"Everywhere": _values(frame["keys"][0], [key for key in keys if key not in several])}
    shared |= {setting: _values(row, scene) for setting, row in zip(frame["setting"], frame["keys"], strict=True)}
    others = [key for key in several if key not in scene]
    return shared, [_values(row, others) for row in frame["keys"]]


def _values(row: Mapping[str, str], keys: Sequence[str]) -> dict[str, list[str]]:
    """Section to its keys and their values."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        if row.get(key, "null") != "null":
            section, _, name = key.partition(".")
            sections.setdefault(section, []).append(f"{name}: {row[key]}".replace('"', ""))
    return sections
