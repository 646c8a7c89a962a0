"""Write the generated files again: the schema of recipes, and the tables that the documentation takes from the code.

    make generated

A page of the documentation has such a table between ``<!-- generated: keys -->`` and ``<!-- end of generated -->``.
The pictures of docs/methods are not among them, since their bytes depend on the installed Matplotlib:
``python tools/method_pictures.py``.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
from fl_labelskew_registry import catalog

from fl_labelskew_plugins.cli import plugins, table
from fl_labelskew_plugins.cli.main import main as labelskew
from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.recipe import shipped, tables, yaml
from fl_labelskew_plugins.recipe.model import EXPECTED, PLUGGED, POLICY, SECTIONS
from fl_labelskew_plugins.recipe.schema import json_schema
from fl_labelskew_plugins.recipe.sections import Expected, Policy
from fl_labelskew_plugins.surveys import measured

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- generated: (\w+)(.*?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
MEASURED = re.compile(r"^## (.*)\n+<!-- numbers of methods: (.*) -->\n((?:(?!^## ).*\n)*)", re.MULTILINE)
"""A section of docs/results.md whose tables are also those of methods: title, setting and content."""
UNWANTED = {"rank", "rounds to FedAvg's best", "MB up", "MB down", "s"}
"""Columns that the pages of methods do not show."""


def schema() -> str:
    """The JSON Schema of recipes."""
    return json.dumps(json_schema(), indent=2) + "\n"


def names(kind: catalog.Kind) -> list[str]:
    """The built-in plugins of a kind, without those of other packages."""
    return [entry.name for entry in catalog.entries(kind) if entry.distribution == extras.PACKAGE]


def equation(name: str) -> Iterator[str]:
    """The equations of a method, with the words around them."""
    for text, is_equation in plugins.paragraphs(catalog.load("methods", name).__doc__):
        yield f"```math\n{text}\n```" if is_equation else text.replace("``", "`")


def parameters(kind: catalog.Kind, name: str) -> Iterator[str]:
    """What a plugin takes."""
    yield _keys(catalog.load(kind, name).Params)


def keys() -> Iterator[str]:
    """All that a recipe, or a silo's own file, may print_line: a section each, and a part for each plugin."""
    for section, model in {**SECTIONS, EXPECTED: Expected, POLICY: Policy}.items():
        yield f"## {section}"
        yield (model.__doc__ or "").replace("``", "`").replace("\n    ", "\n").strip()
        yield _keys(model)
        if section in PLUGGED:
            kind = PLUGGED[section].kind
            loaded = {name: catalog.load(kind, name) for name in names(kind)}
            if plain := [f"`{name}`" for name, plugin in loaded.items() if not plugin.Params.model_fields]:
                yield f"No keys of their own: {', '.join(plain)}."
            for name, plugin in loaded.items():
                if plugin.Params.model_fields:
                    first, *_ = (plugin.__doc__ or "").strip().split("\n")
                    yield f"### {section} of {name}\n\n{first.replace('``', '`')}"
                    yield _keys(plugin.Params)


def _keys(model: Any) -> str:
    rows = [[f"`{key}`", f"`{default}`", *words] for key, default, *words in plugins.parameters(model)]
    return _table(["key", "default", "type and range", "meaning"], rows) if rows else "No parameters."


def _table(head: list[str], rows: list[list[str]]) -> str:
    whole = [[cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for cell in row] for row in rows]
    return table.markdown(head, whole)


def commands(command: click.Command = labelskew, path: str = "labelskew") -> Iterator[str]:
    """The help of a command, and of those below it."""
    context = click.Context(command, info_name=path, terminal_width=80, **labelskew.context_settings)
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```"
    for name, verb in sorted(command.commands.items() if isinstance(command, click.Group) else ()):
        yield from commands(verb, f"{path} {name}")


def numbers() -> str:
    """The tables of docs/results.md with the accuracies of methods, for ``labelskew methods NAME``."""
    results = []
    for title, setting, text in MEASURED.findall((ROOT / "docs/results.md").read_text(encoding="utf-8")):
        for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
            kept = [i for i, column in enumerate(head) if column not in UNWANTED]
            cells = [[row[i] for i in kept] for row in (head, *rows)]
            results.append(measured.ResultTable(title, setting, cells[0], cells[1:])._asdict())
    return "[\n" + ",\n".join(json.dumps(result, ensure_ascii=False) for result in results) + "\n]\n"


def ours(name: str) -> Iterator[str]:
    """The measured accuracies of a method, next to FedAvg's."""
    last = ""
    for title, setting, head, rows in measured.of_method(name):
        if title != last:
            anchor = re.sub(r"[^a-z0-9]+", "-", title.lower())
            yield f"Source, with the commands: [{title}](../results.md#{anchor}). Accuracy in %; {setting}:"
        yield _table(head, rows)
        last = title


_read_table = cache(tables.read)  # tables are large, and every method's page needs all


def theirs(name: str) -> Iterator[str]:
    """What papers print of a method, next to FedAvg, as the tables of recipes/papers have it."""
    for path in sorted((ROOT / "recipes/papers").glob("*.yaml")):
        page = _read_table(path)
        made = page.page.methods
        rows: dict[int, tuple[tables.Cell, str]] = {}
        for recipe, cell in page.cells.items():
            if made[cell.column]["method_args"]["method"] == name:
                rows.setdefault(id(cell.row), (cell, recipe))
        for part in {id(cell.part): cell.part for cell, _ in rows.values()}.values():
            columns = [
                i for i, column in enumerate(part.columns)
                if column == "fedavg" or made[column]["method_args"]["method"] == name
            ]  # fmt: skip
            body = [
                [f"`{path.stem}/{recipe}`", *(_number(cell.row, i, _digits(part)) for i in columns)]
                for cell, recipe in rows.values()
                if cell.part is part
            ]
            measure = page.page.measure.replace("_", " ")
            yield f"{page.page.paper}, {part.table[0].lower()}{part.table[1:]} ({measure} in %):"
            yield _table(["recipe", *(_called(made[part.columns[i]]) for i in columns)], body)


def published(name: str) -> Iterator[str]:
    """A published table next to our runs, from benchmarks/published: best rounds, differences and verdicts."""
    folder = ROOT / "benchmarks/published"
    content, _ = yaml.read((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    lines = csv.DictReader((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines())
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines:
        runs.setdefault((line["setting"], line["method"]), []).append(line)
    rows, hours = [], 0.0
    for (setting, method), ours in runs.items():
        best = [float(line["best"]) for line in ours]
        last = [float(line["last"]) for line in ours if line["last"]]
        hours += sum(float(line["hours"]) for line in ours)
        mean, theirs = statistics.fmean(best), content["published"].get(setting, {}).get(method)
        cells = ["", "", "not in their table"]
        if theirs is not None:
            difference, verdict = mean - theirs[0], "reached"
            if abs(difference) > 2 * theirs[1]:
                verdict = "beyond" if difference > 0 else "fell short"
            cells = [f"{theirs[0]:.2f} ± {theirs[1]:.2f}", f"{difference:+.2f}", verdict]
        spread = f" ± {statistics.stdev(best):.2f}" if len(best) > 1 else ""
        after = f"{statistics.fmean(last):.2f}" if last else "not recorded"
        rows.append([setting, method, str(len(best)), f"{mean:.2f}{spread}", after, *cells])
    head = ["setting", "method", "seeds", "ours, best round", "ours, last 5", "published", "difference", "verdict"]
    yield _table(head, rows)
    yield f"These runs took {hours:.1f} hours of one core."


def _number(row: tables.Row, i: int, digits: tuple[int, int]) -> str:
    value = row.values[i] if row.values else None
    mean, std = value if isinstance(value, tuple) else (value, None)
    text = "" if mean is None else f"{mean:.{digits[0]}f}" + ("" if std is None else f" ± {std:.{digits[1]}f}")
    to = row.rounds_to
    return f"{text}; reaches {to.target:.{digits[0]}f} in round {to.values[i]}" if to and to.values[i] else text


def _digits(part: tables.Part) -> tuple[int, int]:
    """How many a paper prints behind the point, of means and of their std; YAML drops a last 0."""
    values = [value if isinstance(value, list) else [value] for row in part.rows for value in row.get("values", ())]
    mean, std = ([str(value[i]).partition(".")[2] for value in values if len(value) > i] for i in (0, 1))
    return max(map(len, mean), default=0), max(map(len, std), default=0)


def _called(sections: tables.Sections) -> str:
    """A column by its settings."""
    set_by_rows = {**sections["method_args"], **sections.get("train_args", {})}
    words = [f"{key} {value}" for key, value in set_by_rows.items() if not str(value).startswith("$")]
    return ", ".join(word.removeprefix("method ").removeprefix("federated_optimizer ") for word in words)


MAKERS: dict[str, Callable[..., Iterator[str]]] = {
    maker.__name__: maker for maker in (equation, parameters, keys, commands, ours, theirs, published)
}
"""The parts that a page may ask for; each yields paragraphs and tables."""


def page(path: Path) -> str:
    """A page with its generated parts made again."""

    def made(place: re.Match[str]) -> str:
        return place[1] + "".join(f"\n{block}\n" for block in MAKERS[place[2]](*place[3].split())) + "\n" + place[4]

    return PLACE.sub(made, path.read_text(encoding="utf-8"))


GENERATED: list[tuple[Path, Callable[[], str]]] = [
    (ROOT / "recipes" / shipped.SCHEMA, schema),
    (measured.FILE, numbers),
    *((path, partial(page, path)) for path in sorted((ROOT / "docs").rglob("*.md")) if PLACE.search(path.read_text())),
]
"""Each generated file, and the function that returns its text."""


def main() -> None:
    """Write the files that have changed, and name them."""
    for path, text in GENERATED:
        if path.read_text(encoding="utf-8") != (made := text()):
            path.write_text(made, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
