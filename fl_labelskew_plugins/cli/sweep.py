"""``labelskew sweep``: every combination of a grid, several at a time."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.cli import cost
from fl_labelskew_plugins.cli.exits import guarded, refuse_mpirun
from fl_labelskew_plugins.cli.options import FILE, FOLDER, HOST, PATH, QUIET, overrides
from fl_labelskew_plugins.cli.report import shown
from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.place import free_memory
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.machine.typed import to_go_on

if TYPE_CHECKING:
    from fl_labelskew_plugins.studies.sweep.plan import Planned

ARRAY_TASK = "SLURM_ARRAY_TASK_ID"
"""Environment variable with the number of a job array's task."""


@click.command("sweep")
@click.argument("file", metavar="SWEEP.yaml", type=PATH)
@overrides("Change a value of all runs")
@click.option("--only", multiple=True, metavar="NAME", help="Run this value of its axis alone; repeatable.")
@click.option("--out", type=FOLDER, help="Folder of all runs.  [default: the file's]")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time.  [default: cores / threads, or GPUs]")
@click.option(
    "--memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Memory that all runs together may take.  [default: 80 % of what is free]",
)
@cost.DRY_RUN
@cost.NO_PROBE
@click.option("--tasks", is_flag=True, help="Print how many combinations there are, and nothing else.")
@click.option(
    "--task",
    is_flag=False,
    flag_value="",
    metavar="[N]",
    help=f"Run combination N alone, from 0, in this process; or several, such as 4-7,9.  [default: {ARRAY_TASK}]",
)
@click.option("--tasks-file", type=FILE, metavar="FILE", help="Run the combinations that a file lists, one to a line.")
@click.option(
    "--slurm", is_flag=True, help="Submit what is left to Slurm, as an array job; --dry-run prints its script."
)
@click.option(
    "--set-sbatch",
    "sbatch",
    multiple=True,
    metavar="KEY[=VALUE]",
    help="With --slurm, an option of sbatch, such as time=4:00:00; repeatable.",
)
@HOST
@QUIET
@guarded
def sweep_command(
    file: Path,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    out: Path | None,
    jobs: int | None,
    memory: float | None,
    dry_run: bool,
    no_probe: bool,
    tasks: bool,
    task: str | None,
    tasks_file: Path | None,
    slurm: bool,
    sbatch: tuple[str, ...],
    host: str | None,
    quiet: bool,
) -> None:
    """Run every combination of a grid once.

    The same command goes on with what is left. A run that is done is not run again, one that broke off is gone on with,
    and one that fails does not stop the others. At the end comes the table of labelskew report; docs/sweeps.md
    describes the file.

    Several machines that share the folder may work on a sweep at the same time, with this command or as tasks of a job
    array: no run is done twice; docs/clusters.md says more.

    \b
    labelskew sweep sweeps/fmnist.yaml --dry-run
    labelskew sweep sweeps/fmnist.yaml --jobs 2
    labelskew sweep sweeps/fmnist.yaml --tasks
    labelskew sweep sweeps/fmnist.yaml --task 17
    labelskew sweep sweeps/fmnist.yaml --slurm --set-sbatch time=4:00:00
    """  # noqa: D301  # click reads the backspace as "leave these lines as they are"
    from fl_labelskew_plugins.studies.sweep import crew, plan

    say = (lambda line: None) if quiet else click.echo
    refuse_mpirun("sweep")
    cost.check(dry_run=dry_run, no_probe=no_probe)
    if task is not None and tasks_file is not None:
        raise LabelSkewError("--task and --tasks-file both choose combinations; use one of them")
    _check(slurm, sbatch, crew=jobs is not None or memory is not None)
    if tasks and (dry_run or slurm or task is not None or tasks_file is not None):
        raise mistake("--tasks", "prints a number and nothing else", "it with --set and --only alone")
    where, task = _numbers(task)
    alone = task is not None and task.strip().isdecimal() and jobs is None and memory is None
    every = planned = plan.plan(file, overrides, out, only, elsewhere=tasks or alone or slurm)
    if tasks:
        click.echo(len(planned))
        return
    if task is not None:
        planned = plan.pick(planned, where, task)
    if tasks_file is not None:
        planned = plan.listed(planned, tasks_file)
    if slurm:
        words = [word for setting in overrides for word in ("--set", setting)]
        words += [word for name in only for word in ("--only", name)] + (["--host", host] if host else [])
        _submit(file, planned, words, sbatch, say, dry_run=dry_run)
        return
    try:
        if not no_probe:
            plan.write_names(every)
        if dry_run:
            _estimate(planned, jobs, memory, host, no_probe=no_probe, quiet=quiet)
            return
        if alone:
            crew.run_here(planned[0], say, host)
            return
        failed = crew.run_all(planned, jobs=jobs, memory=memory, say=say, host=host)
    except KeyboardInterrupt:
        done = sum(run.folder.summary.exists() for run in planned)
        go_on = to_go_on(sys.argv[1:])
        raise KeyboardInterrupt(f"interrupted: {done} of {len(planned)} runs finished; {go_on}") from None
    _tell(planned, failed, say)


def _check(slurm: bool, sbatch: tuple[str, ...], *, crew: bool) -> None:
    """Raise LabelSkewError for options that do not go together; ``crew``: whether one is of our own processes."""
    if sbatch and not slurm:
        raise mistake("--set-sbatch", "is for a job of Slurm", "it with --slurm")
    if slurm and crew:
        raise mistake("--slurm", "--jobs and --memory are not for Slurm", "--set-sbatch array=%8 and mem=8G")


def _submit(
    file: Path,
    planned: Sequence[Planned],
    words: list[str],
    sbatch: tuple[str, ...],
    say: cost.Say,
    *,
    dry_run: bool,
) -> None:
    """Have Slurm do what nobody has done or is doing; ``words`` belong to the command for each."""
    from fl_labelskew_plugins.studies.sweep import plan, slurm

    out, states = planned[0].folder.path.parent.absolute(), plan.states_of(planned)
    open_ = [run for run in planned if states[run.name] != "done"]
    left = [run for run in open_ if not locks.held_by(run.folder.path)]
    so_far = f"{counted(len(planned), 'run')}: {len(planned) - len(open_)} finished, {len(open_) - len(left)} running"
    if not left:
        click.echo(f"{so_far}; nothing to submit", err=dry_run)
        return
    text = slurm.script(left, ["sweep", str(file.absolute()), "--out", str(out), *words, "--task"], sbatch)
    if dry_run:
        click.echo(text, nl=False)
        return
    job = slurm.submit(text, out)
    click.echo(f"{so_far}; job {job} has {counted(len(left), 'task')}")
    say(f"watch: squeue --job {job}; {shlex.join(['labelskew', 'report', str(out)])}")
    if not any(setting.startswith("output=") for setting in sbatch):
        say(f"logs: {out / plan.LOGS}/slurm-{job}_*.txt")


def _estimate(
    planned: Sequence[Planned],
    jobs: int | None,
    memory: float | None,
    host: str | None,
    *,
    no_probe: bool,
    quiet: bool,
) -> None:
    """Print what runs will take, as many at a time as there would be here and, where ``jobs`` is more, elsewhere."""
    from fl_labelskew_plugins.studies.cost import probe
    from fl_labelskew_plugins.studies.sweep import crew

    begin = (
        None
        if no_probe
        else partial(crew.run_all, jobs=1, memory=memory, say=lambda line: None, host=host, pause=probe(math.inf))
    )
    here = crew.default_jobs(planned)
    most = [min(here, jobs or here), *([jobs] if jobs and jobs > here else [])]
    free = crew.SHARE * free_memory() if memory is None else memory * 1e9
    cost.tell(planned, begin, out=planned[0].folder.path.parent, jobs=most, free=free, quiet=quiet, tasks=True)


def _tell(planned: Sequence[Planned], failed: Sequence[str], say: cost.Say) -> None:
    """What came of all runs, as a table; raises RunError for those that failed."""
    from fl_labelskew_plugins.studies import report

    runs, missing = report.read_all([run.folder.path for run in planned if run.folder.summary.exists()])
    if runs:  # a run without any test is in no table
        last = planned[0].recipe.validation.last_rounds
        click.echo(shown(report.rows(report.grouped(runs), last), "table"))
        folder = planned[0].folder.path.parent
        say(f"more of it: {shlex.join(['labelskew', 'report', str(folder), '--html', str(folder / 'report.html')])}")
    for line in missing:
        click.echo(line, err=True)
    for line in failed:
        click.echo(f"failed: {line}", err=True)
    if failed:
        raise RunError(f"{len(failed)} of {len(planned)} runs failed; the same again tries them once more")


def _numbers(task: str | None) -> tuple[str, str | None]:
    """Where the numbers of ``--task`` are from, and what they are."""
    if task != "":
        return "--task", task
    if not (task := os.environ.get(ARRAY_TASK)):
        raise mistake("--task", f"{ARRAY_TASK} is not set", "it in a job array, or with a number, such as --task 0")
    return ARRAY_TASK, task
