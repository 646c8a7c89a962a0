"""Lines about peers, a few of a kind a minute: whoever sends a thousand bad messages gets one line with a number."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 60.0
KINDS = 10
"""Kinds of lines about one peer in a window; what goes beyond counts as one more, of which the end alone is told."""


@dataclass
class _Kind:
    """Lines of one kind about one peer: the window's begin, lines told in it, those held back, and the last of them."""

    since: float
    say: Callable[[str], None]
    lines: int = 0
    held: int = 0
    last: str = ""


class Flood:
    """Tells lines about peers, and counts those that are too many.

    Lines are of one kind where they differ in numbers alone. What was held back is told with the first line about
    anybody after its minute is over, and by :meth:`close`.
    """

    def __init__(self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._say, self._now = say, now
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def tell(
        self, peer: str, what: str, *, times: int = 1, most: int = 1, say: Callable[[str], None] | None = None
    ) -> None:
        """Say a line, ``peer`` and then ``what``, or count it.

        Args:
            peer: whom it is about.
            what: what happened.
            times: how often.
            most: lines of this kind in a window.
            say: told in place of whom the others are told to.
        """
        self.tick()
        key = (peer, re.sub(r"\d+", "#", what))
        if key not in self._kinds and sum(known == peer for known, _ in self._kinds) >= KINDS:
            key = (peer, "")
        kind = self._kinds.setdefault(key, _Kind(self._now(), say or self._say))
        if key[1] and kind.lines < most:
            kind.lines += 1
            kind.say(f"{peer} {what}" + (f" ({times} times)" if times > 1 else ""))
        else:
            kind.held += times
            kind.last = what

    def tick(self) -> None:
        """Tell what was held back in windows that are over."""
        now = self._now()
        for key in [key for key, kind in self._kinds.items() if now - kind.since >= WINDOW_S]:
            kind = self._kinds.pop(key)
            if kind.held:
                self._summarise(key[0], kind)
                self._kinds[key] = _Kind(now, kind.say, lines=1)

    def close(self) -> None:
        """Tell all that was held back."""
        for (peer, _), kind in self._kinds.items():
            if kind.held:
                self._summarise(peer, kind)
        self._kinds.clear()

    def _summarise(self, peer: str, kind: _Kind) -> None:
        kind.say(f"{peer} {kind.last} ({kind.held} more within {self._now() - kind.since:.0f} s)")
