"""Log lines: plain, or with timestamp and level, or as JSON."""

import contextlib
import json
import os
import re
import sys

from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.machine.text import clean, utc

FORM = "FL_LABELSKEW_LOG"  # environment variable with the format
PLAIN, TEXT, JSON = "plain", "text", "json"
INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"
STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z ]{7} ")

form = PLAIN


def begin() -> None:
    """Use the format in :data:`FORM`, by default the output's; raises LabelSkewError for an unknown one."""
    global form  # noqa: PLW0603  # one per process
    wanted = os.environ.get(FORM) or (PLAIN if sys.stdout.isatty() else TEXT)
    if wanted not in (PLAIN, TEXT, JSON):
        raise LabelSkewError(f"{FORM}={clean(wanted)}: allowed: {PLAIN}, {TEXT}, {JSON}")
    form = wanted


def end() -> None:
    """Return to plain lines."""
    global form  # noqa: PLW0603  # one per process
    form = PLAIN


def at_terminal() -> bool:
    """Whether stdout is a terminal and lines are plain."""
    return form == PLAIN and sys.stdout.isatty()


def note(text: str, level: str = INFO) -> None:
    """Print one or more lines."""
    print(formed(text, level), flush=True)


def word(text: str) -> None:
    """Print a line only on a terminal."""
    if at_terminal() and mpi_rank() is None:
        print(text, flush=True)


def warn(text: str) -> None:
    """Print a warning."""
    print(formed(f"warning: {text}" if form == PLAIN else text, WARNING), file=sys.stderr, flush=True)


def error(text: str, level: str = ERROR) -> None:
    """Print an error message, without its prefix ``error: `` if lines have a level."""
    lines = text if form == PLAIN else "\n".join(line.removeprefix("error: ") for line in text.splitlines())
    print(formed(lines, level), file=sys.stderr, flush=True)


def formed(text: str, level: str) -> str:
    """Lines in the format of this process."""
    if form == PLAIN:
        return text
    time, lines = utc(), text.splitlines()
    if form == JSON:
        return "\n".join(json.dumps({"time": time, "level": level, "message": line}) for line in lines)
    return "\n".join(f"{time} {level:<7} {line}" for line in lines)


def named(part: str, line: str, level: str) -> str:
    """Another process's line with its name; ``level``: for lines without one."""
    if form == JSON:
        with contextlib.suppress(ValueError, TypeError):
            return json.dumps({**json.loads(line), "part": part})
    elif form == TEXT and (stamp := STAMP.match(line)):
        return f"{stamp[0]}{part} | {line[stamp.end() :]}"
    return formed(f"{part} | {line}", level)
