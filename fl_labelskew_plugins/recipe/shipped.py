"""Recipes by name: files and rows of tables."""

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
MODELINE = "# yaml-language-server: $schema="  # first line of a recipe
PAPERS = "papers"  # folder


@cache
def folder(name: str = "recipes") -> Path:
    """Folder of recipes, examples or sweeps."""
    package = Path(__file__).parent.parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def files() -> dict[str, Path]:
    """Recipes that are files, by name."""
    paths = (path for path in sorted(folder().rglob("*.yaml")) if path.parent != folder() / PAPERS)
    return {path.relative_to(folder()).with_suffix("").as_posix(): path for path in paths}


def papers() -> dict[str, Path]:
    """Files of tables, by paper."""
    return {path.stem: path for path in sorted((folder() / PAPERS).glob("*.yaml"))}


@cache
def table(paper: str) -> RecipeTable:
    """A paper's table."""
    from fl_labelskew_plugins.recipe import tables

    return tables.read(papers()[paper])


def names() -> list[str]:
    """Names of all recipes, files first."""
    return [*files(), *(f"{paper}/{row}" for paper in papers() for row in table(paper).cells)]


def contents(paper: str | None = None) -> dict[str, dict[str, Any]]:
    """Sections of a paper's recipes, or of those without a paper, by name."""
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
    """Text of a recipe, such as ``quickstart`` or ``PATH/ROW`` of the table ``PATH.yaml``, if it exists.

    Raises MistakesError for an invalid table, or a missing row.
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


def text(path: str | Path) -> str | None:
    """As :func:`named`, but None for a file's path; raises MistakesError for an unknown name."""
    is_folder = os.path.isdir(path)
    if os.path.exists(path) and not is_folder:
        return None
    typed = Path(path).as_posix()
    # recipes/NAME.yaml also works without a checkout
    name = typed.removeprefix("recipes/").removesuffix(".yaml") if typed.startswith("recipes/") else typed
    recipe = named(name)
    if recipe is not None and name != typed:
        _warn_missing(typed, name)
    if recipe is None and not is_folder and not Path(path).suffix and not Path(path).is_absolute():
        raise unknown(name, names())
    return recipe


@cache
def _warn_missing(path: str, name: str) -> None:
    log.warn(f"{path} does not exist; using the package's recipe {name} (to copy it: {COPY.format(name)})")


def hint(path: str | Path) -> str:
    """Advice for a missing file with the name of a recipe."""
    for name in (Path(path).as_posix().removesuffix(".yaml"), Path(path).stem):
        if name in files():
            return f"; the package has a recipe {name}: use only its name, or copy it: {COPY.format(name)}"
    return ""


def unknown(name: str, known: Iterable[str]) -> MistakesError:
    """Error for an unknown recipe name."""
    from fl_labelskew_plugins.recipe import mistakes

    line = f"recipe {mistakes.quoted(name)} is unknown; use one of labelskew recipes ls"
    return MistakesError([line + mistakes.nearest(name, known, 3)])
