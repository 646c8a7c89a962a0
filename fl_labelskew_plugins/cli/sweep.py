from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import RunError, mistake

from fl_labelskew_plugins.cli import cost
from fl_labelskew_plugins.cli.exits import refuse_mpirun
from fl_labelskew_plugins.cli.options import FOLDER, HOST, PATH, QUIET, overrides
from fl_labelskew_plugins.cli.report import shown
from fl_labelskew_plugins.machine.place import resume_line

if TYPE_CHECKING:
    from fl_labelskew_plugins.studies.reproduce import Planned


@click.command("sweep")
@click.argument("file", metavar="SWEEP.yaml", type=PATH)
@overrides("Change a value of all runs")
@click.option("--only", multiple=True, metavar="NAME", help="Run only this value of its axis; repeatable.")
@click.option("--out", type=FOLDER, help="Folder of all runs.  [default: the file's]")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time.  [default: cores / threads, or GPUs]")
@click.option(
    "--memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Memory for all runs together.  [default: 80 % of the free memory]",
)
@cost.DRY_RUN
@click.option("--tasks", is_flag=True, help="Print only the number of combinations.")
@click.option("--task", type=click.IntRange(0), metavar="N", help="Run only combination N, from 0, in this process.")
@HOST
@QUIET
def sweep_command(
    file: Path,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    out: Path | None,
    jobs: int | None,
    memory: float | None,
    dry_run: bool,
    tasks: bool,
    task: int | None,
    host: str | None,
    quiet: bool,
) -> None:
    """Run every combination of a grid once.

    Rerun the command to resume: finished runs are not repeated, interrupted ones resume, and a failed run does not
    stop the others. The table of labelskew report is printed at the end; docs/sweeps.md describes the file.

    Several machines that share the folder may run a sweep at the same time, with this command or as tasks of a job
    array; no run is done twice. See docs/clusters.md.

    \b
    labelskew sweep sweeps/fmnist.yaml --dry-run
    labelskew sweep sweeps/fmnist.yaml --jobs 2
    labelskew sweep sweeps/fmnist.yaml --tasks
    labelskew sweep sweeps/fmnist.yaml --task 17
    """  # noqa: D301  # a backspace keeps lines unwrapped
    from fl_labelskew_plugins.studies.sweep import plan, pool

    print_line = (lambda line: None) if quiet else click.echo
    refuse_mpirun("sweep")
    if task is not None and (jobs or memory):
        raise mistake("--task", "runs one combination in this process", "it without --jobs and --memory")
    all_planned = planned = plan.plan(file, overrides, out, only, elsewhere=tasks or task is not None)
    if tasks:
        click.echo(len(planned))
        return
    if task is not None:
        if task >= len(planned):
            raise mistake("--task", f"task {task} does not exist", f"numbers from 0 to {len(planned) - 1}")
        planned = [planned[task]]
    try:
        plan.write_names(all_planned)
        if dry_run:
            jobs, free = jobs or pool.default_jobs(planned), pool.memory_bound(memory)
            cost.forecast(planned, jobs=jobs, free=free, host=host)
            return
        if task is not None:
            pool.run_here(planned[0], print_line, host)
            return
        failed = pool.run_all(planned, jobs=jobs, memory=memory, print_line=print_line, host=host)
    except KeyboardInterrupt:
        done = sum(run.folder.summary.exists() for run in planned)
        command = resume_line(sys.argv[1:])
        raise KeyboardInterrupt(f"interrupted: {done} of {len(planned)} runs finished; {command}") from None
    _report(planned, failed, print_line)


def _report(planned: Sequence[Planned], failed: Sequence[str], print_line: Callable[[str], None]) -> None:
    from fl_labelskew_plugins.studies import finished

    runs, missing = finished.read_all([run.folder.path for run in planned if run.folder.summary.exists()])
    if runs:  # runs without a test are in no table
        from fl_labelskew_plugins.studies import report

        last = planned[0].recipe.validation.last_rounds
        click.echo(shown(report.rows(finished.grouped(runs), last), "table"))
        folder = planned[0].folder.path.parent
        print_line(f"more: {shlex.join(['labelskew', 'report', str(folder), '--html', str(folder / 'report.html')])}")
    for line in [*missing, *(f"failed: {line}" for line in failed)]:
        click.echo(line, err=True)
    if failed:
        raise RunError(f"{len(failed)} of {len(planned)} runs failed; repeat the command to retry them")
