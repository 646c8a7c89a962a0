"""Signals: held back, passed on, and sent to a process whose parent has ended.

Ctrl-C is one line and exit code 130 from a command's first moment on, whatever is being imported just then: an
exception that a signal raises in the middle of an import may come out as another one, be swallowed by somebody's
``except``, or be printed as ignored. So nothing is raised there: the process ends at once, as it has nothing to lose.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from fl_labelskew_plugins.hook import end

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
    raise KeyboardInterrupt


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
    """A termination signal does what Ctrl-C does: a batch system that ends the job then leaves a checkpoint."""
    with handled(signal.SIGTERM, signal.SIGINT, handler=interrupt):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interruption or termination signal back until the block is done, so that no round ends half recorded."""
    held: list[int] = []
    with handled(signal.SIGTERM, signal.SIGINT, handler=lambda signum, frame: held.append(signum)):
        yield
    if held:
        raise KeyboardInterrupt


@contextlib.contextmanager
def handled(*numbers: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Another handler for these signals, except for one that is ignored."""
    old = {}
    with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as SIGINT in a shell script's background
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
