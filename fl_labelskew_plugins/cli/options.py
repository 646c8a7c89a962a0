"""Options and arguments that several verbs take, each in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fl_labelskew_plugins.runtimes.silo import keys

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
RUN = click.argument("folder", metavar="RUN", type=FOLDER)
"""The folder of a run."""


def overrides(what: str = "Change a value", metavar: str = "SECTION.KEY=VALUE") -> Callable[..., Any]:
    """The option ``--set`` of a verb, which gets ``overrides``; ``what``: the first words of its help."""
    return click.option("--set", "overrides", multiple=True, metavar=metavar, help=f"{what}; repeatable.")


SET = overrides()
QUIET = click.option("--quiet", is_flag=True, help="Print the table, errors and warnings alone.")
PASSPHRASE = click.option(
    keys.OPTION,
    "descriptor",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Read encrypted keys' passphrase from this file descriptor.  [default: {keys.VARIABLE}, or the terminal]",
)
"""Of every verb that reads or makes a key."""
