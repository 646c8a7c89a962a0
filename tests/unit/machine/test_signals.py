import contextlib
import os
import signal
import threading

import pytest
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.machine import signals


@pytest.mark.parametrize("number", signals.ENDING)
def test_a_signal_ends_a_block_at_once_or_when_it_is_done(number):
    done = []

    @signals.interrupting()
    def broken():
        signal.raise_signal(number)
        done.append("broken")

    @signals.uninterrupted()
    def recorded():
        signal.raise_signal(number)
        signal.raise_signal(number)
        done.append("recorded")

    before = signal.getsignal(number)
    for work in (broken, recorded):
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(number) is before
    assert done == ["recorded"]


def swallowed(error):
    """An extension that replaces the interruption by its own error."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    raise error


def test_interrupting_treats_any_error_after_a_signal_as_interruption():
    with pytest.raises(ValueError, match="no signal"), signals.interrupting():
        raise ValueError("no signal")
    with pytest.raises(KeyboardInterrupt) as interruption, signals.interrupting():
        swallowed(ValueError("no shape"))
    assert str(interruption.value.__cause__) == "no shape"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RunError("taken over")])
def test_interrupting_keeps_errors_about_unsaved_data(error):
    with pytest.raises(type(error)), signals.interrupting():
        swallowed(error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # in a script's background, and after nohup
def test_an_ignored_signal_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with signals.interrupting(), signals.uninterrupted():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_the_signal_arrives_when_the_other_end_is_closed():
    ours, theirs = os.pipe()
    came = threading.Event()
    with signals.handled(signal.SIGUSR1, handler=lambda signum, frame: came.set()):
        signals.end_with_parent(ours, signal.SIGUSR1)
        os.write(theirs, b"what is said is not the end")
        assert not came.wait(0.2)
        os.close(theirs)
        assert came.wait(10)
    os.close(ours)
