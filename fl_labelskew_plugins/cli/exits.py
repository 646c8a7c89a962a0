"""Exit codes of all commands: 0 done, 2 a user's mistake, 1 a failure, 130 interrupted."""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.machine.signals import ending

P = ParamSpec("P")

CONTEXT = {"help_option_names": ["-h", "--help"]}


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """Print the errors of a command without a traceback, except bugs."""

    @functools.wraps(verb)
    def ends(*args: P.args, **kwargs: P.kwargs) -> None:
        # for torch and child processes: waiting threads free their core (see engine/threads.py)
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
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
            # The reader has closed the pipe, as in `| head`. Discard what Python flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            log.end()

    return ends


def refuse_mpirun(verb: str) -> None:
    """Raise LabelSkewError if ``mpirun`` started this command."""
    if mpi_rank() is not None:
        raise mistake(verb, "starts its own processes", "it without mpirun")
