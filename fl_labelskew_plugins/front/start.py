"""Start, go on with, or only try a run: the one way in for every command."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fl_labelskew_registry as registry
from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.ledgers import privacy
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import FULL
from fl_labelskew_plugins.machine.place import launched, mpi_rank
from fl_labelskew_plugins.machine.signals import interrupting, terminal_closed
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.model import Recipe, different
from fl_labelskew_plugins.recipe.objects import SECTIONS, described
from fl_labelskew_plugins.runs import checkpoint, status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Hear, Pause, Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, made_up
from fl_labelskew_plugins.runtimes.base import Call, Runtime
from fl_labelskew_plugins.show import card
from fl_labelskew_plugins.show.progress import progress
from fl_labelskew_plugins.show.tables import describe, table
from fl_labelskew_plugins.surveys.survey import Survey

ROUNDS = "train_args.comm_round"
"""The only setting of a run that can change later."""


def start(
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | None = None,
    resume: Path | None = None,
    from_round: int | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    role: str | None = None,
    rank: int | None = None,
    server: str | None = None,
    pause: Pause | None = None,
    passphrase_fd: int | None = None,
    survey: bool = False,
    host: str | None = None,
    held: RunFolder | None = None,
) -> Survey | None:
    """Run a recipe, or ask its silos for their class counts.

    Args:
        path: the recipe; may be left out with ``resume``.
        overrides: ``section.key=value`` each; with ``resume``, :data:`ROUNDS` may be another number.
        run_dir: this run's own folder, new or empty; default: a new one under ``tracking_args.run_dir``.
        resume: folder of an earlier run to go on with, to the same numbers.
        from_round: with ``resume``: go back to the end of this round, from 1, first.
        dry_run: do everything but the training; write nothing.
        quiet: print nothing but errors.
        role: ``server`` or ``client``, where each is started on its own machine; default: all parts on this machine.
        rank: which silo, from 1, in the client's role.
        server: address of the server, in place of the recipe's.
        pause: when to stop early, to be gone on with; default: that of the command that has started this process.
        passphrase_fd: descriptor of encrypted keys' passphrase; default: the environment, or the terminal.
        survey: across silos: train nothing.
        host: ``fedml`` or ``none``; default: as an earlier run was begun, else FedML where it is installed.
        held: ``run_dir`` or ``resume``, where this process keeps others out of it already.

    Returns:
        Of a survey's server what it has found; else None.

    Raises:
        LabelSkewError: a user's mistake.
        RunError: the run broke off, or one of its processes did.
        KeyboardInterrupt: Ctrl-C or a termination signal, after a checkpoint was saved; says how to go on.
    """
    _check(path, run_dir, resume, from_round, dry_run=dry_run, survey=survey)
    place = mpi_rank()
    worker = place is not None and place[0] > 0  # which writes nothing in the run's folder
    if role == "client":
        recipe, folder = _silo(path, overrides, run_dir, resume, rank)
    elif resume is not None and worker and path is not None:  # the run's folder may be on the server's node alone
        recipe, folder = recipes.load(path, overrides), RunFolder(resume)
    elif resume is not None:
        recipe, folder = _resumed(path, overrides, resume)
        folder = held or folder
        if from_round is not None and recipe.sums_alone and recipe.privacy.noise_multiplier is not None:
            what = "silos have added noise to the sums of this run, and answer no round again"
            raise LabelSkewError(f"--from-round {from_round}: {what}; use --resume without it, or begin a new run")
        if from_round is not None and not worker:
            _go_back(folder, from_round, quiet=quiet)
    else:
        assert path is not None  # _check has seen to it
        recipe = recipes.load(path, overrides)
        folder = held or folder_of(recipe, run_dir, "-survey" if survey else "")
        if not worker:  # which writes nothing there, and comes when the server may have begun to
            folder.check_new()
    if place is not None and not recipe.comm.over_mpi:
        what = f"{recipe.comm.backend} is one process, and mpirun started {place[1]}"
        raise mistake("comm_args.backend", what, "MPI, or no mpirun")
    recipe = compatibility.hosted(recipe, host, folder.environment.get("host") if resume else None)
    by_hand = place is not None and not launched()  # mpirun then shows a terminal even where there is a file
    call = Call(
        path,
        tuple(overrides),
        resume is not None,
        quiet,
        role,
        rank,
        server,
        pause or Pause.inherited(),
        passphrase_fd,
        survey,
        host or ("none" if not recipe.hosted and compatibility.host_installed() else None),
    )
    return _go(recipe, call, folder, progress(quiet, plain=by_hand), dry_run=dry_run)


def train(
    recipe: Recipe,
    folder: RunFolder,
    *,
    resume: bool = False,
    quiet: bool = False,
    hear: Hear | None = None,
    host: str | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Run a recipe that is at hand, with objects in place of names or not, in a new folder; raises as :func:`start`.

    ``resume``: go on in an earlier one's; ``quiet``: print nothing but warnings; ``hear``: told of every round;
    ``host`` as :func:`start` has it; ``overrides``: those of the recipe that differ from the earlier run's.
    """
    if not resume:
        folder.check_new()
    recipe = compatibility.hosted(recipe, host, folder.environment.get("host") if resume else None)
    show = progress(quiet)
    call = Call(None, tuple(overrides), resume, quiet, host=None if recipe.hosted else "none")
    if recipe.comm.in_process:
        show.hear = hear
        _go(recipe, call, folder, show)
        return
    if recipe.objects or hear is not None:
        what = "objects" if recipe.objects else "callbacks"
        what = f"{recipe.comm.backend}: other processes train, which have no {what} of this one"
        code = ", or model_args.model: FILE.py:FUNCTION" if {*recipe.objects} == {"model_args"} and hear is None else ""
        raise mistake("comm_args.backend", what, f"sp{code}")
    with tempfile.TemporaryDirectory(prefix="labelskew-") as temporary:
        path = Path(temporary) / f"{recipe.name}.yaml"  # which the other processes read
        path.write_text(recipe.dump(), encoding="utf-8")
        try:
            _go(recipe.model_copy(update={"path": path}), call, folder, show)
        except SystemExit as end:
            raise RunError(
                f"{folder.path}: the run ended with exit code {end.code}; its processes have said why"
            ) from None


def go_on(
    folder: RunFolder,
    objects: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    quiet: bool = False,
    hear: Hear | None = None,
) -> None:
    """Resume a run until its last round, with the objects that it had; raises what :func:`train` does."""
    recipe, folder = _resumed(None, overrides, folder.path, objects)
    train(recipe, folder, resume=True, quiet=quiet, hear=hear, overrides=overrides)


@restored()
def _go(recipe: Recipe, call: Call, folder: RunFolder, show: Progress, *, dry_run: bool = False) -> Survey | None:
    compatibility.check_extras(recipe)
    runtime: Runtime = registry.load("runtimes", recipe.comm.backend)(recipe, call, folder, show)
    try:
        if dry_run:
            show.note(describe(warned(runtime.preview())))
            for name in compatibility.missing_trackers(recipe):
                log.warn(f"tracking_args.trackers: {name} is not installed, and the run continues without it")
            show.note("dry run: nothing was trained or written")
        elif call.resume and folder.is_whole(recipe.train.comm_round):
            show.note(f"{folder.path}: all {recipe.train.comm_round} rounds are done already")
        elif not runtime.delegated():
            if call.survey:
                return _survey(runtime)
            _run(runtime)
        return None
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunError(
            f"run directory {folder.path} can no longer be written: {error.strerror}; make room there; "
            f"{call.go_on(folder.path)}"
        ) from error
    finally:
        runtime.close()
        folder.release()


def _survey(runtime: Runtime) -> Survey:
    with status.ending(runtime.folder.tell):
        survey = runtime.survey()
    runtime.folder.tell(state=status.FINISHED)
    return survey


def warned(session: Session) -> Session:
    """The same session, once its warnings are said."""
    if made_up(session.recipe):
        name = session.recipe.data.dataset
        log.warn(f"data_args.data_cache_dir: made up, not the real {name}; numbers say nothing")
    hosts = compatibility.warnings(session.recipe, session.trainer.model)
    for warning in [*session.method.warnings(session.federation), *hosts, *privacy.warnings(session)]:
        log.warn(warning)
    return session


def _run(runtime: Runtime) -> None:
    folder, resume = runtime.folder, runtime.call.resume
    folder.tell(rounds=runtime.recipe.train.comm_round, go_on=runtime.call.go_on(folder.path).partition(": ")[2])
    with status.ending(folder.tell):
        if runtime.recipe.hosted:
            runtime.load_host()
        if resume:
            folder.hold()
        session = warned(runtime.session())
        folder.hold()
        if not resume and folder.recipe.exists():  # another process was faster
            folder.check_new()
        folder.tell(state=status.RUNNING)
        record = Record(session, folder, runtime.show, resume=resume, pause=runtime.call.pause)
        del session  # it holds the weights of round 0, and the record's does not
        _train(runtime, record)


def _train(runtime: Runtime, record: Record) -> None:
    folder, show, session = runtime.folder, runtime.show, record.session
    if record.next_round and (switches := compatibility.host_switches(session.recipe)):
        log.warn(
            f"{switches[0]}: what the host remembers from round to round is not in its checkpoint, so a resumed run "
            "may give other numbers"
        )
    show.note(describe(session))
    federation = session.federation
    rounds, clients = federation.rounds, federation.clients_per_round
    try:
        with interrupting(), record.tracked():
            show.start(session.recipe.name, record.next_round, rounds, clients, record.pause)
            runtime.run(session, record)
            if record.next_round == federation.rounds:
                record.finish(card.text)
    except (KeyboardInterrupt, OSError) as end:
        if isinstance(end, OSError) and not terminal_closed():
            raise
        raise KeyboardInterrupt(
            f"interrupted after {record.next_round} of {federation.rounds} rounds; {runtime.call.go_on(folder.path)}"
        ) from None
    finally:
        show.stop()
    if record.next_round < federation.rounds:
        folder.tell(state=status.PAUSED)
        again = f"; round {record.next_round + 1} is incomplete; resuming repeats it" if record.cut else ""
        show.note(f"paused after {record.next_round} of {federation.rounds} rounds{again}")
        return
    folder.tell(state=status.FINISHED)
    show.note(table(record))
    show.note(f"results: {folder.path}")


def folder_of(recipe: Recipe, path: Path | None, what: str = "") -> RunFolder:
    """The folder of a new run; by default a new one under ``tracking_args.run_dir``, with ``what`` in its name."""
    if path is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = Path(recipe.tracking.run_dir).expanduser() / f"{recipe.name}{what}-{stamp}-{secrets.token_hex(2)}"
    return RunFolder(path)


def _check(
    path: Path | None,
    run_dir: Path | None,
    resume: Path | None,
    from_round: int | None,
    *,
    dry_run: bool,
    survey: bool,
) -> None:
    """Raise LabelSkewError for options that do not go together."""
    back = f"--from-round {from_round}"
    mistakes = {
        "--run-dir is for a new run and --resume for an old one; use one of them": resume and run_dir,
        "no recipe given; give a YAML file, or --resume RUN_DIR": resume is None and path is None,
        f"{back}: goes back in an earlier run; use it with --resume RUN_DIR": from_round is not None and resume is None,
        f"{back}: takes the run back for good; remove --dry-run": from_round is not None and dry_run,
        "--survey trains nothing; use it without --resume": survey and resume is not None,
        "--survey asks silos, which --dry-run does not; use one of them": survey and dry_run,
    }
    if lines := [line for line, holds in mistakes.items() if holds]:
        raise LabelSkewError(lines[0])


def _go_back(folder: RunFolder, round: int, *, quiet: bool) -> None:
    """Before anything else, and for good: whatever comes of the rest, plain ``--resume`` goes on from there."""
    folder.hold()
    try:
        if (line := folder.go_back(round)) and not quiet:
            log.note(line)
    except OSError as error:
        raise LabelSkewError(f"--from-round {round}: {folder.path} cannot be written: {error.strerror}") from None
    finally:
        folder.release()  # whoever writes the run may be another process


def _silo(
    path: Path | None, overrides: Sequence[str], run_dir: Path | None, resume: Path | None, rank: int | None
) -> tuple[Recipe, RunFolder]:
    """A silo's folder is its own, the same whenever it is started, so that it finds its state again."""
    if resume is not None or path is None:
        raise LabelSkewError("--resume is the server's; a silo goes on by itself when it is started again")
    if rank is None:
        raise LabelSkewError("--role client: --rank is missing; give the silo's number, from 1")
    recipe = recipes.load(path, overrides)
    return recipe, RunFolder(run_dir or Path(recipe.tracking.run_dir).expanduser() / f"{recipe.name}-silo{rank}")


def _resumed(
    path: Path | None, overrides: Sequence[str], resume: Path, objects: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Recipe, RunFolder]:
    folder = RunFolder(resume)
    folder.check_resumable()
    check_objects(folder, objects)
    kept = recipes.load(folder.recipe, objects=objects)
    changed = path is not None or overrides
    recipe = recipes.load(path or folder.recipe, overrides, objects=objects) if changed else kept
    differing = different(kept.resolved(), recipe.resolved())
    if differing == [ROUNDS] and any(override.partition("=")[0].strip() == ROUNDS for override in overrides):
        _check_rounds(recipe, folder, kept.train.comm_round)
    elif differing:
        what = f"the recipe differs from the run's in {', '.join(differing)}"
        use = f"the recipe of the run; only {ROUNDS} can change, with --set {ROUNDS}=N"
        raise mistake(f"--resume {resume}", what, use)
    return recipe.model_copy(update={"name": folder.path.resolve().name}), folder


def _check_rounds(recipe: Recipe, folder: RunFolder, planned: int) -> None:
    """Raise LabelSkewError unless a run of ``planned`` rounds can become one of as many as the recipe has."""
    rounds, done = recipe.train.comm_round, checkpoint.round_of(folder.checkpoint) or 0
    where = f"--set {ROUNDS}={rounds}"
    if folder.is_whole(planned) and done < planned:
        raise mistake(where, f"{folder.checkpoint}, from which the run would continue, is missing", "a new run")
    if rounds <= done:
        raise mistake(where, f"{folder.path} has {done} complete rounds", f"a number above {done}")
    if reason := compatibility.uses_rounds(recipe):
        raise mistake(where, f"earlier rounds depend on this number ({reason})", "a new run")


def check_objects(
    folder: RunFolder,
    objects: Mapping[str, Any],
    needed: Collection[str] = tuple(SECTIONS.values()),
    then: str = ".resume()",
) -> None:
    """Raise LabelSkewError unless ``objects``, by section, are those of a run.

    Args:
        folder: the run's.
        objects: the given ones; all of them must be as in the run.
        needed: sections whose object must be given, if the run had one.
        then: what follows on ``fl.open(...)`` in Python, for the message.
    """
    had = folder.environment.get("objects", {})
    names = {section: name for name, section in SECTIONS.items()}
    for section, plugin in objects.items():
        if section not in had:
            raise LabelSkewError(f"{folder.path}: {names[section]} was not an object in this run; remove it")
        if had[section] != (now := described(plugin)):
            before = clean(had[section])
            raise LabelSkewError(f"{folder.path}: {names[section]} was another one in this run: {before}, not {now}")
    missing = [section for section in names if section in had and section in needed and section not in objects]
    if missing:
        were = ", ".join(f"{names[section]} ({clean(had[section], 80)})" for section in missing)
        give = ", ".join(f"{names[section]}=..." for section in names if section in objects or section in missing)
        raise LabelSkewError(
            f"{folder.path}: missing Python objects of this run: {were}; give the same ones, in Python: "
            f"fl.open({str(folder.path)!r}, {give}){then}"
        )
