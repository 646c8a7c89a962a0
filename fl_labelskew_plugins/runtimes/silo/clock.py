"""Time as a server's deadlines see it: seconds in which it listened, however long it was busy, frozen or asleep."""

from __future__ import annotations

import time
from collections.abc import Callable

from fl_labelskew_plugins.runtimes.transport import Transport

STEP_S = 1.0
"""The longest that one wait lasts: windows that others have opened meanwhile are looked at in between."""
SETTLE_S = 0.2
"""How long is listened at least before time is up: what has reached this machine may still be on its way here."""
STALL_S = 0.5
"""A wait that took so much longer than asked for was none: the process was stopped, or its machine slept."""
OVERTIME_S = 10.0
"""How long messages that waited already are taken after time is up; so long, as a peer may send without end."""


class ListeningClock:
    """Runs while it listens alone.

    Args:
        transport: where messages arrive.
        before: called before each wait.

    ``now`` is the number of seconds in which a message could have been heard.
    """

    def __init__(self, transport: Transport, before: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._transport, self._before = transport, before

    def listen(self, until: float) -> bool:
        """Take what comes next, or wait a step; False once ``until`` is over and nothing is left to take.

        Args:
            until: as ``now`` counts.
        """
        wait = min(STEP_S, max(until - self.now, SETTLE_S))
        self._before()
        begun = time.monotonic()
        arrived = self._transport.receive(wait)
        took = time.monotonic() - begun
        if took > wait + STALL_S:
            return True
        self.now += took
        return self.now < until + (OVERTIME_S if arrived else 0.0)
