"""Lines of a run: as they are for a person at a terminal; with time and level, or as JSON, for a file or a service.

``labelskew run`` calls :func:`begin`; until then, and in every other command, lines are plain.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.machine.text import clean, utc

FORM = "FL_LABELSKEW_LOG"
"""Environment variable with the form of a run's lines; the processes that the run starts are told by it, too."""
PLAIN, TEXT, JSON = "plain", "text", "json"
INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"
STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z ]{7} ")

form = PLAIN
"""Of the lines of this process."""


def begin() -> None:
    """Take the form that :data:`FORM` says; without it, plain on a terminal and with time and level elsewhere.

    Raises:
        LabelSkewError: it says none.
    """
    global form  # noqa: PLW0603  # a process has one
    wanted = os.environ.get(FORM) or (PLAIN if sys.stdout.isatty() else TEXT)
    if wanted not in (PLAIN, TEXT, JSON):
        raise LabelSkewError(f"{FORM}={clean(wanted)}: allowed: {PLAIN}, {TEXT}, {JSON}")
    form = wanted


def end() -> None:
    """Lines are plain again."""
    global form  # noqa: PLW0603  # a process has one
    form = PLAIN


def at_terminal() -> bool:
    """Whether stdout is a terminal, and lines are for a person there."""
    return form == PLAIN and sys.stdout.isatty()


def note(text: str, level: str = INFO) -> None:
    """Say one or more lines."""
    print(formed(text, level), flush=True)


def word(text: str) -> None:
    """Say what takes a while to a person who waits at a terminal, and to nobody else."""
    if at_terminal() and mpi_rank() is None:
        print(text, flush=True)


def warn(text: str) -> None:
    """Say a warning."""
    print(formed(f"warning: {text}" if form == PLAIN else text, WARNING), file=sys.stderr, flush=True)


def error(text: str, level: str = ERROR) -> None:
    """Say why a command ends, in lines that begin with ``error: `` where that is to be said."""
    lines = text if form == PLAIN else "\n".join(line.removeprefix("error: ") for line in text.splitlines())
    print(formed(lines, level), file=sys.stderr, flush=True)


def formed(text: str, level: str) -> str:
    """Lines in the form of this process."""
    if form == PLAIN:
        return text
    time, lines = utc(), text.splitlines()
    if form == JSON:
        return "\n".join(json.dumps({"time": time, "level": level, "message": line}) for line in lines)
    return "\n".join(f"{time} {level:<7} {line}" for line in lines)


def named(part: str, line: str, level: str) -> str:
    """A line of another process, with that process's name; ``level``: of a line that has none of its own."""
    if form == JSON:
        with contextlib.suppress(ValueError, TypeError):
            return json.dumps({**json.loads(line), "part": part})
    elif form == TEXT and (stamp := STAMP.match(line)):
        return f"{stamp[0]}{part} | {line[stamp.end() :]}"
    return formed(f"{part} | {line}", level)
