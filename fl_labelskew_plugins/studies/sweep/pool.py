"""Run a sweep's processes: several at a time, as GPUs, cores and memory allow.

Importing FedML takes seconds, so runs are forked from a process that has imported it. A ``ProcessPoolExecutor``
would abort all runs if one is killed.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from statistics import fmean
from typing import Any

from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins.machine import locks, log
from fl_labelskew_plugins.machine.files import open_regular, read_lines, read_text, writing
from fl_labelskew_plugins.machine.place import available_cores, free_memory
from fl_labelskew_plugins.machine.signals import blocked, end_with_parent, interrupting
from fl_labelskew_plugins.machine.text import counted, few
from fl_labelskew_plugins.recipe.compatibility import host_installed
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.runtimes.processes import end, how_it_ended
from fl_labelskew_plugins.show.progress import clock, in_words
from fl_labelskew_plugins.studies.finished import number
from fl_labelskew_plugins.studies.reproduce import Planned, PrintLine, complete
from fl_labelskew_plugins.studies.sweep.plan import missing, states_of

MEMORY_SHARE = 0.8
GRACE = 30.0  # seconds in which a terminated run can save its checkpoint
MAX_DELAY = 5.0  # seconds from a pause until runs are terminated
RUN_ELSEWHERE = 75  # exit code if another process started or finished the run first
HOSTED = ["fl_labelskew_plugins.host", "fl_labelskew_plugins.runtimes.sp.hosted"]
PRELOADED = ["fl_labelskew_plugins.runtimes.sp.runtime", "matplotlib.backends.backend_agg", "sklearn.datasets"]
"""Modules that are imported before a fork. Earlier: :mod:`.forkserver`, and ``HOSTED`` if FedML is installed."""


def run_all(
    planned: Sequence[Planned],
    *,
    jobs: int | None,
    memory: float | None,
    print_line: PrintLine,
    host: str | None = None,
    pause: Pause | None = None,
) -> list[str]:
    """Finish all runs; return a message per failed run; raise LabelSkewError if a folder cannot be used."""
    states = states_of(planned)
    unfinished = [run for run in planned if states[run.name] != "done"]
    unfinished.sort(key=lambda run: states[run.name] is None)  # begun runs first
    slots = jobs or default_jobs(planned)
    bound = memory_bound(memory)
    begun = sum(state == "begun" for state in states.values())
    print_line(
        f"{counted(len(planned), 'run')}: {len(planned) - len(unfinished)} finished, {begun} to resume; "
        f"at most {slots} at a time, in {bound / 1e9:.1f} GB of memory"
    )
    options = RunOptions(quiet=True, host=host, pause=pause)
    return Pool(planned, unfinished, slots, bound, print_line, options).work() if unfinished else []


def run_here(run: Planned, print_line: PrintLine, host: str | None = None) -> None:
    """Finish one run in this process, on the first visible GPU. Raise MistakesError if data or GPU are missing."""
    begun, title = time.monotonic(), f"task {run.number}  {run.name}"
    if states_of([run])[run.name] != "done" and (wrong := missing([run])):
        raise MistakesError(wrong)
    try:
        with interrupting():
            new = complete(run.base, run.settings, run.folder, RunOptions(quiet=True, host=host))
    except locks.HeldError as error:
        print_line(f"{title}  skipped: {error.holder} is running it")
    else:
        result = f"{_result(run)}  {clock(time.monotonic() - begun)}" if new else "already finished"
        print_line(f"{title}  {result}")


def default_jobs(planned: Sequence[Planned]) -> int:
    """One job if a run has several processes, else one per GPU in use; without GPUs, as many as the cores allow."""
    if any(not run.recipe.comm.in_process for run in planned):
        return 1
    threads = max(run.recipe.device.threads or 1 for run in planned)
    return len(_gpus(planned)) or max(1, available_cores() // threads)


def memory_bound(memory: float | None) -> float:
    """Bytes for all runs together: ``memory`` GB (10^9 bytes), or :data:`MEMORY_SHARE` of the free memory."""
    return MEMORY_SHARE * free_memory() if memory is None else memory * 1e9


@dataclass
class RunProcess:
    """A run in progress."""

    run: Planned
    process: Any
    slot: int
    begun: float = field(default_factory=time.monotonic)


@dataclass
class Pool:
    """Run processes, ``slots`` at a time within ``bound`` bytes, with the estimates of docs/sweeps.md."""

    all: Sequence[Planned]
    waiting: list[Planned]
    slots: int
    bound: float
    print_line: PrintLine
    options: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        self.running: list[RunProcess] = []
        self.failed: list[str] = []
        self.took: list[float] = []
        self.remaining = len(self.waiting)
        self._elsewhere: Collection[str] = ()
        self._gpus = _gpus(self.waiting)
        self._peaks: dict[tuple[str, str], float] = {}
        self._context = multiprocessing.get_context("forkserver")
        preloaded = [*(HOSTED if self.options.host != "none" and host_installed() else []), *PRELOADED]
        self._context.set_forkserver_preload(["fl_labelskew_plugins.studies.sweep.forkserver", *preloaded])
        for run in self.all:
            self._remember(run)

    def work(self) -> list[str]:
        """Run until all runs have ended, or until :data:`MAX_DELAY` after they should have paused."""
        try:
            with interrupting():
                resource_tracker.ensure_running()  # its start unblocks signals, so it comes first
                with blocked(signal.SIGINT):  # .forkserver unblocks it in the process that forks the runs
                    forkserver.ensure_running()
                while self.waiting or self.running:
                    while self._available() and self._fits():
                        self._start(self.waiting.pop(0))
                    connection.wait([job.process.sentinel for job in self.running], timeout=0.5 if self.running else 2)
                    for job in [job for job in self.running if job.process.exitcode is not None]:
                        self.running.remove(job)
                        self._ended(job)
                    if (pause := self.options.pause) and time.monotonic() > pause.at + MAX_DELAY:
                        break
        finally:
            end([job.process for job in self.running], GRACE)
            for job in self.running:
                _remove_if_empty(job.run.log)
            with contextlib.suppress(OSError):
                self.all[0].log.parent.rmdir()  # only if it is empty
        return self.failed

    def _available(self) -> bool:
        """Return whether an unlocked run is first; move locked runs to the end."""
        elsewhere = {}
        while self.waiting and self.waiting[0].name not in elsewhere:
            run = self.waiting[0]
            if run.folder.summary.exists():
                self.remaining -= 1
                self.print_line(f"{self._number()}  {run.name}  finished by another process")
            elif holder := locks.held_by(run.folder.path):
                elsewhere[run.name] = holder
                self.waiting.append(run)
            else:
                return True
            del self.waiting[0]
        if elsewhere and not self.running and elsewhere.keys() != self._elsewhere:
            self._elsewhere = elsewhere.keys()
            runs = counted(len(elsewhere), "run")
            holders = few([f"{name} ({holder})" for name, holder in elsewhere.items()], 3)
            self.print_line(f"waiting for {runs} of other processes: {holders}")
        return False

    def _fits(self) -> bool:
        """Whether a slot and memory are free for the first waiting run."""
        if not self.running:
            return True
        for job in self.running:
            self._remember(job.run)
        peaks = [self._peaks.get(_kind(run)) for run in (*(job.run for job in self.running), self.waiting[0])]
        return len(self.running) < self.slots and None not in peaks and sum(filter(None, peaks)) <= self.bound

    def _remember(self, run: Planned) -> None:
        for line in read_lines(run.folder.timings)[-1:]:
            if peak := number(line, "peak_mb"):
                self._peaks[_kind(run)] = max(1e6 * peak, self._peaks.get(_kind(run), 0.0))

    def _start(self, run: Planned) -> None:
        slot = min(set(range(self.slots)) - {job.slot for job in self.running})
        gpu = _visible(self._gpus[slot % len(self._gpus)]) if run.gpus else None
        with writing(run.log.parent):
            run.log.parent.mkdir(parents=True, exist_ok=True)
            run.log.unlink(missing_ok=True)
        arguments = (run.base, run.settings, run.folder.path, run.log, gpu, self.options)
        process = self._context.Process(target=_work, args=arguments, name=run.name)
        process.start()
        self.running.append(RunProcess(run, process, slot))

    def _ended(self, job: RunProcess) -> None:
        run, code, seconds = job.run, job.process.exitcode, time.monotonic() - job.begun
        _remove_if_empty(run.log)
        if code == RUN_ELSEWHERE:
            self.waiting.append(run)
            return
        self.remaining -= 1
        self.took.append(seconds)
        if code:
            reason = error_in_log(run.log) or how_it_ended("the run", code)
            self.failed.append(f"{run.name}: {reason}")
        result = f"failed: {reason}" if code else _result(run)
        parallel = max(1, min(self.slots, self.remaining, len(self.running) + 1))
        seconds_left = fmean(self.took) * self.remaining / parallel
        self.print_line(f"{self._number()}  {run.name}  {result}  {clock(seconds)}  left {clock(seconds_left)}")

    def _number(self) -> str:
        return f"{len(self.all) - self.remaining:>{len(str(len(self.all)))}}/{len(self.all)}"


def _gpus(planned: Sequence[Planned]) -> list[int]:
    return list(dict.fromkeys(gpu for run in planned for gpu in run.gpus))


def _kind(run: Planned) -> tuple[str, str]:
    return run.recipe.data.dataset, run.recipe.network_name


def _visible(gpu: int) -> str:
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[gpu] if gpu < len(names) else str(gpu)


def _result(run: Planned) -> str:
    lines = read_lines(run.folder.metrics)
    return in_words(lines[-1] | {"loss_terms": {}}) if lines else "finished"


def _remove_if_empty(file: Path) -> None:
    """Delete the log of a run that printed nothing."""
    with contextlib.suppress(OSError):
        if not file.stat().st_size:
            file.unlink()


def error_in_log(file: Path) -> str:
    """Read a failed run's error messages, or the last line of a traceback, from its log."""
    with contextlib.suppress(OSError):
        lines = [line for line in read_text(file, "replace").splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if errors:
            return "; ".join(errors)
        if any(line.startswith("Traceback ") for line in lines):
            return f"{lines[-1]} (full traceback: {file})"
    return ""


def _work(base: Path, settings: Sequence[str], folder: Path, file: Path, gpu: str | None, options: RunOptions) -> None:
    """Complete one run in its own process, with output to ``file`` unless the disk is full."""
    os.setsid()  # Ctrl-C reaches only the sweep, which terminates this process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # .forkserver has set SIG_DFL
    try:
        out = open_regular(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent(parent.sentinel)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        if not complete(base, settings, RunFolder(folder), options):
            sys.exit(RUN_ELSEWHERE)
    except locks.HeldError:
        sys.exit(RUN_ELSEWHERE)
    except LabelSkewError as error:
        with contextlib.suppress(OSError):
            log.error(error.shown())
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
