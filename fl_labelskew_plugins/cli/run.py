from pathlib import Path
from typing import Any

import click

from fl_labelskew_plugins.cli import completion
from fl_labelskew_plugins.cli.exits import CONTEXT, guarded
from fl_labelskew_plugins.cli.options import HOST, PATH, SET
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.recipe import shipped

EPILOG = (
    "When stdout is not a terminal, log lines carry a timestamp (UTC) and a level. The environment variable "
    "FL_LABELSKEW_LOG overrides the format: plain, text or json."
)


@click.command("run", context_settings=CONTEXT, epilog=EPILOG)
@click.argument("recipe", required=False, type=PATH, shell_complete=completion.recipes)
@SET
@click.option("--run-dir", type=PATH, metavar="DIR", help="Folder of this run, new or empty.  [default: one in runs/]")
@click.option(
    "--resume",
    type=PATH,
    metavar="RUN_DIR",
    help="Resume a run from its last checkpoint; with --set train_args.comm_round=N, until round N.",
)
@click.option(
    "--from-round", type=click.IntRange(min=1), metavar="N", help="With --resume: go back to the end of round N."
)
@click.option("--dry-run", is_flag=True, help="Do everything except training.")
@click.option("--survey", is_flag=True, help="Cross-silo: only ask the silos for their class counts, without training.")
@click.option("--quiet", is_flag=True, help="Print only errors and warnings.")
@click.option(
    "--role", type=click.Choice(["server", "client"]), help="Run only this part of a run across silos.  [default: all]"
)
@click.option("--rank", type=click.IntRange(min=1), help="With --role client: the number of this silo, from 1.")
@click.option("--server", metavar="HOST:PORT", help="Address of the server across silos, overriding the recipe's.")
@HOST
@guarded  # for `fedml run`, which is not in the group
def run_command(recipe: Path | None, overrides: tuple[str, ...], *, quiet: bool, **options: Any) -> None:
    """Run a recipe on this machine, or one part of it.

    RECIPE is a file, or the name of a recipe of the package.
    """
    log.begin()
    if not quiet:
        log.word("reading recipe ...")
    if recipe is not None:
        shipped.text(recipe)  # reports an unknown name before the slow imports
    from fl_labelskew_plugins.front.start import start
    from fl_labelskew_plugins.runtimes.mpi.rank import as_rank
    from fl_labelskew_plugins.runtimes.options import RunOptions

    with as_rank():
        survey = start(RunOptions(recipe, overrides, quiet=quiet, **options))
    if survey is not None and not quiet:
        from fl_labelskew_plugins.cli.survey import text

        log.note(text(survey))
