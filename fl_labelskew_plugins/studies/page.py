"""A report as a self-contained HTML page with tables and a picture of the accuracies.

``page.html.j2`` escapes all values from runs; its policy (a ``meta`` element) allows no script and no request.
"""

import base64
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template
from pandas import DataFrame

from fl_labelskew_plugins import __version__
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.studies import printed, report
from fl_labelskew_plugins.studies.finished import mean

MAX_CLIENTS = 50
PageTable = dict[str, Any]  # `head`; `rows` of cells, each a text and its mark; `words`: number of text columns


def page(frame: DataFrame, *, last: int, baseline: str) -> str:
    """Format the page of the rows from :func:`.report.rows` with this ``last`` and ``baseline``."""
    markup = Path(__file__).with_suffix(".html.j2").read_text(encoding="utf-8")
    template = Template(markup, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    with tempfile.TemporaryDirectory() as folder:
        report.plot(frame, picture := Path(folder) / "accuracy.svg")
        image = base64.b64encode(picture.read_bytes()).decode()
    text: str = template.render(
        **{"version": __version__, "data": ", ".join(frame["data"].unique()), "counted": counted},
        **{"runs": sum(map(len, frame["runs"])), "rows": len(frame), "last": last, "baseline": baseline},
        tested_on=report.tested_on(frame),
        summary=_summary(frame),
        image=image,
        classes=_classes(frame),
        clients=_clients(frame),
        settings=_settings(frame),
    )
    return text + "\n"


def _plain(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> PageTable:
    return {"head": head, "rows": [[(cell, 0) for cell in row] for row in rows], "words": words}


def _summary(frame: DataFrame) -> PageTable:
    texts, marks = printed.texts(frame), printed.marks(frame)
    cells = [list(zip(*row, strict=True)) for row in zip(texts.to_numpy(), marks.to_numpy(), strict=True)]
    return {"head": texts.columns, "rows": cells, "words": len(texts.columns.intersection(printed.WORDS))}


def _classes(frame: DataFrame) -> dict[str, PageTable]:
    """Recall per class in per cent, by setting."""
    tables = {}
    for setting, rows in frame.groupby("setting", sort=False):
        if classes := max(map(len, rows["recall"])):
            names = [run.class_names for runs in rows["runs"] for run in runs if len(run.class_names) == classes]
            head = names[0] if names else [str(number) for number in range(classes)]
            lines = []
            for label, recall in zip(rows["label"], rows["recall"], strict=True):
                cells = ["-" if math.isnan(value) else f"{value:.0f}" for value in recall]
                lines.append([label, *cells, *["-"] * (classes - len(cells))])
            tables[setting] = _plain(["", *head], lines)
    return tables


def _clients(frame: DataFrame) -> dict[str, PageTable]:
    """Tested clients of each row, the worst first."""
    tables = {}
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
            head = ["client", "training samples", "test samples", *(f"seed {run.seed}" for run in tested)]
            lines = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
            if len(lines) > MAX_CLIENTS:
                omitted = counted(len(lines) - MAX_CLIENTS, "more client")
                lines[MAX_CLIENTS:] = [[omitted, *["-"] * (len(head) - 1)]]
            tables[f"{label}, {setting}"] = _plain(head, lines)
    return tables


def _settings(frame: DataFrame) -> PageTable:
    keys = report.all_keys(frame)
    several = [key for key in keys if len({row.get(key, "null") for row in frame["keys"]}) > 1]

    def values(row: dict[str, str], chosen: Sequence[str]) -> str:
        return ", ".join(f"{key}: {row[key]}".replace('"', "") for key in chosen if row.get(key, "null") != "null")

    lines = [["all", "", values(frame["keys"][0], [key for key in keys if key not in several]), ""]]
    for label, setting, row, runs in zip(frame["label"], frame["setting"], frame["keys"], frame["runs"], strict=True):
        lines.append([label, setting, values(row, several), ", ".join(Path(run.name).name for run in runs)])
    return _plain(["row", "setting", "settings", "folders"], lines, words=4)
