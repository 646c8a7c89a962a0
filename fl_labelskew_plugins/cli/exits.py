"""How every verb ends: 0 done, 2 a user's mistake, 1 a failure, 130 interrupted."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.machine.signals import ending

P = ParamSpec("P")

CONTEXT = {"help_option_names": ["-h", "--help"]}


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """A verb whose mistakes are lines, not tracebacks; a bug keeps its traceback."""

    @functools.wraps(verb)
    def ends(*args: P.args, **kwargs: P.kwargs) -> None:
        # read when torch is first imported, also by the processes of a run: threads that wait then leave the core to
        # others, which on busy cores halves the CPU time of two threads (see engine/threads.py) and changes no byte
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
            # The reader has seen enough, as in `| head`. Python flushes once more on its way out: into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            log.end()

    return ends


def refuse_mpirun(verb: str) -> None:
    """Raise LabelSkewError where a verb that starts its processes itself was started by ``mpirun``."""
    if mpi_rank() is not None:
        raise mistake(verb, "starts its processes itself", "it without mpirun")


@contextmanager
def writing(place: Path | str) -> Iterator[None]:
    """A file or folder that cannot be written is a user's mistake: a disk is full, a folder is not there."""
    try:
        yield
    except OSError as error:
        raise LabelSkewError(f"{place}: cannot be written: {error.strerror}") from None
