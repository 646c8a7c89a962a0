"""Rate-limited log lines about peers."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 60.0
MAX_LINES = 5  # of one kind per window: a server can cause lines without end
KINDS = 10  # kinds of lines about one peer per window; further kinds are only counted


@dataclass
class _Kind:
    """Lines of one kind in a window; ``held``: suppressed ones."""

    since: float
    print_line: Callable[[str], None]
    lines: int = 0
    held: int = 0
    last: str = ""


class Flood:
    """Limits log lines about peers. Lines that differ only in numbers are of one kind."""

    def __init__(self, print_line: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._print_line, self._now = print_line, now
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def print_event(
        self, peer: str, event: str, *, times: int = 1, most: int = 1, print_line: Callable[[str], None] | None = None
    ) -> None:
        """Log a predicate about ``times`` events of a peer, or count it after ``most`` lines per window."""
        self.tick()
        key = (peer, re.sub(r"\d+", "#", event))
        if key not in self._kinds and sum(known == peer for known, _ in self._kinds) >= KINDS:
            key = (peer, "")
        kind = self._kinds.setdefault(key, _Kind(self._now(), print_line or self._print_line))
        if key[1] and kind.lines < most:
            kind.lines += 1
            kind.print_line(f"{peer} {event}" + (f" ({times} times)" if times > 1 else ""))
        else:
            kind.held += times
            kind.last = event

    def tick(self) -> None:
        """Log suppressed lines of windows that have ended."""
        now = self._now()
        for key in [key for key, kind in self._kinds.items() if now - kind.since >= WINDOW_S]:
            kind = self._kinds.pop(key)
            if kind.held:
                self._summarise(key[0], kind)
                self._kinds[key] = _Kind(now, kind.print_line, lines=1)

    def close(self) -> None:
        """Log all suppressed lines."""
        for (peer, _), kind in self._kinds.items():
            if kind.held:
                self._summarise(peer, kind)
        self._kinds.clear()

    def _summarise(self, peer: str, kind: _Kind) -> None:
        kind.print_line(f"{peer} {kind.last} ({kind.held} more within {self._now() - kind.since:.0f} s)")
