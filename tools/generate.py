"""Write the generated files: the schema of recipes, and the parts of the documentation that come from the code.

    make generated

Such a part of a page is between ``<!-- generated: keys -->`` and ``<!-- end of generated -->``. The pictures in
docs/methods are excluded, because their bytes depend on the version of Matplotlib:
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
BLOCK = re.compile(r"(<!-- generated: (\w+)(.*?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
RESULTS_SECTION = re.compile(r"^## (.*)\n+<!-- numbers of methods: (.*) -->\n((?:(?!^## ).*\n)*)", re.MULTILINE)
"""A section of docs/results.md for the pages of methods: title, setting and content."""
OMITTED_COLUMNS = {"rank", "rounds to FedAvg's best", "MB up", "MB down", "s"}
"""Columns of these tables that the pages of methods do not show."""


def schema() -> str:
    """The JSON Schema of recipes."""
    return json.dumps(json_schema(), indent=2) + "\n"


def names(kind: catalog.Kind) -> list[str]:
    """The names of this package's plugins of a kind."""
    return [entry.name for entry in catalog.entries(kind) if entry.distribution == extras.PACKAGE]


def equation(name: str) -> Iterator[str]:
    """The equations and the text in the docstring of a method."""
    for text, is_equation in plugins.paragraphs(catalog.load("methods", name).__doc__):
        yield f"```math\n{text}\n```" if is_equation else text.replace("``", "`")


def parameters(kind: catalog.Kind, name: str) -> Iterator[str]:
    """The parameters of a plugin."""
    yield _keys(catalog.load(kind, name).Params)


def keys() -> Iterator[str]:
    """All keys of a recipe and of a silo's policy file, by section and plugin."""
    for section, model in {**SECTIONS, EXPECTED: Expected, POLICY: Policy}.items():
        yield f"## {section}"
        yield (model.__doc__ or "").replace("``", "`").replace("\n    ", "\n").strip()
        yield _keys(model)
        if section in PLUGGED:
            kind = PLUGGED[section].kind
            loaded = {name: catalog.load(kind, name) for name in names(kind)}
            if without := [f"`{name}`" for name, plugin in loaded.items() if not plugin.Params.model_fields]:
                yield f"No keys of their own: {', '.join(without)}."
            for name, plugin in loaded.items():
                if plugin.Params.model_fields:
                    first, *_ = (plugin.__doc__ or "").strip().split("\n")
                    yield f"### {section} of {name}\n\n{first.replace('``', '`')}"
                    yield _keys(plugin.Params)


def _keys(model: Any) -> str:
    rows = [[f"`{key}`", f"`{default}`", *words] for key, default, *words in plugins.parameters(model)]
    return _table(["key", "default", "type and range", "meaning"], rows) if rows else "No parameters."


def _table(head: list[str], rows: list[list[str]]) -> str:
    unbroken = [[cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for cell in row] for row in rows]
    return table.markdown(head, unbroken)


def commands(command: click.Command = labelskew, path: str = "labelskew") -> Iterator[str]:
    """The help texts of a command and its subcommands."""
    context = click.Context(command, info_name=path, terminal_width=80, **labelskew.context_settings)
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```"
    for name, subcommand in sorted(command.commands.items() if isinstance(command, click.Group) else ()):
        yield from commands(subcommand, f"{path} {name}")


def numbers() -> str:
    """The tables of docs/results.md with accuracies of methods, as JSON for ``labelskew methods NAME``."""
    results = []
    for title, setting, text in RESULTS_SECTION.findall((ROOT / "docs/results.md").read_text(encoding="utf-8")):
        for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
            shown = [i for i, column in enumerate(head) if column not in OMITTED_COLUMNS]
            cells = [[row[i] for i in shown] for row in (head, *rows)]
            results.append(measured.ResultTable(title, setting, cells[0], cells[1:])._asdict())
    return "[\n" + ",\n".join(json.dumps(result, ensure_ascii=False) for result in results) + "\n]\n"


def our_results(name: str) -> Iterator[str]:
    """Our measured accuracies of a method and of FedAvg."""
    last_title = ""
    for title, setting, head, rows in measured.of_method(name):
        if title != last_title:
            anchor = re.sub(r"[^a-z0-9]+", "-", title.lower())
            yield f"Source, with the commands: [{title}](../results.md#{anchor}). Accuracy in %; {setting}:"
        yield _table(head, rows)
        last_title = title


_read_table = cache(tables.read)  # tables are large, and the page of each method needs all of them


def paper_results(name: str) -> Iterator[str]:
    """The papers' accuracies of a method and of FedAvg, from the tables in recipes/papers."""
    for path in sorted((ROOT / "recipes/papers").glob("*.yaml")):
        content = _read_table(path)
        methods = content.page.methods
        rows: dict[int, tuple[tables.Cell, str]] = {}
        for recipe, cell in content.cells.items():
            if methods[cell.column]["method_args"]["method"] == name:
                rows.setdefault(id(cell.row), (cell, recipe))
        for part in {id(cell.part): cell.part for cell, _ in rows.values()}.values():
            columns = [
                i for i, column in enumerate(part.columns)
                if column == "fedavg" or methods[column]["method_args"]["method"] == name
            ]  # fmt: skip
            body = [
                [f"`{path.stem}/{recipe}`", *(_number(cell.row, i, _digits(part)) for i in columns)]
                for cell, recipe in rows.values()
                if cell.part is part
            ]
            measure = content.page.measure.replace("_", " ")
            yield f"{content.page.paper}, {part.table[0].lower()}{part.table[1:]} ({measure} in %):"
            yield _table(["recipe", *(_column_name(methods[part.columns[i]]) for i in columns)], body)


def published(name: str) -> Iterator[str]:
    """A published table and our runs, from benchmarks/published: best rounds, differences and verdicts."""
    folder = ROOT / "benchmarks/published"
    content, _ = yaml.read((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    lines = csv.DictReader((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines())
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines:
        runs.setdefault((line["setting"], line["method"]), []).append(line)
    rows, hours = [], 0.0
    for (setting, method), seeds in runs.items():
        best = [float(line["best"]) for line in seeds]
        last = [float(line["last"]) for line in seeds if line["last"]]
        hours += sum(float(line["hours"]) for line in seeds)
        mean, expected = statistics.fmean(best), content["published"].get(setting, {}).get(method)
        cells = ["", "", "not published"]
        if expected is not None:
            difference, verdict = mean - expected[0], "reached"
            if abs(difference) > 2 * expected[1]:
                verdict = "beyond" if difference > 0 else "fell short"
            cells = [f"{expected[0]:.2f} ± {expected[1]:.2f}", f"{difference:+.2f}", verdict]
        spread = f" ± {statistics.stdev(best):.2f}" if len(best) > 1 else ""
        mean_last = f"{statistics.fmean(last):.2f}" if last else "not recorded"
        rows.append([setting, method, str(len(best)), f"{mean:.2f}{spread}", mean_last, *cells])
    head = ["setting", "method", "seeds", "ours, best round", "ours, last 5", "published", "difference", "verdict"]
    yield _table(head, rows)
    yield f"These runs took {hours:.1f} hours of one core."


def _number(row: tables.Row, i: int, digits: tuple[int, int]) -> str:
    value = row.values[i] if row.values else None
    mean, std = value if isinstance(value, tuple) else (value, None)
    text = "" if mean is None else f"{mean:.{digits[0]}f}" + ("" if std is None else f" ± {std:.{digits[1]}f}")
    reached = row.rounds_to
    if not reached or not reached.values[i]:
        return text
    return f"{text}; reaches {reached.target:.{digits[0]}f} in round {reached.values[i]}"


def _digits(part: tables.Part) -> tuple[int, int]:
    """The number of decimals of the means and standard deviations of a paper; YAML drops a trailing 0."""
    values = [value if isinstance(value, list) else [value] for row in part.rows for value in row.get("values", ())]
    mean, std = ([str(value[i]).partition(".")[2] for value in values if len(value) > i] for i in (0, 1))
    return max(map(len, mean), default=0), max(map(len, std), default=0)


def _column_name(sections: tables.Sections) -> str:
    """The name of a column, from its settings."""
    set_by_rows = {**sections["method_args"], **sections.get("train_args", {})}
    words = [f"{key} {value}" for key, value in set_by_rows.items() if not str(value).startswith("$")]
    return ", ".join(word.removeprefix("method ").removeprefix("federated_optimizer ") for word in words)


GENERATORS: dict[str, Callable[..., Iterator[str]]] = {
    **{function.__name__: function for function in (equation, parameters, keys, commands, published)},
    **{"ours": our_results, "theirs": paper_results},
}
"""Functions by their names in the comments of pages; each yields paragraphs and tables."""


def page(path: Path) -> str:
    """The text of a page with new generated parts."""

    def generated(match: re.Match[str]) -> str:
        blocks = GENERATORS[match[2]](*match[3].split())
        return match[1] + "".join(f"\n{block}\n" for block in blocks) + "\n" + match[4]

    return BLOCK.sub(generated, path.read_text(encoding="utf-8"))


GENERATED: list[tuple[Path, Callable[[], str]]] = [
    (ROOT / "recipes" / shipped.SCHEMA, schema),
    (measured.FILE, numbers),
    *((path, partial(page, path)) for path in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(path.read_text())),
]
"""Each generated file, and the function that returns its text."""


def main() -> None:
    """Write the changed files, and print their paths."""
    for path, text in GENERATED:
        if path.read_text(encoding="utf-8") != (new := text()):
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
