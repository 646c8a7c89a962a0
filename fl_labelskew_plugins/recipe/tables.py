"""Tables of recipes, see docs/recipes.md."""

import copy
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fl_labelskew_registry import MistakesError
from pydantic import Field

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.params import IS_PATH, Params, absolute
from fl_labelskew_plugins.recipe import mistakes, yaml
from fl_labelskew_plugins.recipe.model import EXPECTED, SECTIONS
from fl_labelskew_plugins.recipe.sections import code_at

RawSections = dict[str, dict[str, Any]]
Keys = dict[str, Any]  # section.key to value

COMMON: RawSections = {
    "common_args": {"training_type": "simulation", "random_seed": 0},
    "data_args": {"dataset": None, "data_cache_dir": None},
    "train_args": {
        "federated_optimizer": "FedAvg",
        "client_num_in_total": None,
        "client_num_per_round": None,
        "comm_round": None,
    },
    "device_args": {"using_gpu": False},
    "comm_args": {"backend": "sp"},
    "tracking_args": {"run_dir": "runs", "checkpoint_every": 10},
}

WITHOUT_STD = 2.0  # tolerance in per cent if a paper prints no std
NAME = re.compile(r"[A-Za-z0-9_-]+")  # of a recipe


class RoundsTo(Params):
    """A paper's rounds to reach an accuracy, per column; null: not reported."""

    target: float
    table: str
    values: list[int | None]


class TableRow(Params):
    """A setting of an experiment, with a recipe for each column."""

    data: str | None = Field(None, description="one of the table's `data`")
    split: str | None = Field(None, description="one of the table's `splits`")
    name: str | None = Field(None, description="prefix of its recipes' names; default: table, data and split")
    values: list[float | tuple[float, float] | None] | None = Field(
        None, description="the paper's numbers, or [number, std], in the order of the columns; null: not printed"
    )
    args: Keys = Field({}, description="values of $name in a method")
    set: Keys = Field({}, description="section.key: value, for all columns")
    by_column: dict[str, Keys] = Field({}, alias="each", description="column: {section.key: value}")
    rounds_to: RoundsTo | None = None
    comment: str = ""


class TablePart(Params):
    """A table of the paper, or a part of one."""

    table: str
    columns: list[str] = Field(min_length=1, description="some of the table's `methods`")
    comment: str = ""
    rows: list[Any]


class TablePage(Params):
    """Content of a table's file."""

    paper: str
    source: str = Field(description="the paper's title, where and when it was published")
    comment: str = Field("", description="of all rows: which settings are the paper's, which are assumed")
    base: RawSections = Field({})
    data: dict[str, RawSections] = Field({})
    splits: dict[str, RawSections] = Field({})
    methods: dict[str, RawSections]
    default: str | None = Field(None, description="the method of the recipes without a suffix")
    measure: Literal["accuracy", "best_accuracy"] = "accuracy"
    tables: list[Any]


class Cell(NamedTuple):
    """A recipe's row, and the index and name of its column."""

    part: TablePart
    row: TableRow
    number: int
    column: str


@dataclass(frozen=True)
class RecipeTable:
    """A table; ``cells``: by recipe name."""

    path: Path
    page: TablePage
    cells: dict[str, Cell]

    def content(self, name: str) -> dict[str, Any]:
        """Sections and expected numbers of one recipe."""
        cell, page = self.cells[name], self.page
        row = cell.row
        merged: RawSections = {}
        for layer in (  # the last layer wins
            COMMON,
            page.base,
            page.data[row.data] if row.data else {},
            page.splits[row.split] if row.split else {},
            _filled(page.methods[cell.column], row.args),
            _sections(row.set),
            _sections(row.by_column.get(cell.column, {})),
        ):
            for section, keys in layer.items():
                merged.setdefault(section, {}).update(copy.deepcopy(keys))
        content: dict[str, Any] = {section: merged[section] for section in SECTIONS if section in merged}
        train = content["train_args"]
        train["client_num_per_round"] = train["client_num_per_round"] or train["client_num_in_total"]
        for section, model in SECTIONS.items():
            for key in content.get(section, {}):
                if key in model.model_fields and IS_PATH in model.model_fields[key].metadata:
                    content[section][key] = absolute(content[section][key], self.path.parent)
        if "model" in (network := content.get("model_args", {})):
            network["model"] = code_at(network["model"], self.path.parent)
        if numbers := list(_expected(page, cell)):
            content[EXPECTED] = numbers
        return content

    def text(self, name: str, called: str) -> str:
        """One recipe's text; ``called``: its path in the first line."""
        cell, page, content = self.cells[name], self.page, self.content(name)
        optimizer = content["train_args"]["federated_optimizer"]
        method = cell.column if optimizer == "FedAvg" else f"{content['method_args'].get('method')} with {optimizer}"
        setting = ", ".join(filter(None, (cell.row.data, cell.row.split, method)))
        title = f"{page.paper}, {cell.part.table.replace('Table', 'table')}: {setting}"
        comment = [
            f"fedml run {called}",
            f"{title}." if EXPECTED in content else f"{title}; no number is printed.",
            *textwrap.wrap(" ".join(filter(None, (page.comment, cell.part.comment, cell.row.comment))), 118),
            f"{page.source}.",
        ]
        return "".join(f"# {clean(line, 4096)}\n" for line in comment) + yaml.write(content)


def is_table(text: str) -> bool:
    """Whether a text is a table."""
    return re.search(r"^tables *:", text, re.MULTILINE) is not None


def read(path: Path) -> RecipeTable:
    """Read a table; raises MistakesError with all mistakes except its recipes'."""
    try:
        content, wrong = yaml.read(yaml.text_of(path))
    except yaml.YamlError as error:
        raise MistakesError([clean(f"{path}: {error}", 4096)]) from None
    cells: dict[str, Cell] = {}
    page, lines = mistakes.checked(TablePage, content)
    wrong += lines
    if page is not None:
        wrong += _unknown(page)
        cells = _cells(page, wrong)
    if page is None or wrong:
        raise MistakesError([clean(f"{path}: {line}", 4096) for line in wrong])
    return RecipeTable(path, page, cells)


def _cells(page: TablePage, wrong: list[str]) -> dict[str, Cell]:
    """Cells by recipe name; mistakes are appended to ``wrong``."""
    cells: dict[str, Cell] = {}
    for i, raw_part in enumerate(page.tables, 1):
        part, lines = mistakes.checked(TablePart, raw_part, f"tables, item {i}: ")
        wrong += lines
        if part is None:
            continue
        unknown = [column for column in part.columns if column not in page.methods]
        wrong += [f"{part.table}: columns: {mistakes.unknown(column, page.methods)}" for column in unknown]
        for j, raw_row in enumerate(part.rows, 1):
            row, lines = mistakes.checked(TableRow, raw_row, f"{part.table}, row {j}: ")
            wrong += lines
            if row is None:
                continue
            names = _names(page, part, row)
            lines = [*_mistakes(page, part, row)]
            lines += [f"a second recipe of the name {name}; use another name" for name in names if name in cells]
            invalid, use = [name for name in names if not NAME.fullmatch(name)], "a name of letters, digits, _ and -"
            lines += [f"a recipe cannot be called {mistakes.quoted(name)}; use {use}" for name in invalid]
            wrong += [f"{part.table}, row {j}, {names[0]}: {line}" for line in lines]
            columns = enumerate(part.columns)
            cells |= {name: Cell(part, row, *column) for name, column in zip(names, columns, strict=True)}
    return cells


def _unknown(page: TablePage) -> Iterator[str]:
    layers = {"base": page.base}
    for kind in ("data", "splits", "methods"):
        layers |= {f"{kind}.{name}": sections for name, sections in getattr(page, kind).items()}
    for place, sections in layers.items():
        for section in sections:
            if section not in SECTIONS:
                yield f"{place}.{section}: unknown section{mistakes.nearest(section, SECTIONS)}"
    if page.default is not None and page.default not in page.methods:
        yield f"default: {mistakes.unknown(page.default, page.methods)}"


def _mistakes(page: TablePage, part: TablePart, row: TableRow) -> Iterator[str]:
    for key, name, known in (("data", row.data, page.data), ("split", row.split, page.splits)):
        if name is not None and name not in known:
            yield f"{key}: {mistakes.unknown(name, known)}"
    columns = len(part.columns)
    for key, numbers in (("values", row.values), ("rounds_to.values", row.rounds_to and row.rounds_to.values)):
        if isinstance(numbers, list) and len(numbers) != columns:
            yield f"{key}: {len(numbers)} for {columns} columns; use null where the paper has none"
    for column in row.by_column:
        if column not in part.columns:
            yield f"each: {mistakes.unknown(column, part.columns)}"
    for key in dict.fromkeys([*row.set, *(key for keys in row.by_column.values() for key in keys)]):
        section, dot, inner = key.partition(".")
        if not (dot and inner and section in SECTIONS):
            yield f"'{key}' is not a section.key, such as train_args.epochs{mistakes.nearest(section, SECTIONS)}"
    methods = [page.methods.get(column, {}) for column in part.columns]
    values = [value for sections in methods for keys in sections.values() for value in keys.values()]
    wanted = {value[1:] for value in values if isinstance(value, str) and value.startswith("$")}
    for name in sorted(wanted - row.args.keys()):
        yield f"args.{name}: missing; a method contains ${name}"
    for name in row.args.keys() - wanted:
        yield f"args.{name}: {mistakes.unknown_key(name, sorted(wanted))}"


def _names(page: TablePage, part: TablePart, row: TableRow) -> list[str]:
    label = re.sub(r"[^a-z0-9_-]", "", part.table.lower())
    stem = row.name or "_".join(filter(None, (label, row.data, row.split)))
    return [stem if column == page.default else f"{stem}_{column}" for column in part.columns]


def _filled(sections: RawSections, args: Keys) -> RawSections:
    """Sections with the row's value for each ``$name``."""
    values = {f"${name}": value for name, value in args.items()}
    return {
        section: {key: values.get(value, value) if isinstance(value, str) else value for key, value in keys.items()}
        for section, keys in sections.items()
    }


def _sections(keys: Keys) -> RawSections:
    sections: RawSections = {}
    for key, value in keys.items():
        section, _, inner = key.partition(".")
        sections.setdefault(section, {})[inner] = value
    return sections


def _expected(page: TablePage, cell: Cell) -> Iterator[dict[str, Any]]:
    row = cell.row
    value = row.values[cell.number] if row.values else None
    if value is not None:
        mean, std = value if isinstance(value, tuple) else (value, None)
        tolerance = WITHOUT_STD if std is None else max(1.0, round(2 * std, 2))  # at least one per cent
        measure: dict[str, Any] = {"measure": page.measure, "tolerance": tolerance}
        yield {"value": mean, **measure, "paper": page.paper, "table": cell.part.table}
    if (to := row.rounds_to) and (rounds := to.values[cell.number]) is not None:
        measure = {"measure": "rounds_to", "target": to.target, "tolerance": round(rounds / 10)}
        yield {"value": rounds, **measure, "paper": page.paper, "table": to.table}
