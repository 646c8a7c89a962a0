"""Runs every combination of a grid of settings once, several at a time; the same command goes on with what is left.

A sweep is a YAML file: a base recipe, settings for all runs, and axes whose product is run. Each run is a process of
its own with a folder named after its combination, and gives the bytes that ``labelskew run`` gives. The processes are
forked from one that has imported the host, since that import takes seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, MistakesError
from pydantic import Field

from fl_labelskew_plugins.engine import devices
from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.machine.place import available_cores
from fl_labelskew_plugins.machine.signals import interrupting
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe import mistakes, yaml
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.mistakes import RecipeError
from fl_labelskew_plugins.recipe.model import PLUGGED, Recipe
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import clock, told
from fl_labelskew_plugins.runs.session import data_folder
from fl_labelskew_plugins.runtimes.processes import how_it_ended
from fl_labelskew_plugins.studies import report
from fl_labelskew_plugins.studies.reproduce import complete, held

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
LONGEST = 150
"""Letters of a run's name, which is a folder's."""
LOGS = "_logs"
"""Where runs' words go; no run's name begins like this."""
MOST = 10_000
"""Combinations of a grid."""
SHARE = 0.8
"""Share of the free memory that all runs together may take."""
GRACE = 30.0
"""Seconds in which a run that was told to end saves its checkpoint; then it is killed."""
PRELOADED = ["fl_labelskew_plugins.runtimes.sp.runtime", "matplotlib.backends.backend_agg", "sklearn.datasets"]
"""What runs in one process import, slow ones first; before all of them comes ``sweep_server``."""

Say = Callable[[str], None]


class SweepFile(Params):
    """A sweep's file."""

    base: str = Field(description="a recipe, relative to this file")
    out: str | None = Field(None, description="folder of all runs, relative to the current one; default: runs/<name>")
    set: dict[str, Any] = Field({}, description="settings of all runs")
    grid: list[dict[str, Any]] = Field(
        min_length=1, description="axes: name to settings each, or one section.key with a list of values"
    )
    skip: list[list[str]] = Field([], description="combinations to leave out, by names as in a run's folder")


@dataclass(frozen=True)
class Choice:
    """One value of an axis: what a run's name says of it, and its ``section.key=value`` overrides."""

    label: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """One combination.

    Args:
        name: its folder's.
        base: the recipe's file.
        settings: ``section.key=value`` each, on top of it.
        recipe: with them.
        gpus: those of which the run gets one; none on the CPU.
        folder: of the run.
        log: what the run has to say, if anything.
    """

    name: str
    base: Path
    settings: tuple[str, ...]
    recipe: Recipe
    gpus: tuple[int, ...]
    folder: RunFolder
    log: Path


def plan(path: Path, overrides: Sequence[str] = (), out: Path | None = None, only: Sequence[str] = ()) -> list[Planned]:
    """All combinations of a sweep's file, checked, with all their data at hand.

    Args:
        path: the file.
        overrides: ``section.key=value``, for all runs.
        out: folder of all runs, in place of the file's.
        only: names of values; of an axis that has some of them, the others are left out.

    Raises:
        MistakesError: a line for everything to put right.
    """
    file = _read(path)
    out = out or Path(file.out or f"runs/{path.stem}").expanduser()
    wrong = [f"{out}: is the folder of a run; another --out would be right"] if RunFolder(out).recipe.exists() else []
    common = [*_settings(f"{path}: set", file.set, wrong), *overrides]
    axes = [_axis(f"{path}: grid[{number}]", raw, wrong) for number, raw in enumerate(file.grid, 1)]
    _same_key(path, axes, overrides, wrong)
    known = list(dict.fromkeys(choice.label for axis in axes for choice in axis))
    skipped = [_skip(f"{path}: skip[{number}]", labels, axes, wrong) for number, labels in enumerate(file.skip, 1)]
    wrong += [f"--only {mistakes.unknown(label, known)}" for label in only if label not in known]
    axes = [[choice for choice in axis if choice.label in only] or axis for axis in axes]
    if (size := math.prod(len(axis) for axis in axes)) > MOST:
        wrong.append(f"{path}: grid: {size} combinations; at most {MOST} would be right")
    if wrong:
        raise MistakesError(wrong)
    chosen = [
        choices
        for choices in itertools.product(*axes)
        if not any(labels <= {choice.label for choice in choices} for labels in skipped)
    ]
    if not chosen:
        raise LabelSkewError(f"{path}: skip: leaves nothing to run; fewer entries would be right")
    base, typed = path.parent / file.base, {_key(override) for override in overrides}
    found: list[Planned] = []
    where: dict[str, list[str]] = {}
    for choices in chosen:
        name = "-".join(choice.label for choice in choices)
        settings = (*common, *(each for choice in choices for each in choice.settings))
        folder, log = RunFolder(out / name), out / LOGS / f"{name}.txt"
        for line, each in _checked(base, settings):
            if each is None:
                key, _, problem = line.removeprefix("--set ").partition(": ")
                ours = line.startswith("--set ") and key not in typed
                where.setdefault(f"{path}: {key}: {problem}" if ours else line, []).append(name)
            else:
                gpus = tuple(each.device.gpu_ids) if each.device.using_gpu and each.comm.in_process else ()
                found.append(Planned(name, base, (*settings, *_own(each)), each, gpus, folder, log))
    wrong = [f"{line} (in {_few(names)})" if len(names) < len(chosen) else line for line, names in where.items()]
    wrong += _bad_names(path, found)
    if wrong := wrong or _twins(path, found) + _missing_data(found):
        raise MistakesError(wrong)
    return [replace(each, recipe=recipes.load(each.base, each.settings)) for each in found]


def _bad_names(path: Path, found: Sequence[Planned]) -> list[str]:
    names = Counter(each.name for each in found)
    twice = "is the name of two combinations; other names would be right"
    long = f"is longer than {LONGEST} letters; shorter names would be right"
    wrong = [f"{path}: grid: {name} {twice}" for name, count in names.items() if count > 1]
    return wrong + [f"{path}: grid: {name} {long}" for name in names if len(name) > LONGEST]


def _twins(path: Path, found: Sequence[Planned]) -> list[str]:
    """Combinations that a report would count once, since they are the same experiment with the same seed."""
    runs = [report.Run(each.name, each.recipe.resolved(), (), data=_place(each.recipe)) for each in found]
    counted = [run for group in report.grouped(runs) for run in group]
    known = {run.name for run in counted}
    wrong = []
    for run in (run for run in runs if run.name not in known):
        twin = next(other for other in counted if other.seed == run.seed and report.same(other, run))
        wrong.append(f"{path}: grid: {twin.name} and {run.name} have the same settings, data and seed; use one of them")
    return wrong[:1] if len(wrong) < 2 else [f"{wrong[0]} (and {len(wrong) - 1} more such)"]


def _place(recipe: Recipe) -> str:
    """Stands for a recipe's data before they are read: the folder where they lie."""
    folder = data_folder(recipe) or recipe.dataset.default_dir
    return "" if folder is None else str(Path(folder).resolve())


def _read(path: Path) -> SweepFile:
    try:
        content, twice = yaml.read(recipes.read_text(path))
    except yaml.YamlError as error:
        raise LabelSkewError(f"{path}: {error}") from None
    known = list(mistakes.keys_of(SweepFile))
    if not isinstance(content, dict):
        raise LabelSkewError(f"{path}: {mistakes.show(content)} is no sweep; allowed: {', '.join(known)}")
    wrong = [f"{path}: {line}" for line in twice]
    wrong += [f"{path}: {key}: {mistakes.unknown_key(key, known)}" for key in content if key not in known]
    file, lines = mistakes.validate(SweepFile, content)
    wrong += [f"{path}: {key}: {line}" for key, line in lines.items()]
    if wrong or not isinstance(file, SweepFile):
        raise MistakesError(wrong)
    return file


def _settings(place: str, raw: Mapping[str, Any], wrong: list[str]) -> list[str]:
    """``section.key: value``, or ``section: {key: value}``, as overrides."""
    found: list[str] = []
    for key, value in raw.items():
        if "." in key:
            found.append(_override(key, value))
        elif isinstance(value, dict):
            found += [_override(f"{key}.{inner}", each) for inner, each in value.items()]
        else:
            allowed = "allowed: section.key: value, or section: {key: value}"
            wrong.append(f"{place}: {key}: {mistakes.show(value)} is no mapping of keys to values; {allowed}")
    return found


def _override(place: str, value: Any) -> str:
    return f"{place}={json.dumps(value, ensure_ascii=False)}"  # JSON is YAML


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _axis(place: str, raw: Mapping[str, Any], wrong: list[str]) -> list[Choice]:
    """A named axis, ``name: settings``, or a plain one, ``section.key: [values]``."""
    if len(raw) == 1 and isinstance(values := next(iter(raw.values())), list):
        (key,) = raw
        if "." not in key or not values:
            wrong.append(f"{place}: {key}: allowed: section.key with at least one value")
        return [Choice(_label(key, value), (_override(key, value),)) for value in values]
    found = []
    for name, settings in raw.items():
        if not LABEL.fullmatch(name):
            wrong.append(f"{place}: {mistakes.show(name)} is no name; allowed: letters, digits and ._+-")
        elif settings is not None and not isinstance(settings, dict):
            allowed = "allowed: name: {settings}, or one section.key: [values]"
            wrong.append(f"{place}: {name}: {mistakes.show(settings)} is no mapping of settings; {allowed}")
        else:
            found.append(Choice(name, tuple(_settings(f"{place}: {name}", settings or {}, wrong))))
    if not raw:
        wrong.append(f"{place}: empty; at least one value would be right")
    return found


def _label(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    text = value if isinstance(value, str) else json.dumps(value)
    return ("seed" if name == "random_seed" else name) + re.sub(r"[^A-Za-z0-9._+-]+", "_", text).strip("_")


def _same_key(path: Path, axes: Sequence[Sequence[Choice]], overrides: Sequence[str], wrong: list[str]) -> None:
    """A key that two axes set: the second would undo what the first one's name says."""
    by_axis = [{_key(each) for choice in axis for each in choice.settings} for axis in axes]
    for (i, a), (j, b) in itertools.combinations(enumerate(by_axis, 1), 2):
        wrong += [
            f"{path}: grid: {key} is set by axes {i} and {j}; one of them would be right" for key in sorted(a & b)
        ]
    for key in map(_key, overrides):
        wrong += [f"--set {key}: the grid of {path} sets it; another key would be right" for a in by_axis if key in a]


def _skip(place: str, labels: Sequence[str], axes: Sequence[Sequence[Choice]], wrong: list[str]) -> set[str]:
    of = {label: [i for i, axis in enumerate(axes) if label in {each.label for each in axis}] for label in labels}
    known = list(dict.fromkeys(choice.label for axis in axes for choice in axis))
    wrong += [f"{place}: {mistakes.unknown(label, known)}" for label, found in of.items() if not found]
    for a, b in itertools.combinations(of, 2):
        if of[a] == of[b] and len(of[a]) == 1:
            wrong.append(f"{place}: {a} and {b} are of one axis, so that no run has both; an entry each would be right")
    if not labels:
        wrong.append(f"{place}: empty; the names of a combination would be right")
    return set(labels)


def _checked(base: Path, settings: Sequence[str]) -> Iterator[tuple[str, Recipe | None]]:
    """The recipe, or a line for each of its mistakes."""
    try:
        yield "", recipes.load(base, settings)
    except RecipeError as error:
        yield from ((line, None) for line in error.mistakes)


def _own(recipe: Recipe) -> tuple[str, ...]:
    """What a run of a sweep has that its recipe leaves open: one thread; and its one GPU, which is then GPU 0."""
    if not recipe.comm.in_process:
        return ()
    threads = ("device_args.threads=1",) if recipe.device.threads is None else ()
    return (*threads, "device_args.gpu_ids=[0]") if recipe.device.using_gpu else threads


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _missing_data(found: Sequence[Planned]) -> list[str]:
    wrong: dict[str, None] = {}
    for each in found:
        try:
            each.recipe.dataset.check(data_folder(each.recipe), download=each.recipe.data.download)
            devices.gpus(each.recipe)
        except LabelSkewError as error:
            wrong[f"{each.base}: {error}"] = None
    return list(wrong)


@dataclass
class _Job:
    planned: Planned
    process: Any
    slot: int
    words: connection.Connection
    begun: float = field(default_factory=time.monotonic)


def states_of(planned: Sequence[Planned]) -> dict[str, str | None]:
    """Name to ``done``, ``begun``, or None for nothing yet; see :func:`fl_labelskew_plugins.studies.reproduce.held`.

    Raises:
        MistakesError: folders hold other runs.
    """
    states: dict[str, str | None] = {}
    wrong: dict[str, list[Planned]] = {}
    for each in planned:
        try:
            states[each.name] = held(each.base, each.settings, each.folder)
        except LabelSkewError as error:
            wrong.setdefault(str(error).removeprefix(f"{each.folder.path}: "), []).append(each)
    if wrong:
        raise MistakesError(
            [
                f"{which[0].folder.path}{f' and {len(which) - 1} more' if len(which) > 1 else ''}: {line}"
                for line, which in wrong.items()
            ]
        )
    return states


def run_all(planned: Sequence[Planned], *, jobs: int | None, memory: float | None, say: Say) -> list[str]:
    """Have all runs finished; returns a line for each one that failed.

    Args:
        planned: from :func:`plan`.
        jobs: how many at a time; default: :func:`default_jobs`.
        memory: GB (10^9 bytes) that all of them together may take; default: :data:`SHARE` of what is free.
        say: what is told.

    Raises:
        MistakesError: see :func:`states_of`.
        LabelSkewError: another sweep is under way in the folder, or it cannot be written.
        KeyboardInterrupt: told to end; all runs have saved a checkpoint.
    """
    out = planned[0].folder.path.parent
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabelSkewError(f"{out}: cannot be written: {error.strerror}; use another --out") from None
    with locks.alone(out, "sweep"):  # two would go on with the same runs
        return _run_all(planned, jobs, memory, say)


def _run_all(planned: Sequence[Planned], jobs: int | None, memory: float | None, say: Say) -> list[str]:
    states = states_of(planned)
    open_ = [each for each in planned if states[each.name] != "done"]
    open_.sort(key=lambda each: states[each.name] is None)  # what was begun comes first
    slots = jobs or default_jobs(planned)
    bound = SHARE * free_memory() if memory is None else memory * 1e9
    begun = sum(state == "begun" for state in states.values())
    say(
        f"{counted(len(planned), 'run')}: {len(planned) - len(open_)} done, {begun} to go on with; at most {slots} at "
        f"a time, in {bound / 1e9:.1f} GB"
    )
    return _Crew(planned, open_, slots, bound, say).work() if open_ else []


def default_jobs(planned: Sequence[Planned]) -> int:
    """As many runs as there are GPUs in use, else as cores allow; one, where a run has several processes."""
    if any(not each.recipe.comm.in_process for each in planned):
        return 1
    if gpus := _gpus(planned):
        return len(gpus)
    threads = max(each.recipe.device.threads or 1 for each in planned)
    return max(1, available_cores() // threads)


def _gpus(planned: Sequence[Planned]) -> list[int]:
    """The GPUs that the recipes name, each once."""
    return list(dict.fromkeys(gpu for each in planned for gpu in each.gpus))


def free_memory() -> float:
    """Bytes that processes can have here without any being pushed out: what Linux says, and no more than a limit."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * float(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
        for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # none, or "max"
                free = min(free, float(Path(limit).read_text()))
        return free
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


class _Crew:
    """The runs under way, and when another one may begin.

    How much memory a run takes is what runs on the same data and network have taken so far (``peak_mb`` in their
    ``timings.jsonl``). While there is none, because the first round of the first one is not over, it is the only one.
    """

    def __init__(
        self, planned: Sequence[Planned], open_: Sequence[Planned], slots: int, bound: float, say: Say
    ) -> None:
        self.all, self.waiting, self.slots, self.bound, self.say = planned, list(open_), slots, bound, say
        self.running: list[_Job] = []
        self.failed: list[str] = []
        self.took: list[float] = []
        self.left = len(open_)
        self._gpus = _gpus(open_)
        self._peaks: dict[str, float] = {}
        if all(each.recipe.comm.in_process for each in open_):  # others share the cores out themselves
            threads = max(each.recipe.device.threads or 1 for each in open_)
            os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["fl_labelskew_plugins.studies.sweep.forkserver", *PRELOADED])
        for each in planned:
            self._remember(each)

    def work(self) -> list[str]:
        """Until all have ended."""
        try:
            with interrupting():
                _serve()
                while self.waiting or self.running:
                    while self.waiting and self._room():
                        self._start(self.waiting.pop(0))
                    connection.wait([job.process.sentinel for job in self.running], timeout=0.5)
                    for job in [job for job in self.running if job.process.exitcode is not None]:
                        self.running.remove(job)
                        self._ended(job)
        finally:
            self._end()
        return self.failed

    def _room(self) -> bool:
        if not self.running:
            return True
        for job in self.running:
            self._remember(job.planned)
        taken = [self._peak(each) for each in (*(job.planned for job in self.running), self.waiting[0])]
        return len(self.running) < self.slots and None not in taken and sum(filter(None, taken)) <= self.bound

    def _peak(self, each: Planned) -> float | None:
        return self._peaks.get(_kind(each))

    def _remember(self, each: Planned) -> None:
        """Bytes that this run has held at most, if it has recorded any."""
        for line in read_lines(each.folder.timings)[-1:]:
            if peak := report.number(line, "peak_mb"):
                self._peaks[_kind(each)] = max(1e6 * peak, self._peaks.get(_kind(each), 0.0))

    def _start(self, each: Planned) -> None:
        slot = min(set(range(self.slots)) - {job.slot for job in self.running})
        gpu = _visible(self._gpus[slot % len(self._gpus)]) if each.gpus else None
        try:
            each.log.parent.mkdir(exist_ok=True)
            each.log.unlink(missing_ok=True)
        except OSError as error:
            raise LabelSkewError(f"{each.log.parent}: cannot be written: {error.strerror}") from None
        words, theirs = self._context.Pipe(duplex=False)
        with theirs:
            arguments = (each.base, each.settings, each.folder.path, each.log, theirs, gpu)
            process = self._context.Process(target=_work, args=arguments, name=each.name)
            process.start()
        self.running.append(_Job(each, process, slot, words))

    def _ended(self, job: _Job) -> None:
        each, code, seconds = job.planned, job.process.exitcode, time.monotonic() - job.begun
        _tidy(each.log)
        with job.words:
            sent = _received(job.words)
        self.left -= 1
        self.took.append(seconds)
        if code:
            words = _last_words(each.log) or sent or how_it_ended("the run", code)
            self.failed.append(f"{each.name}: {words}")
            told_ = f"failed: {words}"
        else:
            told_ = told(read_lines(each.folder.metrics)[-1] | {"loss_terms": {}})
        mean = sum(self.took) / len(self.took)
        left = mean * self.left / max(1, min(self.slots, self.left, len(self.running) + 1))
        number = f"{len(self.all) - self.left:>{len(str(len(self.all)))}}/{len(self.all)}"
        self.say(f"{number}  {each.name}  {told_}  {clock(seconds)}  left {clock(left)}")

    def _end(self) -> None:
        """Whatever still runs: ask, wait, kill."""
        for job in self.running:
            job.process.terminate()
        until = time.monotonic() + GRACE
        for job in self.running:
            job.process.join(max(0.0, until - time.monotonic()))
            if job.process.exitcode is None:
                job.process.kill()
                job.process.join()
            _tidy(job.planned.log)
        with contextlib.suppress(OSError):
            self.all[0].log.parent.rmdir()  # as long as it is empty


def _serve() -> None:
    """Start the process that forks the runs, with Ctrl-C held back until :mod:`.forkserver` is there."""
    resource_tracker.ensure_running()  # which lets signals in again, once it has been started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tidy(log: Path) -> None:
    """Leave nothing of a run that had nothing to say."""
    with contextlib.suppress(OSError):
        if not log.stat().st_size:
            log.unlink()


def _kind(each: Planned) -> str:
    """What decides how much memory a run takes, as far as one can tell beforehand: data set and network."""
    resolved = each.recipe.resolved()
    return json.dumps(
        [{k: v for k, v in resolved[s].items() if k == PLUGGED[s].key} for s in ("data_args", "model_args")]
    )


def _visible(gpu: int) -> str:
    """What CUDA calls the GPU that is this number among those that we see."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = seen.split(",") if seen else []
    return names[gpu].strip() if gpu < len(names) else str(gpu)


def _last_words(log: Path) -> str:
    """What a run that failed said last: its mistake, or the last line of a traceback and where the rest is."""
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if errors:
            return "; ".join(errors)
        if any(line.startswith("Traceback ") for line in lines):
            return f"{lines[-1]} (all of it: {log})"
    return ""


def _received(words: connection.Connection) -> str:
    """What a run has sent about its failure; nothing, where it was killed."""
    with contextlib.suppress(EOFError, OSError):
        if words.poll():
            return words.recv_bytes().decode(errors="replace")
    return ""


def _work(
    base: Path, settings: tuple[str, ...], folder: Path, log: Path, words: connection.Connection, gpu: str | None
) -> None:
    """One run, in a process of its own; what it says goes to ``log``, and why it failed also to ``words``.

    A disk that is full takes no log.
    """
    os.setsid()  # Ctrl-C is the sweep's, which tells this process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # for what the run starts; see sweep_server
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        complete(base, settings, RunFolder(folder), quiet=True)
    except LabelSkewError as error:
        _send(words, "; ".join(str(error).splitlines()))
        with contextlib.suppress(OSError):
            print(error.shown(), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _send(words, f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise


def _send(words: connection.Connection, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        words.send_bytes(text.encode()[:4096])  # what any pipe takes at once


def _end_with_parent() -> None:
    """Save and end when the sweep has ended, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
