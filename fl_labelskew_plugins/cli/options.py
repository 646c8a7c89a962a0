"""Options and arguments of several commands."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from fl_labelskew_registry import MistakesError

from fl_labelskew_plugins.cli import completion

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
RECIPE_KEY = "SECTION.KEY=VALUE"
RUN = click.argument("folder", metavar="RUN", type=FOLDER)


def trained_model(command: Callable[..., None]) -> Callable[..., None]:
    """Add RUN and its options to a command, which gets the model."""

    @click.argument("place", metavar="RUN", type=PATH)
    @click.option("--best", is_flag=True, help="Use the model of the best round, not of the last one.")
    @click.option("--client", metavar="NAME", help="Use a client's own model, by its name or number from 0.")
    @click.option("--network", metavar="FILE.py:FUNCTION", help="Function that builds the recipe's network.")
    @functools.wraps(command)
    def load_first(place: Path, *, best: bool, client: str | None, network: str | None, **options: Any) -> None:
        from fl_labelskew_plugins.trained.network import file_of, load

        command(load(file_of(place, best=best, client=client), code=network), **options)

    return load_first


def overrides(meaning: str = "Change a value", metavar: str = RECIPE_KEY) -> Callable[..., Any]:
    """The option ``--set`` of a command."""
    complete = completion.settings if metavar == RECIPE_KEY else None
    text = f"{meaning}; repeatable."
    return click.option("--set", "overrides", multiple=True, metavar=metavar, shell_complete=complete, help=text)


def data_args(overrides: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Parameters of ``KEY=VALUE`` or ``data_args.KEY=VALUE``, and mistakes."""
    from fl_labelskew_plugins.recipe import mistakes, yaml

    raw: dict[str, Any] = {}
    wrong = []
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip().removeprefix("data_args.")
        if not equals:
            wrong.append(f"{override}: the value is missing; use KEY=VALUE")
            continue
        try:
            raw[key], _ = yaml.read(text)
        except yaml.YamlError as error:
            wrong.append(f"{key}: invalid YAML value {mistakes.quoted(text)}: {error}")
    return raw, wrong


def data_settings(overrides: tuple[str, ...]) -> dict[str, Any]:
    """As :func:`data_args`; raise MistakesError for mistakes."""
    settings, wrong = data_args(overrides)
    if wrong:
        raise MistakesError([f"--set data_args.{line}" for line in wrong])
    return settings


SET = overrides()
DATA_SET = overrides("Change how the data are read", "data_args.KEY=VALUE")
QUIET = click.option("--quiet", is_flag=True, help="Print only the table, errors and warnings.")
HOST = click.option(
    "--host",
    type=click.Choice(["fedml", "none"]),
    help="Run with or without FedML; the results are the same.  [default: fedml if it is installed]",
)
