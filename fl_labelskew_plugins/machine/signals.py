"""Signals: held back, passed on, and sent to a process whose parent has ended.

Ctrl-C is one line and exit code 130 from a command's first moment on, whatever is being imported just then: an
exception that a signal raises in the middle of an import may come out as another one, be swallowed by somebody's
``except``, or be printed as ignored. So nothing is raised there: the process ends at once, as it has nothing to lose.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.hook import end

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a run after a checkpoint: of a batch system, of Ctrl-C, and of a terminal that was closed."""
IMPORTING = "<frozen importlib"
"""What the names of the import system's own files begin with."""


def end_or_interrupt(signum: int, frame: FrameType | None) -> None:
    """A handler that ends this process in the middle of an import, and raises KeyboardInterrupt anywhere else."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename.startswith(IMPORTING):
            end(signum, frame)
        caller = caller.f_back
    raise KeyboardInterrupt


def interrupt(signum: int, frame: FrameType | None) -> None:
    """A handler that raises KeyboardInterrupt: for where a checkpoint is to be saved, or others are to be ended."""
    terminal_closed()
    raise KeyboardInterrupt


def terminal_closed() -> bool:
    """Whether stdout or stderr was a terminal that is closed; what is written there from now on is lost, not an error.

    The terminal may close before SIGHUP arrives: a shell passes that on to its jobs.
    """
    closed = [number for number in (1, 2) if _is_closed_terminal(number)]
    for number in closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return bool(closed)


def _is_closed_terminal(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Ctrl-C is :func:`end_or_interrupt`'s meanwhile, unless somebody else has a handler for it."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end):
        with handled(signal.SIGINT, handler=end_or_interrupt):
            yield
    else:
        yield


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """The signals :data:`ENDING` do what Ctrl-C does: a job or session that ends leaves a checkpoint.

    C and Rust code may replace KeyboardInterrupt by an error of its own. After a signal, any error is an interruption,
    except those of files and of a run that another process has taken over: they say what was not saved.
    """
    signalled = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        interrupt(signum, frame)

    with handled(*ENDING, handler=stop):
        try:
            yield
        except Exception as error:
            if not signalled or isinstance(error, (OSError, RunError)):
                raise
            raise KeyboardInterrupt from error


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold the signals :data:`ENDING` back until the block is done, so that no round ends half recorded."""
    held: list[int] = []
    with handled(*ENDING, handler=lambda signum, frame: held.append(signum)):
        yield
    if held:
        interrupt(held[0], None)


@contextlib.contextmanager
def handled(*numbers: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Another handler for these signals, except for one that is ignored."""
    old = {}
    with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
        for number in numbers:
            # such as SIGINT in a shell script's background, and SIGHUP after nohup
            if signal.getsignal(number) is not signal.SIG_IGN:
                old[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


@contextlib.contextmanager
def blocked(*numbers: int) -> Iterator[None]:
    """These signals come after the block, for this thread and for processes that are forked in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(other_end: int, number: int = signal.SIGTERM) -> None:
    """Have this process get a signal as soon as the one that it works for has ended, however that ended.

    Args:
        other_end: file descriptor of a pipe or socket that leads to that process, and from there to nobody else.
        number: the signal's; :data:`signal.SIGTERM` lets a run save its checkpoint.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(other_end, 0)  # a hang-up is told in any case
        poll.poll()
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
