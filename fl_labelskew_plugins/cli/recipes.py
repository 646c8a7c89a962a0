import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.options import PATH
from fl_labelskew_plugins.machine.files import writing
from fl_labelskew_plugins.machine.text import wrapped
from fl_labelskew_plugins.recipe import shipped

DROPPED_FIRST = ("rounds", "clients", "network", "method", "data")
DEST = click.argument("dest", required=False, default=".", type=PATH)


def _text(name: str) -> str:
    text = shipped.named(name.removesuffix(".yaml"))
    if text is None:
        raise shipped.unknown(name, shipped.names())
    return text


def _row(name: str, recipe: dict[str, Any]) -> list[str]:
    names = recipe["method_args"]["method"], recipe["data_args"]["dataset"], recipe["model_args"]["model"]
    numbers = (recipe.get("train_args", {}).get(key, "") for key in ("client_num_in_total", "comm_round"))
    return [name, *map(str, (*names, *numbers))]


def _number(expected: dict[str, Any]) -> str:
    target = f" rounds to {expected['target']:g}" if expected["measure"] == "rounds_to" else ""
    return f"{expected['value']:g}{target} ({expected['table']})"


@contextmanager
def fresh(dest: Path, name: str) -> Iterator[Path]:
    """The path for a copy: ``dest``, or ``name`` in it; raises LabelSkewError if it exists or cannot be written."""
    target = dest / name if dest.is_dir() else dest
    if os.path.lexists(target):
        raise mistake(target, "exists already", "another DEST")
    with writing(target):
        yield target
    click.echo(str(target))


@click.group("recipes")
def recipes_group() -> None:
    """List, show or copy recipes of the package."""


@recipes_group.command("ls")
@click.option("--paper", metavar="PAPER", help="This paper's experiments: fedrs, map, fedlc, fedshift or fedmr.")
def ls(paper: str | None) -> None:
    """List the recipes; with --paper a paper's recipes and their numbers."""
    papers = shipped.papers()
    head = ["name", "method", "data", "network", "clients", "rounds"]
    if paper is None:
        rows = [_row(name, recipe) for name, recipe in shipped.contents().items()]
        click.echo(table.plain(head, rows, least=DROPPED_FIRST))
        counts = Counter(name.partition("/")[0] for name in shipped.names())
        more = ", ".join(f"{name} ({counts[name]})" for name in papers)
        click.echo(wrapped(f"papers' experiments, with --paper: {more}"))
        return
    if paper.lower() not in papers:
        from fl_labelskew_plugins.recipe import mistakes

        raise LabelSkewError(f"--paper {mistakes.unknown(paper, papers)}")
    contents = shipped.contents(paper.lower()).items()
    rows = [[*_row(name, recipe), "; ".join(map(_number, recipe.get("expected", ())))] for name, recipe in contents]
    click.echo(table.plain([*head, "expected"], rows, least=DROPPED_FIRST))


@recipes_group.command("show")
@click.argument("name", shell_complete=completion.shipped_names)
def show(name: str) -> None:
    """Print the recipe NAME."""
    click.echo(_text(name), nl=False)


@recipes_group.command("cp")
@click.argument("name", shell_complete=completion.shipped_names)
@DEST
def cp(name: str, dest: Path) -> None:
    """Copy the recipe NAME to DEST, a file or a folder.

    A schema for editors is written next to it. Existing files are kept.
    """
    text = _text(name)
    with fresh(dest, f"{name.rpartition('/')[2].removesuffix('.yaml')}.yaml") as target:
        if text.startswith(shipped.MODELINE):
            _, _, text = text.partition("\n")
        target.write_text(f"{shipped.MODELINE}{shipped.SCHEMA}\n{text}", encoding="utf-8")
        schema = target.with_name(shipped.SCHEMA)
        if not schema.exists():
            shutil.copyfile(shipped.folder() / shipped.SCHEMA, schema)
