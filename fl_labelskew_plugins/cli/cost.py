"""``--dry-run`` of sweep and reproduce."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.cli import table

if TYPE_CHECKING:
    from fl_labelskew_plugins.studies.reproduce import Planned

DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="List the runs and estimate their time and memory. If there are no measurements for a kind of "
    "run, one such run trains for a few seconds.",
)


def forecast(
    planned: Sequence[Planned], *, jobs: int, free: float, host: str | None = None, until: float = math.inf
) -> float:
    """List runs, try one of each unknown kind, estimate the others, and return the seconds of all, in sequence.

    ``free``: bytes of memory; ``until``: end of the trials, as :func:`time.monotonic`. Raises RunError.
    """
    from fl_labelskew_plugins.runs import status
    from fl_labelskew_plugins.runs.progress import Pause
    from fl_labelskew_plugins.studies import cost
    from fl_labelskew_plugins.studies.sweep import plan, pool

    plan.states_of(planned)  # raises if a folder holds another run
    states = [status.read_planned(run.folder.path)["state"] for run in planned]
    rows = [[str(run.number), run.name, state] for run, state in zip(planned, states, strict=True)]
    click.echo(table.plain(["task", "run", "state"], rows))
    click.echo(status.totals(states))
    unknown, failed = cost.unknown(planned), list[str]()
    for number, run in enumerate(unknown, 1):
        if time.monotonic() < until:
            click.echo(f"measuring [{number}/{len(unknown)}]: {run.name}", err=True)
            pause = Pause(cost.PROBE_ROUNDS, until, cost.PROBE_S)
            failed += pool.run_all([run], jobs=1, memory=None, print_line=lambda line: None, host=host, pause=pause)
    kinds = cost.kinds(planned)
    click.echo(table.plain(cost.HEAD, [kind.row() for kind in kinds]))
    for line in cost.totals(kinds, jobs=jobs, free=free):
        click.echo(line)
    if failed:
        raise RunError("; ".join(failed))
    return cost.seconds(kinds, 1)
