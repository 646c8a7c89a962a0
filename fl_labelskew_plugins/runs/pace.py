"""Time the batches of a run in one process."""

import contextlib
import math
import statistics
import time
from collections.abc import Iterator

from fl_labelskew_plugins.runs.environment import peak_memory
from fl_labelskew_plugins.runs.record import Record

MIN_BATCHES = 3  # minimum number of timed batches, unless `Pause.at` is earlier


class OutOfTimeError(BaseException):
    """The time of a run ended within a round. Not an Exception, which plugins may catch."""


class Pace:
    """Times batches, and discards the round in which the time ends."""

    def __init__(self, record: Record) -> None:
        self.record, self.pause = record, record.pause
        self._begun = self._last = math.nan
        self._seconds: list[float] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Time the batches in the block, and leave it without an error if the time ends."""
        calls = self.record.session.trainer.before_batch
        if self.pause is not None:
            calls.append(self._next)
        try:
            yield
        except OutOfTimeError:
            self.record.cut = True
            self._write_estimate()
        finally:
            calls.clear()

    def _next(self, training: bool) -> None:
        assert self.pause is not None
        now = time.monotonic()
        if math.isnan(self._begun):
            self._begun = now
        if not math.isnan(self._last) and not self.record.next_round:
            self._seconds.append(now - self._last)
        self._last = now if training else math.nan
        until = self.pause.at
        if len(self._seconds) >= MIN_BATCHES or self.record.next_round:
            until = min(until, self._begun + self.pause.within)
        if now >= until:
            raise OutOfTimeError

    def _write_estimate(self) -> None:
        if self.record.next_round or not self._seconds:
            return
        session = self.record.session
        train = session.recipe.train
        batches = statistics.fmean(-(-size // train.batch_size) for size in session.sizes) * train.epochs
        batch = statistics.fmean(self._seconds[1:] or self._seconds)  # the first one is a warm-up
        pace = {
            "batches": len(self._seconds),
            "round": batch * batches * session.federation.clients_per_round,
            "seconds": time.monotonic() - self._begun,
        }
        self.record.folder.set_status(pace=pace | peak_memory(session.trainer.device))
