"""What to type to go on with what broke off: the command as it was typed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

GO_ON = "FL_LABELSKEW_GO_ON"
"""Environment variable with :func:`to_go_on` of the command that a person typed, for the processes that it starts."""


def to_go_on(words: Iterable[str]) -> str:
    """``to go on:`` and a line for the shell: the program that was typed, and these words.

    A process that one of our commands has started says what that command said.
    """
    return os.environ.get(GO_ON) or f"to go on: {shlex.join([program(), *words])}"


def program() -> str:
    """``fedml`` or ``labelskew``, whichever was typed, with its folder where the shell would not find it without."""
    typed = Path(sys.argv[0])
    if typed.name not in ("fedml", "labelskew"):
        return "labelskew"  # from Python, which has no hook to switch off
    return typed.name if shutil.which(typed.name) == str(typed) or len(typed.parts) == 1 else str(typed)
