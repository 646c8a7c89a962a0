"""The status of a run in a file: written when the run begins and ends, by a server of silos also every second."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.files import read_lines, read_text
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.runs.measure import main_measure, main_tests

NAME = "status.json"
EVERY_S = 1.0
WAITING, RUNNING, FINISHED, PAUSED, STOPPED = "waiting for silos", "running", "finished", "paused", "stopped"
FAILED, DIVERGED = "failed", "diverged"
NOT_BEGUN, UNREADABLE = "not begun", "unreadable"  # of planned runs
ORDER = (FINISHED, RUNNING, WAITING, PAUSED, STOPPED, FAILED, DIVERGED, UNREADABLE, NOT_BEGUN)
DAMAGED = "was changed or damaged; remove it, and a run in progress writes it again"
OVER = (FINISHED, PAUSED, STOPPED, FAILED, DIVERGED)


@dataclass
class Silo:
    """A silo in the server's status."""

    rank: int
    name: str  # of its own file, if any
    connected: bool = False
    since: str | None = None  # UTC time of its connection or end
    left_out: bool = False  # rounds do not wait for it
    turned_away: str | None = None  # reason of a rejection
    excluded: bool = False
    peer: str | None = None
    upload: dict[str, Any] | None = None  # time, round (from 1) and bytes of the last one
    bytes_in: int = 0  # since the server started, as `bytes_out`
    bytes_out: int = 0


class Silos:
    """Each silo's state from events of the audit log; thread-safe."""

    def __init__(self, names: Sequence[str]) -> None:
        self._silos = [Silo(rank, name) for rank, name in enumerate(names, 1)]
        self._lock = threading.RLock()
        self._written = -EVERY_S

    def hear(self, line: Mapping[str, Any]) -> None:
        """Process an event of the audit log."""
        event, rank = line["event"], line.get("rank") or 0
        if not 1 <= rank <= len(self._silos):
            return
        silo = self._silos[rank - 1]
        with self._lock:
            if event in ("connected", "left"):
                silo.since, silo.peer = line["time"], line.get("peer")
            elif event == "received":
                silo.bytes_in += line["bytes"]
                if line["kind"] == "UPLOAD":
                    # a hostile silo may send one without a round
                    silo.upload = {"time": line["time"], "round": line.get("round", -1) + 1, "bytes": line["bytes"]}
            elif event in ("sent", "sent in part"):
                silo.bytes_out += line["bytes"]

    def due(self) -> bool:
        """True at most once a second."""
        if time.monotonic() - self._written < EVERY_S:
            return False
        self._written = time.monotonic()
        return True

    def rows(
        self, present: Collection[int], away: Collection[int], turned: Mapping[int, str], excluded: Collection[int]
    ) -> list[dict[str, Any]]:
        """All silos, from the clients that are connected, not waited for, rejected (with reasons) and excluded."""
        with self._lock:
            for client, silo in enumerate(self._silos):
                silo.connected, silo.left_out = client in present, client in away
                silo.turned_away = clean(turned[client], 300) if client in turned else None
                silo.excluded = client in excluded
            return [asdict(silo) for silo in self._silos]


def names(files: Sequence[str], count: int) -> list[str]:
    """Names of silos' own files, without folder and suffix."""
    return [clean(Path(file).stem, 40) for file in files] or [""] * count


@contextlib.contextmanager
def ending(set_status: Callable[..., None]) -> Iterator[None]:
    """Report an exception in the block as the run's state."""
    try:
        yield
    except KeyboardInterrupt:
        set_status(state=STOPPED, reason="interrupted")
        raise
    except BaseException as error:
        reason = clean(" ".join(str(error).split()) or type(error).__name__, 500)
        set_status(state=DIVERGED if "training diverged" in reason else FAILED, reason=reason)
        raise


def read(folder: Path) -> dict[str, Any]:
    """Read a run's status; raises LabelSkewError if the folder is not a run's."""
    try:
        return _read(folder)
    except OSError as error:  # such as another user's folder
        raise LabelSkewError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None


def read_planned(folder: Path) -> dict[str, Any]:
    """A planned run's status, with ``run`` and ``state`` even if it is damaged."""
    try:
        if not any((folder / name).exists() for name in (NAME, "recipe.yaml")):
            holder = locks.held_by(folder)
            return {"run": str(folder), "state": RUNNING if holder else NOT_BEGUN, "held_by": holder or None}
        known = read(folder)
        # a run that was killed before its summary is unfinished
        unfinished = known["state"] == FINISHED and not (folder / "summary.json").exists()
        return known | {"state": STOPPED} if unfinished else known
    except LabelSkewError as error:
        reason = str(error)
    except (OSError, ValueError) as error:  # such as a number of 5000 digits
        reason = f"{folder}: cannot be read: {getattr(error, 'strerror', None) or error}"
    return {"run": str(folder), "state": UNREADABLE, "reason": reason}


def totals(states: Sequence[str]) -> str:
    """Count runs by state.

    >>> totals(["not begun", "finished", "not begun"])
    '3 runs: 1 finished, 2 not begun'
    """
    counts = [f"{states.count(state)} {state}" for state in ORDER if state in states]
    return f"{counted(len(states), 'run')}: {', '.join(counts)}"


def _read(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise mistake(folder, "no such folder", "the folder of a run or a sweep")
    facts = _facts(folder / NAME)
    if not facts and not (folder / "recipe.yaml").is_file():
        raise mistake(folder, f"contains neither {NAME} nor recipe.yaml", "the folder of a run or a sweep")
    lines = [line for line in read_lines(folder / "metrics.jsonl") if isinstance(line.get("round"), int)]
    holder, state = locks.held_by(folder), facts.get("state")
    if holder:
        state = RUNNING if state not in (WAITING, RUNNING) else state
    elif state not in OVER:
        state = STOPPED
        facts["reason"] = f"process {facts['process']} ended without a message" if "process" in facts else None
    whole = (folder / "summary.json").exists()
    if not holder and whole and facts.get("state") != STOPPED:  # stopped early, with results
        state = FINISHED
    over = bool(holder) or whole
    resume = facts.get("resume") or f"labelskew run --resume {folder}"
    if not (folder / "recipe.yaml").is_file():
        resume = "start it again; no round is lost"
    measure, tests = main_measure(lines), main_tests(lines)
    known = {
        "run": str(folder),
        "state": state,
        "held_by": holder or None,
        "reason": None if over and state != STOPPED else facts.get("reason"),
        "resume": None if over else str(resume),
        "rounds_done": len(lines),
        "rounds": facts.get("rounds"),
        "accuracy": tests[-1][measure.key] if tests else None,
        "accuracy_round": tests[-1]["round"] + 1 if tests else None,
        "measure": measure.key if tests else None,
        "waiting_for": facts.get("waiting_for") if holder else None,
    }
    silos = facts.get("silos", [])
    if not holder:
        silos = [{**silo, "connected": False} for silo in silos]
    more = {key: facts.get(key) for key in ("process", "machine", "began", "time", "address", "quorum", "pace")}
    return {**known, **more, "silos": silos}


def _facts(file: Path) -> dict[str, Any]:
    try:
        facts = json.loads(read_text(file))
        return {**facts, "silos": [asdict(Silo(**silo)) for silo in facts.get("silos", [])]}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise LabelSkewError(f"{file}: {DAMAGED}") from None
