"""A sweep as an array job of Slurm, whose scheduler is the engine: a task for each run that is not done.

A task whose time is nearly over saves a checkpoint, goes back into the queue, and goes on from there; so does, by
Slurm's own doing, one that is preempted or whose node has died.

``submitit`` takes no fewer lines for this: it submits pickled functions, numbered without gaps, not a command, puts a
task back three times with a pickle of its own in place of our checkpoint, and shows no script beforehand.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.studies.sweep.plan import LOGS, Planned

NOTICE = 60
"""Seconds before its time limit in which a task is told to end; Slurm may be a minute early."""
RESTARTS = 30
"""How often a task has been put back when it is no more: it then ends with its checkpoint."""
OPTION = re.compile(r"[a-z][a-z0-9-]*")
FORMS = {"array": (r"%\d+", "%N, the most tasks at a time"), "signal": (r"B:USR1@\d+", "B:USR1@SECONDS")}
"""Options of which the script needs the rest as it is: what a value may look like, and what it means."""
SCRIPT = r"""#!/bin/bash
{options}

export PYTHONSAFEPATH=1
late=
{command} "$SLURM_ARRAY_TASK_ID" &
run=$!
# Before the time limit Slurm sends USR1 to this shell alone. TERM goes to the run, too, and is not for us to answer:
# a preempted task is put back into the queue by Slurm, and one that somebody cancels is not to come back.
trap 'late=1; kill -TERM "$run"' USR1
trap : TERM
while kill -0 "$run" 2>/dev/null; do wait "$run"; done
wait "$run"
code=$?
if [ "$code" = 130 ] && [ -n "$late" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def script(runs: Sequence[Planned], words: Sequence[str], extra: Sequence[str] = ()) -> str:
    """The script of an array job.

    Args:
        runs: those that the job is to do, a task for each.
        words: what ``labelskew`` has to be told to do one of them; its number comes last.
        extra: options of sbatch, ``KEY=VALUE`` or ``KEY``, in place of ours or beside them.

    Raises:
        LabelSkewError: an option is malformed, or a run cannot be a task.
    """
    here, out = Path.cwd(), runs[0].folder.path.parent.absolute()
    for folder in (here, out):
        if not str(folder).isprintable():
            raise mistake(clean(folder), "has letters that fit no line of a script", "another folder")
    options: dict[str, str | None] = {
        "job-name": out.name,
        "chdir": str(here),
        "output": f"{out / LOGS}/slurm-".replace("%", "%%") + "%A_%a.txt",
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{NOTICE}",
        "cpus-per-task": str(max(map(_cores, runs))),
        "array": ",".join(_ranges(sorted(run.number for run in runs))),
    }
    if gpus := max(map(_gpus, runs)):
        options["gres"] = f"gpu:{gpus}"
    for setting in extra:
        key, equals, value = setting.partition("=")
        form, meaning = FORMS.get(key, ("", ""))
        if not OPTION.fullmatch(key) or not value.isprintable():
            use = "long options of sbatch without --, such as cpus-per-task=2"
            raise mistake(f"--set-sbatch {clean(setting)}", "is malformed", use)
        if form and not re.fullmatch(form, value):
            raise mistake(f"--set-sbatch {setting}", "would undo what the script stands on", meaning)
        options[key] = (options[key] or "") + value if key == "array" else value if equals else None
    lines = [f"#SBATCH --{key}" + ("" if value is None else f"={_quoted(value)}") for key, value in options.items()]
    return SCRIPT.format(
        options="\n".join(lines),
        command=shlex.join([sys.executable, "-m", "fl_labelskew_plugins.cli.main", *words]),
        most=RESTARTS,
    )


def submit(text: str, folder: Path) -> str:
    """Have Slurm queue a script; returns the job's number.

    Args:
        text: from :func:`script`.
        folder: of all runs, for which a folder of logs is made.

    Raises:
        LabelSkewError: there is no Slurm here, or it refuses the job; in its own words.
    """
    if shutil.which("sbatch") is None:
        use = "the cluster's login node, or --dry-run to see the script"
        raise mistake("--slurm", "Slurm's sbatch is not on this machine", use)
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise mistake(folder, f"cannot be written: {error.strerror}", "another --out") from None
    done = subprocess.run(
        ["sbatch", "--parsable"],
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    job = done.stdout.strip().partition(";")[0]  # the rest is the cluster's name
    if done.returncode or not job.isdecimal():
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
        said = clean("; ".join(lines), 500) or f"ended with exit code {done.returncode}, and says no number of a job"
        raise LabelSkewError(f"sbatch: {said}")
    return job


def _cores(run: Planned) -> int:
    """Cores that a run uses: a run in one process those of its threads, one over MPI as many in each process."""
    comm, threads = run.recipe.comm, run.recipe.device.threads or 1
    if comm.in_process:
        return threads
    if not comm.over_mpi:
        use = "sp or MPI, or labelskew sweep without --slurm"
        raise mistake(f"{run.name}: comm_args.backend", f"{comm.backend}: silos of two tasks may meet on a node", use)
    if comm.hostfile is not None:
        raise mistake(f"{run.name}: comm_args.hostfile", "a task has one node, and no say in which", "null")
    if comm.workers is None:
        raise mistake(f"{run.name}: comm_args.workers", "null leaves open how many cores a task needs", "a number")
    return threads * (comm.workers + 1)


def _gpus(run: Planned) -> int:
    device = run.recipe.device
    return len(set(device.gpu_ids)) if device.using_gpu else 0


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Numbers as Slurm writes them.

    >>> _ranges([0, 3, 7, 8, 9])
    ['0', '3', '7-9']
    """
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _quoted(value: str) -> str:
    r"""A value as sbatch reads it: like a shell, but for a backslash, which escapes between single quotes, too."""
    return shlex.quote(value.replace("\\", "\\\\"))
