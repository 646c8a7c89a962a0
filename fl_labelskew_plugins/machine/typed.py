"""The command that resumes an interrupted run or study."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

RESUME = "FL_LABELSKEW_RESUME"  # environment variable with the parent's resume_line


def resume_line(words: Iterable[str]) -> str:
    """``to resume:`` and the command; in a child process, its parent's."""
    return os.environ.get(RESUME) or f"to resume: {shlex.join([program(), *words])}"


def program() -> str:
    """``fedml`` or ``labelskew``, with its folder if the shell needs it."""
    typed = Path(sys.argv[0])
    if typed.name not in ("fedml", "labelskew"):
        return "labelskew"  # called from Python
    return typed.name if shutil.which(typed.name) == str(typed) or len(typed.parts) == 1 else str(typed)
