"""Options and arguments that several verbs take, each in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fl_labelskew_plugins.cli import completion
from fl_labelskew_plugins.runtimes.silo import keys

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
RECIPE_KEY = "SECTION.KEY=VALUE"
RECIPE = click.argument("recipe", type=PATH, shell_complete=completion.recipes)
"""A recipe's file, or its name."""
RUN = click.argument("folder", metavar="RUN", type=FOLDER, shell_complete=completion.runs)
"""The folder of a run."""


MODEL = click.argument("place", metavar="RUN", type=PATH)
"""A trained model: the folder of a run, or a file."""
BEST = click.option("--best", is_flag=True, help="The best round's model, by the global test, not the last one's.")
NETWORK = click.option(
    "--network", metavar="FILE.py:FUNCTION", help="The function that makes the network, if the model is of one."
)
CLIENT = click.option("--client", metavar="NAME", help="A client's own model, by the client's name or number, from 0.")


def overrides(what: str = "Change a value", metavar: str = RECIPE_KEY) -> Callable[..., Any]:
    """The option ``--set`` of a verb, which gets ``overrides``; ``what``: the first words of its help."""
    complete = completion.settings if metavar == RECIPE_KEY else None
    help = f"{what}; repeatable."
    return click.option("--set", "overrides", multiple=True, metavar=metavar, shell_complete=complete, help=help)


SET = overrides()
QUIET = click.option("--quiet", is_flag=True, help="Print the table, errors and warnings alone.")
HOST = click.option(
    "--host",
    type=click.Choice(["fedml", "none"]),
    help="Run inside FedML or without it; numbers are the same.  [default: FedML where it is installed]",
)
PASSPHRASE = click.option(
    keys.OPTION,
    "descriptor",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Read encrypted keys' passphrase from this file descriptor.  [default: {keys.VARIABLE}, or the terminal]",
)
"""Of every verb that reads or makes a key."""
