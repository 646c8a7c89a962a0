import sys
from pathlib import Path

import click

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.exits import refuse_mpirun
from fl_labelskew_plugins.cli.options import PATH, SET
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import clean


@click.command("check")
@click.argument("name", metavar="METHOD", shell_complete=completion.plugins("methods"))
@click.option("--recipe", type=PATH, metavar="FILE", help="Recipe to run with METHOD.  [default: digits, 4 clients]")
@SET
def check_command(name: str, recipe: Path | None, overrides: tuple[str, ...]) -> None:
    """Check that a method gives the same numbers in every runtime.

    Runs METHOD for two rounds: in one process, stopped after one round and resumed, over MPI with two workers, and
    across silos on this machine. Metrics and models must be bit-identical. The exit code is 1 if a run fails or
    differs; runtimes that are not installed are skipped.
    """
    from fl_labelskew_plugins.studies import check

    refuse_mpirun("check")
    outcomes = [*check.outcomes_of(name, recipe or check.QUICK, overrides, print_line=log.word)]
    cells = {"method": name} | dict.fromkeys(("sp", *check.RUNTIMES), "-")
    cells |= {outcome.runtime: outcome.verdict for outcome in outcomes}
    click.echo(table.plain([*cells], [[*cells.values()]]))
    for outcome in outcomes:
        if outcome.detail:
            click.echo(clean(outcome, 1000))
    if any(outcome.bad for outcome in outcomes):
        sys.exit(1)
