"""Handle signals so that Ctrl-C always prints one line and gives exit code 130."""

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

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # signals of a batch system, Ctrl-C, and a closed terminal


def end_or_interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import, which may swallow exceptions, end this process at once."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            end(signum, frame)
        caller = caller.f_back
    raise KeyboardInterrupt


def interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, for a process with data to save or processes to end."""
    terminal_closed()
    raise KeyboardInterrupt


def terminal_closed() -> bool:
    """Whether stdout or stderr is a closed terminal; discard further output to it."""
    closed = False
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
                closed = True
    return closed


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Handle Ctrl-C with :func:`end_or_interrupt`, unless another handler is set."""
    unset = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end)
    with handled(*([signal.SIGINT] if unset else []), handler=end_or_interrupt):
        yield


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Handle the signals :data:`ENDING` like Ctrl-C.

    C and Rust code may replace KeyboardInterrupt, so after a signal any error is an interruption, except OSError and
    RunError, which report unsaved data.
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
    """Defer the signals :data:`ENDING` to the end of the block."""
    held: list[int] = []
    with handled(*ENDING, handler=lambda signum, frame: held.append(signum)):
        yield
    if held:
        interrupt(held[0], None)


@contextlib.contextmanager
def handled(*numbers: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Set another handler for these signals, except for ignored ones."""
    old = {}
    with contextlib.suppress(ValueError):  # only the main thread gets signals
        for number in numbers:
            # ignored: SIGINT in a script's background job, SIGHUP after nohup
            if signal.getsignal(number) is not signal.SIG_IGN:
                old[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


@contextlib.contextmanager
def blocked(*numbers: int) -> Iterator[None]:
    """Block these signals in this thread and in processes forked in the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(other_end: int, number: int = signal.SIGTERM) -> None:
    """Send this process a signal when its parent ends; ``other_end``: of a pipe or socket to the parent."""

    def watch() -> None:
        poll = select.poll()
        poll.register(other_end, 0)  # hang-ups are always reported
        poll.poll()
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
