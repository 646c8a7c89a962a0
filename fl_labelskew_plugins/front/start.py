"""Start, resume or preview a run."""

import secrets
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import fl_labelskew_registry as registry
from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.ledgers import privacy
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import FULL, IRREGULAR, writing
from fl_labelskew_plugins.machine.place import launched, mpi_rank
from fl_labelskew_plugins.machine.signals import interrupting, terminal_closed
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.model import Recipe, different
from fl_labelskew_plugins.recipe.plugins import OBJECT_SECTIONS, object_description
from fl_labelskew_plugins.runs import checkpoint, status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import OnLine, Pause, Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, made_up
from fl_labelskew_plugins.runtimes.base import Runtime
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.show import card
from fl_labelskew_plugins.show.progress import progress
from fl_labelskew_plugins.show.tables import describe, table
from fl_labelskew_plugins.surveys.survey import Survey

ROUNDS, STOP = "train_args.comm_round", "train_args.stop"  # the only settings that a resumed run may change


def start(options: RunOptions, *, held: RunFolder | None = None) -> Survey | None:
    """Run a recipe; with ``survey``, return the silos' class counts.

    ``held``: the folder, if this process has already locked it. Raise RunError if the run fails, and KeyboardInterrupt
    after a signal and a checkpoint.
    """
    options.check()
    path, overrides, resume, back = options.recipe, options.overrides, options.resume, options.from_round
    place = mpi_rank()
    worker = place is not None and place[0] > 0  # workers do not write in the run's folder
    if resume is not None and not (worker and path is not None):
        recipe, folder = resumed(path, overrides, resume)
        folder = held or folder
        if back is not None and recipe.only_sums:
            problem = "with secure aggregation silos do not repeat earlier rounds"
            raise LabelSkewError(
                f"--from-round {back}: {problem}; use --resume without --from-round, or start a new run"
            )
        if back is not None and not worker:
            _go_back(folder, back, quiet=options.quiet)
    else:
        assert path is not None  # ensured by RunOptions.check
        recipe = recipes.load(path, overrides)
        if resume is not None:
            folder = RunFolder(resume)  # may exist only on the server's node
        elif options.role == "client":  # fixed, so that a restarted silo finds its state
            default = Path(recipe.tracking.run_dir).expanduser() / f"{recipe.name}-silo{options.rank}"
            folder = RunFolder(options.run_dir or default)
        else:
            folder = held or folder_of(recipe, options.run_dir, "-survey" if options.survey else "")
            if not worker:  # the server may have begun to write when a worker starts
                folder.check_new()
    if place is not None and not recipe.comm.over_mpi:
        problem = f"{recipe.comm.backend} runs in one process, but mpirun started {place[1]}"
        raise mistake("comm_args.backend", problem, "MPI, or no mpirun")
    by_hand = place is not None and not launched()  # mpirun emulates a terminal even if the output is a file
    return _execute(recipe, options, folder, progress(options.quiet, plain=by_hand))


def train(recipe: Recipe, folder: RunFolder, options: RunOptions, on_line: OnLine | None = None) -> None:
    """Run a recipe that may contain Python objects, see :func:`start`."""
    if options.resume is None:
        folder.check_new()
    show = progress(options.quiet)
    if recipe.comm.in_process:
        show.on_line = on_line
        _execute(recipe, options, folder, show)
        return
    if recipe.objects or on_line is not None:
        lost = "objects" if recipe.objects else "callbacks"
        problem = f"{recipe.comm.backend} trains in other processes, which cannot use {lost} of this process"
        code = (
            ", or model_args.model: FILE.py:FUNCTION" if {*recipe.objects} == {"model_args"} and on_line is None else ""
        )
        raise mistake("comm_args.backend", problem, f"sp{code}")
    with tempfile.TemporaryDirectory(prefix="labelskew-") as temporary:
        path = Path(temporary) / f"{recipe.name}.yaml"  # read by the other processes
        path.write_text(recipe.dump(), encoding="utf-8")
        try:
            _execute(recipe.model_copy(update={"path": path}), options, folder, show)
        except SystemExit as end:
            problem = f"the run ended with exit code {end.code}; see its processes' messages above"
            raise RunError(f"{folder.path}: {problem}") from None


@restored()
def _execute(recipe: Recipe, options: RunOptions, folder: RunFolder, show: Progress) -> Survey | None:
    recipe = compatibility.hosted(recipe, options.host, folder.environment.get("host") if options.resume else None)
    compatibility.check_extras(recipe)
    host = options.host or ("none" if not recipe.hosted and compatibility.host_installed() else None)
    options = replace(options, host=host, pause=options.pause or Pause.inherited())
    runtime: Runtime = registry.load("runtimes", recipe.comm.backend)(recipe, options, folder, show)
    try:
        if options.dry_run:
            show.note(describe(warned(runtime.preview())))
            for name in compatibility.missing_trackers(recipe):
                log.warn(f"tracking_args.trackers: {name} is not installed, and the run continues without it")
            show.note("dry run: nothing was trained or written")
        elif options.resume and folder.is_whole(recipe.train.comm_round) and not (folder.stopped and options.overrides):
            show.note(f"{folder.path}: {_how_it_ended(folder, recipe)}")
        elif not runtime.delegated():
            if options.survey:
                with status.ending(folder.set_status):
                    survey = runtime.survey()
                folder.set_status(state=status.FINISHED)
                return survey
            _run(runtime)
        return None
    except OSError as error:
        if error.errno in IRREGULAR and error.filename is not None:
            problem = f"{clean(error.filename, 4096)} cannot be used: {error.strerror}; remove it"
        elif error.errno in FULL:
            problem = f"run directory {folder.path} cannot be written any more: {error.strerror}; free some space"
        else:
            raise
        raise RunError(f"{problem}; {options.resume_command(folder.path)}") from error
    finally:
        runtime.close()
        folder.release()


def warned(session: Session) -> Session:
    """Print a session's warnings."""
    if made_up(session.recipe):
        name = session.recipe.data.dataset
        log.warn(f"data_args.data_cache_dir: made-up data, not the real {name}; results are meaningless")
    for warning in [*session.method.warnings(session.federation), *privacy.warnings(session.recipe, session.sizes)]:
        log.warn(warning)
    return session


def _run(runtime: Runtime) -> None:
    folder, options = runtime.folder, runtime.options
    resume = options.resume is not None
    command = options.resume_command(folder.path).partition(": ")[2]
    folder.set_status(rounds=runtime.recipe.train.comm_round, resume=command)
    with status.ending(folder.set_status):
        if runtime.recipe.hosted:
            runtime.load_host()
        if resume:
            folder.hold()
        session = warned(runtime.session())
        folder.hold()
        if not resume and folder.recipe.exists():  # another process was faster
            folder.check_new()
        folder.set_status(state=status.RUNNING)
        record = Record(session, folder, runtime.show, resume=resume, pause=options.pause)
        del session  # frees the weights of round 0
        _train(runtime, record)


def _train(runtime: Runtime, record: Record) -> None:
    folder, show, session = runtime.folder, runtime.show, record.session
    if record.next_round and (switches := session.recipe.host_switches):
        problem = "FedML's state of earlier rounds is not in the checkpoint, so a resumed run may give other numbers"
        log.warn(f"{switches[0]}: {problem}")
    show.note(describe(session))
    federation = session.federation
    rounds, clients = federation.rounds, federation.clients_per_round
    try:
        with interrupting(), record.tracked(), interrupting():  # inner: trackers get KeyboardInterrupt, too
            show.start(session.recipe.name, record.next_round, rounds, clients, record.pause)
            runtime.run(session, record)
            if record.over:
                record.finish(card.text)
    except (KeyboardInterrupt, OSError) as end:
        if isinstance(end, OSError) and not terminal_closed():
            raise
        again = runtime.options.resume_command(folder.path)
        reason = f"interrupted after {record.next_round} of {rounds} rounds; {again}"
        raise KeyboardInterrupt(reason) from end.__cause__
    finally:
        show.stop()
    if not record.over:
        folder.set_status(state=status.PAUSED)
        again = f"; round {record.next_round + 1} is incomplete; resuming repeats it" if record.cut else ""
        show.note(f"paused after {record.next_round} of {rounds} rounds{again}")
        return
    if record.stopped:
        folder.set_status(state=status.STOPPED, reason=record.stopped)
        show.note(f"stopped after {record.next_round} of {rounds} rounds: {record.stopped}")
    else:
        folder.set_status(state=status.FINISHED)
    show.note(table(record))
    show.note(f"results: {folder.path}")


def folder_of(recipe: Recipe, path: Path | None, kind: str = "") -> RunFolder:
    """The folder of a new run; default: in ``tracking_args.run_dir``, with ``kind`` in its name."""
    if path is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = Path(recipe.tracking.run_dir).expanduser() / f"{recipe.name}{kind}-{stamp}-{secrets.token_hex(2)}"
    return RunFolder(path)


def _go_back(folder: RunFolder, round: int, *, quiet: bool) -> None:
    """Go back permanently: each later ``--resume`` then continues from this round."""
    folder.hold()
    try:
        with writing(f"--from-round {round}: {folder.path}"):
            if (line := folder.go_back(round)) and not quiet:
                log.note(line)
    finally:
        folder.release()  # another process may write the run


def resumed(
    path: str | Path | None, overrides: Sequence[str], resume: Path, objects: recipes.Objects = recipes.NOTHING
) -> tuple[Recipe, RunFolder]:
    """Recipe and folder of a run to resume; raises LabelSkewError if arguments do not match."""
    folder = RunFolder(resume)
    folder.check_resumable()
    check_objects(folder, objects)
    kept = recipes.load(folder.recipe, objects=objects)
    changed = path is not None or overrides
    recipe = recipes.load(path or folder.recipe, overrides, objects=objects) if changed else kept
    differing = different(kept.resolved(), recipe.resolved())
    given = {override.partition("=")[0].strip() for override in overrides}
    if differing and {*differing} <= {ROUNDS, STOP} & given:
        _check_rounds(recipe, folder, kept.train.comm_round)
    elif differing:
        problem = f"the recipe differs from the run's in {', '.join(differing)}"
        use = f"the recipe of the run; only {ROUNDS} and {STOP} can change, with --set {ROUNDS}=N"
        raise mistake(f"--resume {resume}", problem, use)
    return recipe.model_copy(update={"name": folder.path.resolve().name}), folder


def _how_it_ended(folder: RunFolder, recipe: Recipe) -> str:
    if folder.stopped:
        reason = clean(folder.stopped, 300)
        rounds = f"stopped after {folder.results['rounds']} of {recipe.train.comm_round} rounds: {reason}"
        return f"{rounds}; to continue: --set {STOP}=null"
    return f"all {recipe.train.comm_round} rounds are done already"


def _check_rounds(recipe: Recipe, folder: RunFolder, planned: int) -> None:
    rounds, done = recipe.train.comm_round, checkpoint.round_of(folder.checkpoint) or 0
    where = f"--set {ROUNDS}={rounds}"
    if folder.is_whole(planned) and done < folder.results["rounds"]:
        problem = f"{folder.checkpoint}, from which the run would continue, is missing or damaged"
        raise mistake(where, problem, "a new run")
    if rounds <= done:
        raise mistake(where, f"{folder.path} has {done} complete rounds", f"a number above {done}")
    if reason := compatibility.uses_rounds(recipe):
        raise mistake(where, f"earlier rounds depend on this number ({reason})", "a new run")


def check_objects(
    folder: RunFolder,
    objects: recipes.Objects,
    needed: Collection[str] = OBJECT_SECTIONS.values(),
    then: str = ".resume()",
) -> None:
    """Raise LabelSkewError if ``objects``, by section, are not those of a run, or a ``needed`` one is missing.

    ``then``: code after ``fl.load_run(...)`` in the message.
    """
    had = folder.environment.get("objects", {})
    names = {section: name for name, section in OBJECT_SECTIONS.items()}
    for section, plugin in objects.items():
        if section not in had:
            raise LabelSkewError(f"{folder.path}: this run had no Python object for {names[section]}; omit it")
        if had[section] != (now := object_description(plugin)):
            before = clean(had[section])
            raise LabelSkewError(f"{folder.path}: {names[section]} was {before} in this run, got {now}")
    missing = [section for section in names if section in had and section in needed and section not in objects]
    if missing:
        were = ", ".join(f"{names[section]} ({clean(had[section], 80)})" for section in missing)
        give = ", ".join(f"{names[section]}=..." for section in names if section in objects or section in missing)
        problem = f"missing Python objects of this run: {were}"
        code = f"fl.load_run({str(folder.path)!r}, {give}){then}"
        raise LabelSkewError(f"{folder.path}: {problem}; give the same objects, in Python: {code}")
