"""What Sphinx lacks for this site: tables made of the code, links that hold in a checkout too, and formulas.

A page has ``<!-- filled: parameters methods fedlc -->`` where a table belongs; where the page is read as Markdown, it
is not seen. Formulas become pictures, so that a browser needs neither a script nor a font from elsewhere for them.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from fl_labelskew_registry import catalog
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from fl_labelskew_plugins.cli import plugins, table
from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.recipe import tables
from fl_labelskew_plugins.recipe.beside import Expected, Policy
from fl_labelskew_plugins.recipe.model import EXPECTED, PLUGGED, POLICY, SECTIONS

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PLACE = re.compile(r"^<!-- filled: (\w+)(.*) -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()#\s]+)(#[^()\s]*)?\)")
PAGES = {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing.md",
    ROOT / "examples/fedml_script/README.md": DOCS / "fedml.md",
    ROOT / "examples/hospitals": DOCS / "tutorials/hospitals.md",
    ROOT / "examples/third_party_method": DOCS / "adding-a-method.md",
}
"""Where in the site something is that lies outside of this folder."""


def relinked(text: str, file: Path, page: Path) -> str:
    """A file's text with the links that it needs as a ``page`` of the site; what the site has not is no link there."""

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = (file.parent / target).resolve()
        if not path.exists():
            return found[0]  # an address, or a link that is broken, which the build tells
        path = PAGES.get(path, path)
        if not path.is_relative_to(DOCS):
            return words
        # without words of its own, a link to a page has the page's title
        words = "" if words == target and path.suffix == ".md" else words
        return f"{picture}[{words}]({os.path.relpath(path, page.parent)}{anchor})"

    return LINK.sub(link, text)


def parameters(kind: catalog.Kind, name: str) -> str:
    """What a plugin takes."""
    return _keys(catalog.load(kind, name).Params)


def keys() -> Iterator[str]:
    """All that a recipe, or a silo's own file, may say: a section each, and a part for each plugin."""
    for section, model in {**SECTIONS, EXPECTED: Expected, POLICY: Policy}.items():
        yield f"## {section}"
        yield (model.__doc__ or "").replace("``", "`").replace("\n    ", "\n")
        yield _keys(model)
        if section in PLUGGED:
            chooser = PLUGGED[section]
            loaded = {entry.name: catalog.load(chooser.kind, entry.name) for entry in catalog.entries(chooser.kind)}
            if plain := [f"`{name}`" for name, plugin in loaded.items() if not plugin.Params.model_fields]:
                yield f"No keys of their own: {', '.join(plain)}.\n"
            for name, plugin in loaded.items():
                if plugin.Params.model_fields:
                    first, *_ = (plugin.__doc__ or "").strip().split("\n")
                    yield f"### {section} of {name}\n\n{first}\n"
                    yield _keys(plugin.Params)


def _keys(model: Any) -> str:
    rows = [[f"`{key}`", f"`{default}`", *words] for key, default, *words in plugins.parameters(model)]
    return _table(["key", "default", "type and range", "meaning"], rows) if rows else "No parameters.\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    whole = [[cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for cell in row] for row in rows]
    return table.markdown(head, whole) + "\n"


def commands(command: click.Command = main, path: str = "labelskew") -> Iterator[str]:
    """What ``--help`` says of a command, and of those below it."""
    context = click.Context(command, info_name=path, terminal_width=80, **main.context_settings)
    yield f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"
    for name, verb in sorted(command.commands.items() if isinstance(command, click.Group) else ()):
        yield from commands(verb, f"{path} {name}")


def ours(name: str) -> Iterator[str]:
    """What docs/results.md has of a method, beside FedAvg, and the commands that measure it."""
    unwanted = {"rank", "rounds to FedAvg's best", "MB up", "MB down", "s"}
    for section in (DOCS / "results.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        parts = []
        for lines in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
            head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
            methods = [row[0].replace("`", "").lower().partition(",")[0] for row in rows]
            if "P10C2" not in head or not any(name in method.split("+") for method in methods):
                continue
            kept = [i for i, column in enumerate(head) if column not in unwanted]
            plain = head[1] != "optimiser"
            rows = [
                [row[i] for i in kept]
                for row, method in zip(rows, methods, strict=True)
                if name in method.split("+") or (method == "fedavg" and (plain or row[1] == "FedAvg"))
            ]
            parts.append(_table([head[i] for i in kept], rows))
        if parts:
            title, command = section.partition("\n")[0], re.search(r"```\n.*?```\n", section, re.DOTALL)
            yield f"From [{title}](../results.md#{re.sub(r'[^a-z0-9]+', '-', title.lower())}):\n"
            yield from parts
            yield command[0] if command else ""


def theirs(name: str) -> Iterator[str]:
    """What papers print of a method, beside FedAvg, as the tables of recipes/papers have it."""
    for path in sorted((ROOT / "recipes/papers").glob("*.yaml")):
        page = tables.read(path)
        made = page.page.methods
        rows: dict[int, tuple[tables.Cell, str]] = {}
        for recipe, cell in page.cells.items():
            if made[cell.column]["method_args"]["method"] == name:
                rows.setdefault(id(cell.row), (cell, recipe))
        for part in {id(cell.part): cell.part for cell, _ in rows.values()}.values():
            numbers = [
                i for i, column in enumerate(part.columns)
                if column == "fedavg" or made[column]["method_args"]["method"] == name
            ]  # fmt: skip
            body = [
                [f"`{path.stem}/{recipe}`", *(_number(cell.row, i, _digits(part)) for i in numbers)]
                for cell, recipe in rows.values()
                if cell.part is part
            ]
            measure = page.page.measure.replace("_", " ")
            yield f"{page.page.paper}, {part.table[0].lower()}{part.table[1:]} ({measure} in %):\n"
            yield _table(["recipe", *(_called(made[part.columns[i]]) for i in numbers)], body)


def _number(row: tables.Row, i: int, digits: tuple[int, int]) -> str:
    value = row.values[i] if row.values else None
    mean, std = value if isinstance(value, tuple) else (value, None)
    text = "" if mean is None else f"{mean:.{digits[0]}f}" + ("" if std is None else f" ± {std:.{digits[1]}f}")
    to = row.rounds_to
    return f"{text}, {to.values[i]} rounds to {to.target:.{digits[0]}f}" if to and to.values[i] else text


def _digits(part: tables.Part) -> tuple[int, int]:
    """How many a paper prints behind the point, of means and of their std; YAML drops a last 0."""
    values = [value if isinstance(value, list) else [value] for row in part.rows for value in row.get("values", ())]
    mean, std = ([str(value[i]).partition(".")[2] for value in values if len(value) > i] for i in (0, 1))
    return max(map(len, mean), default=0), max(map(len, std), default=0)


def _called(sections: tables.Sections) -> str:
    """A column by what it sets."""
    set_by_rows = {**sections["method_args"], **sections.get("train_args", {})}
    words = [f"{key} {value}" for key, value in set_by_rows.items() if not str(value).startswith("$")]
    return ", ".join(word.removeprefix("method ").removeprefix("federated_optimizer ") for word in words)


MAKERS = {f.__name__: f for f in (parameters, keys, commands, ours, theirs)}
"""What a page may ask for."""


def read(page: Path, text: str) -> str:
    """A page's Markdown with its tables and its links."""

    def filled(place: re.Match[str]) -> str:
        made = MAKERS[place[1]](*place[2].split())
        return made if isinstance(made, str) else "\n".join(made)

    return PLACE.sub(filled, relinked(text, page, page))


SPELLINGS = {
    r"\\[bB]igl(?![a-zA-Z])": r"\\left",
    r"\\[bB]igr(?![a-zA-Z])": r"\\right",
    r"\\[lr]?Vert(?![a-zA-Z])": r"\\|",
    r"\\ge(?![a-zA-Z])": r"\\geq",
    r"\\ne(?![a-zA-Z])": r"\\neq",
    r"\\(sqrt|mathcal) (\w)": r"\\\1{\2}",
    r"\\frac(\\\w+|\d)\{?(\w+)\}?": r"\\frac{\1}{\2}",
    r"\\frac\b": r"\\dfrac",
    r"\\sum((?:[_^](?:\{[^{}]*\}|\w))*)": r"\\,\\sum\1\\,",
}
"""LaTeX that Matplotlib does not read, and how it would."""


def drawn(formula: str) -> str:
    """A formula as SVG, in the colour and size of the text around it."""
    tex = " ".join(formula.split())
    for latex, spelling in SPELLINGS.items():
        tex = re.sub(latex, spelling, tex)
    path = TextPath((0, 0), f"${tex}$", size=100, prop=FontProperties(math_fontfamily="stix"))
    steps = [
        "Z" if code == path.CLOSEPOLY else " MLQC"[code] + " ".join(f"{x:.0f}" for x in points)
        for points, code in path.transformed(Affine2D().scale(1, -1)).iter_segments()
    ]
    box = path.get_extents().padded(5)
    return (
        f'<svg role="img" aria-label="{html.escape(tex)}" fill="currentColor" width="{box.width / 90:.2f}em" '
        f'viewBox="{box.x0:.0f} {-box.y1:.0f} {box.width:.0f} {box.height:.0f}" '
        f'style="vertical-align: {box.y0 / 90:.2f}em"><path d="{"".join(steps)}"/></svg>'
    )


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(drawn(node.astext()))
    raise nodes.SkipNode


def _display(self: Any, node: nodes.Element) -> None:
    self.body.append(f'<p style="overflow-x: auto; white-space: nowrap">{drawn(node.astext())}</p>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""

    def source_read(app: Any, docname: str, content: list[str]) -> None:
        content[0] = read(Path(app.env.doc2path(docname)), content[0])

    def include_read(app: Any, path: Path, parent: str, content: list[str]) -> None:
        # MyST gives only the last part of the page's name as its parent
        content[0] = relinked(content[0], (DOCS / path).resolve(), Path(app.env.doc2path(app.env.docname)))

    app.connect("source-read", source_read)
    app.connect("include-read", include_read)
    app.add_html_math_renderer("drawn", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
