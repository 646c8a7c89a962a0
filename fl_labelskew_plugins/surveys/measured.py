"""The tables of docs/results.md; ``make generated`` writes them to measured.json."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("measured.json")


class ResultTable(NamedTuple):
    """A table with rows of Markdown, the method's name first."""

    title: str
    setting: str
    head: list[str]
    rows: list[list[str]]


@cache
def everything() -> list[ResultTable]:
    """All tables."""
    return [ResultTable(**table) for table in json.loads(FILE.read_text(encoding="utf-8"))]


def of_method(name: str) -> Iterator[ResultTable]:
    """Tables that contain a method, with the rows of it, its combinations and FedAvg."""
    for table in everything():
        plain = table.head[1] != "optimiser"
        rows, found = [], False
        for row in table.rows:
            methods = row[0].replace("`", "").lower().partition(",")[0].split("+")
            found |= name in methods
            if name in methods or (methods == ["fedavg"] and (plain or row[1] == "FedAvg")):
                rows.append(row)
        if found:
            yield table._replace(rows=rows)


def by_optimizer(column: str) -> dict[tuple[str, str], str]:
    """Accuracies by method and optimiser."""
    _, _, head, rows = next(table for table in everything() if table.head[1] == "optimiser")
    return {(row[0].replace("`", ""), row[1]): row[head.index(column)] for row in rows}
