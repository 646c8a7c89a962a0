"""Run a sweep as an array job of Slurm: a task for each unfinished run.

A task that reaches its time limit saves a checkpoint, is requeued, and resumes. Slurm itself requeues tasks after
preemption or a node failure. ``submitit`` cannot show the script beforehand.
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
"""Seconds between the signal and the time limit; Slurm may be a minute early."""
RESTARTS = 30
OPTION = re.compile(r"[a-z][a-z0-9-]*")
FORMS = {"array": (r"%\d+", "%N, the maximum of tasks at a time"), "signal": (r"B:USR1@\d+", "B:USR1@SECONDS")}
"""Pattern and description of option values on which the script relies."""
SCRIPT = r"""#!/bin/bash
{options}

export PYTHONSAFEPATH=1
late=
{command} "$SLURM_ARRAY_TASK_ID" &
run=$!
# Before the time limit Slurm sends USR1 only to this shell. TERM also reaches the run, and the shell ignores it:
# Slurm itself requeues a preempted task, and a cancelled task must not be requeued.
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
    """Write the script of an array job with a task for each run; raise LabelSkewError for an invalid option or run.

    ``words``: arguments of ``labelskew`` before the task's number. ``extra``: options of sbatch, ``KEY=VALUE`` or
    ``KEY``.
    """
    cwd, out = Path.cwd(), runs[0].folder.path.parent.absolute()
    for folder in (cwd, out):
        if not str(folder).isprintable():
            raise mistake(clean(folder), "contains characters that a script cannot contain", "another folder")
    options: dict[str, str | None] = {
        "job-name": out.name,
        "chdir": str(cwd),
        "output": f"{out / LOGS}/slurm-".replace("%", "%%") + "%A_%a.txt",
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{NOTICE}",
        "cpus-per-task": str(max(map(_cores, runs))),
        "array": ",".join(_ranges(sorted(run.number for run in runs))),
    }
    devices = [run.recipe.device for run in runs]
    if gpus := max(len(set(device.gpu_ids)) if device.using_gpu else 0 for device in devices):
        options["gres"] = f"gpu:{gpus}"
    for setting in extra:
        key, equals, value = setting.partition("=")
        form, meaning = FORMS.get(key, ("", ""))
        if not OPTION.fullmatch(key) or not value.isprintable():
            use = "long options of sbatch without --, such as cpus-per-task=2"
            raise mistake(f"--set-sbatch {clean(setting)}", "is malformed", use)
        if form and not re.fullmatch(form, value):
            raise mistake(f"--set-sbatch {setting}", "conflicts with the script", meaning)
        options[key] = (options[key] or "") + value if key == "array" else value if equals else None
    lines = []
    for key, text in options.items():
        # unlike in a shell, a backslash also escapes in single quotes
        quoted = "" if text is None else "=" + shlex.quote(text.replace("\\", "\\\\"))
        lines.append(f"#SBATCH --{key}{quoted}")
    return SCRIPT.format(
        options="\n".join(lines),
        command=shlex.join([sys.executable, "-m", "fl_labelskew_plugins.cli.main", *words]),
        most=RESTARTS,
    )


def submit(text: str, folder: Path) -> str:
    """Submit a script to Slurm and create the folder of logs; return the job's number.

    Raise LabelSkewError if Slurm is not installed, or if it rejects the job.
    """
    if shutil.which("sbatch") is None:
        use = "the cluster's login node, or --dry-run to see the script"
        raise mistake("--slurm", "sbatch is not installed on this machine", use)
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
    job = done.stdout.strip().partition(";")[0]  # the cluster's name follows
    if done.returncode or not job.isdecimal():
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
        reason = clean("; ".join(lines), 500) or f"exit code {done.returncode}, without the number of a job"
        raise LabelSkewError(f"sbatch: {reason}")
    return job


def _cores(run: Planned) -> int:
    """Count the threads of a run's processes; raise LabelSkewError if it cannot be a task."""
    comm, threads = run.recipe.comm, run.recipe.device.threads or 1
    if comm.in_process:
        return threads
    if not comm.over_mpi:
        use = "sp or MPI, or labelskew sweep without --slurm"
        raise mistake(f"{run.name}: comm_args.backend", f"{comm.backend}: silos of two tasks could share a node", use)
    if comm.workers is None:
        raise mistake(f"{run.name}: comm_args.workers", "null: the number of cores of a task is unknown", "a number")
    return threads * (comm.workers + 1)


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Format numbers as ranges in Slurm's syntax.

    >>> _ranges([0, 3, 7, 8, 9])
    ['0', '3', '7-9']
    """
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
