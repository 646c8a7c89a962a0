"""``--dry-run`` of sweep and reproduce: the runs, and what they will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import RunError, mistake

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import counted

if TYPE_CHECKING:
    from fl_labelskew_plugins.studies.sweep.plan import Planned

DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="List the runs, and estimate what they will take: time, memory, disk. One run of each kind without a round is "
    "started for that, for a few seconds of training.",
)
NO_PROBE = click.option(
    "--no-probe", is_flag=True, help="With --dry-run: begin nothing, and tell by the rounds that there are."
)

Say = Callable[[str], None]
Begin = Callable[[Sequence["Planned"]], list[str]]
"""Starts runs for a few batches or rounds; returns a line for each that failed."""


def check(*, dry_run: bool, no_probe: bool) -> None:
    """Raise LabelSkewError for options that do not go together."""
    if no_probe and not dry_run:
        raise mistake("--no-probe", "is a way to do a dry run", "it with --dry-run")


def tell(
    planned: Sequence[Planned],
    begin: Begin | None,
    *,
    out: Path,
    jobs: Sequence[int],
    free: float,
    until: float = math.inf,
    quiet: bool = False,
    tasks: bool = False,
) -> float:
    """List runs, and estimate what is left of them will take.

    Args:
        planned: all runs.
        begin: starts one of each kind of which nothing is known; without it, such a kind is not counted.
        until: no further one is started after this, in seconds of :func:`time.monotonic`.
        out: the folder of all runs.
        jobs: runs at a time, here and, where there are two numbers, elsewhere.
        free: bytes of memory that all runs together may take here.
        quiet: whether to print no progress.
        tasks: whether runs have numbers that a reader can use.

    Returns:
        Seconds that they take one after the other.

    Raises:
        RunError: some could not be started; the others are estimated.
        KeyboardInterrupt: interrupted, after an estimate by what is known so far.
    """
    from fl_labelskew_plugins.runs import status
    from fl_labelskew_plugins.studies import cost
    from fl_labelskew_plugins.studies.sweep import plan

    def states() -> list[str]:
        return [status.read_planned(run.folder.path)["state"] for run in planned]

    plan.states_of(planned)  # raises if a folder holds another run
    at_first = states()
    rows = [[str(run.number), run.name, state] for run, state in zip(planned, at_first, strict=True)]
    head, rows = (["task", "run", "state"], rows) if tasks else (["run", "state"], [row[1:] for row in rows])
    click.echo(table.plain(head, rows))
    click.echo(status.totals(at_first) + ("" if begin else "; nothing was run"))
    unknown = cost.unknown(planned) if begin else []
    failed: list[str] = []
    interrupted = False
    if begin:
        try:
            for run in shown(unknown, quiet=quiet):
                if time.monotonic() >= until:
                    break
                failed += begin([run])
        except KeyboardInterrupt:
            interrupted = True
        if unknown:
            click.echo(status.totals(states()))
    kinds = cost.kinds(planned, failed)
    click.echo(table.plain(cost.HEAD, [kind.row() for kind in kinds], least=("disk", "memory", "runs")))
    for line in cost.totals(planned, kinds, out=out, jobs=jobs, free=free):
        click.echo(line)
    for line in cost.warnings(kinds, out=out, jobs=jobs[0], free=free):
        log.warn(line)
    if interrupted:
        raise KeyboardInterrupt
    if failed:
        raise RunError(
            f"{len(failed)} of {counted(len(unknown), 'run')} could not be begun; the same again tries it once more"
        )
    return cost.seconds(planned, kinds, 1)


def shown(runs: Sequence[Planned], *, quiet: bool) -> Iterator[Planned]:
    """Runs whose batches are timed, one after the other: a bar on a terminal, elsewhere a line for each."""
    if quiet or not log.at_terminal():
        for number, run in enumerate(runs, 1):
            if not quiet:
                click.echo(f"timing batches [{number}/{len(runs)}]: {run.name}")
            yield run
        return
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("timing batches:"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), transient=True) as bar:
        task = bar.add_task("", total=len(runs))
        for run in runs:
            bar.update(task, description=escape(run.name))
            yield run
            bar.advance(task)
