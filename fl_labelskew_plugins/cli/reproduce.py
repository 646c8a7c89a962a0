import math
import sys
import time
from pathlib import Path

import click
from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.cli import completion, cost, table
from fl_labelskew_plugins.cli.exits import refuse_mpirun
from fl_labelskew_plugins.cli.options import FOLDER, QUIET, SET
from fl_labelskew_plugins.machine.files import write_text, writing
from fl_labelskew_plugins.machine.place import free_memory, resume_line
from fl_labelskew_plugins.machine.text import comma_separated


def _named(recipes: tuple[str, ...]) -> dict[str, Path]:
    """Name to path; names: a file's stem, a recipe's name, or ``TABLE/ROW``."""
    paths: dict[str, Path] = {}
    for recipe in recipes:
        is_file = Path(recipe).is_file()
        path = Path(recipe if is_file else recipe.removesuffix(".yaml"))
        name = path.stem if is_file else "/".join(path.parts[-2:])
        if name in paths:
            raise LabelSkewError(f"{recipe}: {name} is given twice; give each recipe once, with a different name")
        paths[name] = path
    return paths


@click.command("reproduce")
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE...", shell_complete=completion.recipes)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Runs per recipe; seeds from 0.")
@click.option("--budget", metavar="TIME", help="Stop all runs after this time: 90s, 30m, 2h.  [default: all rounds]")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time, as processes.  [default: one, in this process]")
@SET
@click.option("--out", default="reproduced", show_default=True, type=FOLDER, help="Folder of runs and tables.")
@cost.DRY_RUN
@QUIET
def reproduce_command(
    recipes: tuple[str, ...],
    seeds: int,
    budget: str | None,
    jobs: int | None,
    overrides: tuple[str, ...],
    out: Path,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run recipes and compare them with their expected numbers.

    RECIPE is a file, or the name of a recipe of the package (labelskew recipes ls) or of a row of a table. The same
    command, also with another --budget or none, resumes interrupted runs. The table lists changed settings, compares
    runs with all of their rounds, and is saved as table.md and table.csv. The exit code is 0 even if a run falls short
    of its number.

    \b
    labelskew reproduce fedmr/table1_fmnist_p10c2 --budget 20m
    labelskew reproduce fedmr/table1_fmnist_p10c2 --seeds 5 --out again --jobs 2
    """  # noqa: D301  # a backspace keeps lines unwrapped
    begun = time.monotonic()  # before the imports, which count towards the budget
    from fl_labelskew_plugins.studies import reproduce
    from fl_labelskew_plugins.studies.sweep import pool

    print_line = (lambda line: None) if quiet else click.echo
    refuse_mpirun("reproduce")
    if jobs and budget is not None:
        raise LabelSkewError("--budget runs one recipe after the other; use it without --jobs")
    allowed = None if budget is None else reproduce.seconds_of(budget)
    chosen = reproduce.experiments(_named(recipes), overrides, out, seeds)
    planned = [run for experiment in chosen for run in experiment.runs]
    failed: list[str] = []
    try:
        if dry_run:
            until = begun + (allowed or math.inf)
            seconds = cost.forecast(planned, jobs=jobs or 1, free=free_memory(), until=until)
            if allowed and seconds:
                click.echo(f"the budget is {min(1.0, allowed / seconds):.0%} of that time")
            return
        with writing(f"--out {out}"):
            out.mkdir(parents=True, exist_ok=True)
        if jobs:
            failed = pool.run_all(planned, jobs=jobs, memory=None, print_line=print_line)
        else:
            reproduce.run_all(chosen, print_line, quiet=quiet, until=begun + (allowed or math.inf))
        if allowed:
            used = f"{time.monotonic() - begun:.0f} of {allowed:.0f} s used"
            print_line(f"budget: {used}; the same command resumes the runs")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {resume_line(sys.argv[1:])}") from None
    rows = [row for experiment in chosen for row in reproduce.rows(experiment)]
    with writing(f"--out {out}"):
        write_text(out / "table.md", table.markdown(reproduce.HEAD, rows) + "\n")
        write_text(out / "table.csv", comma_separated(reproduce.HEAD, rows) + "\n")
    form = table.plain if sys.stdout.isatty() else table.markdown
    click.echo(form(reproduce.HEAD, rows))
    print_line(f"written to {out / 'table.md'} and {out / 'table.csv'}")
    if failed:
        raise RunError("; ".join(failed))
