"""Recipes by name: files and rows of tables that come with the package, and rows of a table of one's own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import MistakesError

from fl_labelskew_plugins.machine import log

if TYPE_CHECKING:
    from fl_labelskew_plugins.recipe.tables import RecipeTable

COPY = "labelskew recipes cp {}"
SCHEMA = "recipe.schema.json"
"""Beside the recipes: what ``labelskew schema`` prints, for editors."""
MODELINE = "# yaml-language-server: $schema="
"""Begins a recipe's first line, which tells an editor where its schema lies, from the recipe's own folder."""
PAPERS = "papers"
"""Folder of the papers' tables, beside the recipes that are files."""


@cache
def folder(what: str = "recipes") -> Path:
    """Where recipes, examples or sweeps lie: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / what
    return inside if inside.is_dir() else package.parent / what


def files() -> dict[str, Path]:
    """Name to file of every recipe that is one."""
    paths = (path for path in sorted(folder().rglob("*.yaml")) if path.parent != folder() / PAPERS)
    return {path.relative_to(folder()).with_suffix("").as_posix(): path for path in paths}


def papers() -> dict[str, Path]:
    """Name to file of every paper's table."""
    return {path.stem: path for path in sorted((folder() / PAPERS).glob("*.yaml"))}


@cache
def table(paper: str) -> RecipeTable:
    """A paper's table, read once."""
    from fl_labelskew_plugins.recipe import tables

    path = papers()[paper]
    return tables.read(path)


def names() -> list[str]:
    """Of all recipes, the files' first."""
    return [*files(), *(f"{paper}/{row}" for paper in papers() for row in table(paper).cells)]


def contents(paper: str | None = None) -> dict[str, dict[str, Any]]:
    """Name to sections of a paper's recipes, or of those that belong to none, sorted."""
    from fl_labelskew_plugins.recipe import yaml

    known, recipes = papers(), {}
    for name, path in files().items():
        first = name.partition("/")[0]
        if (first if first in known else None) == paper:
            recipes[name] = yaml.read(path.read_text("utf-8"))[0]
    if paper is not None:
        recipes |= {f"{paper}/{row}": table(paper).content(row) for row in table(paper).cells}
    return dict(sorted(recipes.items()))


def named(name: str) -> str | None:
    """The text of the recipe of this name; None where there is none.

    A name is that of a file (``quickstart``), of a row of a paper's table (``fedmr/table1_fmnist_p10c2``), or
    ``PATH/ROW`` for a row of a table of one's own in ``PATH.yaml``.

    Raises:
        MistakesError: the table has no such row, or is none.
    """
    place, _, row = name.rpartition("/")
    if (file := files().get(name)) is not None:
        return file.read_text("utf-8")
    if place in papers():
        page = table(place)
    elif place and os.path.isfile(path := f"{place}.yaml"):
        from fl_labelskew_plugins.recipe import tables

        page = tables.read(Path(path))
    else:
        return None
    if row not in page.cells:
        raise unknown(name, [f"{place}/{known}" for known in page.cells])
    return page.text(row, name)


def beside_schema(recipe: str) -> str:
    """The text of a recipe that says of its schema that it lies beside it."""
    return f"{MODELINE}{SCHEMA}\n{recipe.partition(chr(10))[2] if recipe.startswith(MODELINE) else recipe}"


def text(path: str | Path) -> str | None:
    """The text of the recipe that a path names; None where it is the path of a file, or can only be meant as one.

    What lies in a checkout's ``recipes/``, or once did, is found by its path there, ``recipes/NAME.yaml``, too, with a
    warning that the file is not here.

    Raises:
        MistakesError: it can only be meant as a name, and is none.
    """
    is_folder = os.path.isdir(path)
    if os.path.exists(path) and not is_folder:
        return None
    typed = Path(path).as_posix()
    name = typed.removeprefix("recipes/").removesuffix(".yaml") if typed.startswith("recipes/") else typed
    recipe = named(name)
    if recipe is not None and name != typed:
        _not_here(typed, name)
    if recipe is None and not is_folder and not Path(path).suffix and not Path(path).is_absolute():
        raise unknown(name, names())
    return recipe


@cache
def _not_here(path: str, name: str) -> None:
    """Warn, once, that a recipe of the package stands in for a file."""
    log.warn(f"{path} is not here; taking the recipe {name} of the package ({COPY.format(name)} makes a file of it)")


def hint(path: str | Path) -> str:
    """What to type instead of a path where there is nothing, if a recipe of the package is called so; else nothing."""
    for name in (Path(path).as_posix().removesuffix(".yaml"), Path(path).stem):
        if name in files():
            return f"; the package has a recipe {name}: type its name alone, or {COPY.format(name)}"
    return ""


def unknown(name: str, known: Iterable[str]) -> MistakesError:
    """What is said of a name that no recipe has."""
    from fl_labelskew_plugins.recipe import mistakes

    line = f"recipe {mistakes.show(name)} is unknown; use one of labelskew recipes ls"
    return MistakesError([line + mistakes.nearest(name, known, 3)])
