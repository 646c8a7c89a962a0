"""How every verb ends: 0 done, 2 a user's mistake, 1 a failure, 130 interrupted."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import click
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.signals import ending
from fl_labelskew_plugins.runtimes.silo import keys

P = ParamSpec("P")

CONTEXT = {"help_option_names": ["-h", "--help"]}
PASSPHRASE = click.option(
    keys.OPTION,
    "descriptor",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Of encrypted keys: read it from this file descriptor.  [default: {keys.VARIABLE}, or the terminal]",
)
"""Of every verb that reads or makes a key."""


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """A verb whose mistakes are lines, not tracebacks; a bug keeps its traceback."""

    @functools.wraps(verb)
    def ends(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with ending():
                verb(*args, **kwargs)
                sys.stdout.flush()
        except LabelSkewError as error:
            log.error(error.shown())
            sys.exit(error.exit_code)
        except KeyboardInterrupt as interruption:
            log.error(str(interruption) or "interrupted", log.WARNING)
            sys.exit(130)
        except BrokenPipeError:
            # The reader has seen enough, as in `| head`. Python flushes once more on its way out: into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            log.end()

    return ends
