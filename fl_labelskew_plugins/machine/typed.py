"""The command that resumes an interrupted run or study."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

GO_ON = "FL_LABELSKEW_GO_ON"  # environment variable with the text of to_go_on, for child processes


def to_go_on(words: Iterable[str]) -> str:
    """``to resume:`` and the command with these arguments; in a child process, its parent's."""
    return os.environ.get(GO_ON) or f"to resume: {shlex.join([program(), *words])}"


def program() -> str:
    """``fedml`` or ``labelskew``, with its folder if the shell needs it."""
    typed = Path(sys.argv[0])
    if typed.name not in ("fedml", "labelskew"):
        return "labelskew"  # called from Python
    return typed.name if shutil.which(typed.name) == str(typed) or len(typed.parts) == 1 else str(typed)
