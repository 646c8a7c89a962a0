"""A process of ``mpirun``: its start, its connection to the launcher, and its end."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.place import LAUNCHER, RANKS, launched, mpi_rank
from fl_labelskew_plugins.machine.signals import end_with_parent

GRACE = 6.0  # seconds in which the server may report the mistake of a failed worker


def enter(command: list[str]) -> NoReturn:
    """Connect the output to the launcher, if it is on this machine, and execute the command."""
    if LAUNCHER not in os.environ:
        os.execvp(command[0], command)
    rank = next(os.environ[name] for name, _ in RANKS if name in os.environ)
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[LAUNCHER])
        connection.sendall(f"{rank} {os.getpid()}".encode())
        answer, stdout, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError:
        answer = b""
    if not answer:
        sys.exit(1)  # the launching process is gone
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stdout[0] if stdout else connection.fileno(), 1)
    os.dup2(connection.fileno(), 2)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal may stop background processes
    os.execvp(command[0], command)


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Context for all of a rank's work; does nothing outside ``mpirun``.

    If a rank fails, ``mpirun`` ends the others; successful ranks wait for each other.
    """
    if (place := mpi_rank()) is None:
        yield
        return
    prepare()
    rank, _ = place
    if launched():
        end_with_parent(2)
    try:
        with contextlib.ExitStack() as silence:
            if rank:
                nowhere = silence.enter_context(open(os.devnull, "w"))
                silence.enter_context(contextlib.redirect_stdout(nowhere))
                if not launched():  # else the launching process selects the output
                    silence.enter_context(contextlib.redirect_stderr(nowhere))
            yield
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(130) from None
        raise
    except LabelSkewError:
        if rank:
            with contextlib.suppress(ValueError):  # outside the main thread
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(GRACE)  # mpirun usually ends this process here
        raise
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()


def prepare() -> None:
    """Set mpi4py's options, before its ``MPI`` is imported."""
    with contextlib.suppress(ImportError):
        import mpi4py

        mpi4py.rc.finalize = False  # at exit it would wait for all ranks, so that a failing rank would hang
        mpi4py.rc.thread_level = "funneled"


def world() -> Any:
    """MPI's ``COMM_WORLD``. Raises LabelSkewError if mpi4py is missing, or was built for another MPI."""
    prepare()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        install = extras.install("mpi")
        raise LabelSkewError(f"comm_args.backend: MPI needs mpi4py: {reason}; to install it: {install}") from None
    place = mpi_rank()
    size = MPI.COMM_WORLD.Get_size()
    if place is not None and size != place[1]:
        what = f"mpi4py sees {size} of the {place[1]} processes, so it was built for another MPI than that of mpirun"
        use = "pip install --force-reinstall --no-binary mpi4py mpi4py"
        raise mistake("comm_args.backend", what, use)
    return MPI.COMM_WORLD


if __name__ == "__main__":
    enter(sys.argv[1:])
