"""``labelskew recipes``: those that come with the package."""

from __future__ import annotations

from pathlib import Path

import click
from fl_labelskew_registry import LabelSkewError

import fl_labelskew_plugins
from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.exits import guarded


def shipped() -> dict[str, Path]:
    """Name to file of every recipe: inside an installed package, or beside it in a checkout."""
    from importlib.resources import files

    inside = Path(str(files("fl_labelskew_plugins") / "recipes"))
    folder = inside if inside.is_dir() else Path(fl_labelskew_plugins.__file__).parent.parent / "recipes"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def find(name: str) -> Path:
    """The file of one shipped recipe."""
    recipes = shipped()
    path = recipes.get(name.removesuffix(".yaml"))
    if path is None:
        from fl_labelskew_plugins import mistakes

        raise LabelSkewError(f"recipe {mistakes.unknown(name, recipes)}")
    return path


def description(text: str) -> str:
    """First comment line of a recipe that is not its command."""
    comments = (line.lstrip("# ").rstrip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in comments if line and not line.startswith("fedml run")), "")


@click.group("recipes")
def recipes_group() -> None:
    """Recipes that come with the package."""


@recipes_group.command("ls")
@guarded
def ls() -> None:
    """List the recipes."""
    rows = [[name, description(path.read_text("utf-8"))] for name, path in shipped().items()]
    click.echo(table.plain(["name", "what"], rows))


@recipes_group.command("show")
@click.argument("name")
@guarded
def show(name: str) -> None:
    """Print the recipe NAME."""
    click.echo(find(name).read_text("utf-8"), nl=False)


@recipes_group.command("cp")
@click.argument("name")
@click.argument("dest", required=False, default=".", type=click.Path(path_type=Path))
@guarded
def cp(name: str, dest: Path) -> None:
    """Copy the recipe NAME to DEST, a file or a folder; an existing file is left alone."""
    source = find(name)
    target = dest / source.name if dest.is_dir() else dest
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text("utf-8"))
    except FileExistsError:
        raise LabelSkewError(f"{target}: exists already; another DEST would be right") from None
    except OSError as error:
        raise LabelSkewError(f"{target}: cannot be written: {error.strerror}") from None
    click.echo(str(target))
