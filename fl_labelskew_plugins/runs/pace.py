"""The batches of a run in one process: how long they take, and whether there is time for another one."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from fl_labelskew_plugins.engine.local import TEST_BATCH
from fl_labelskew_plugins.runs.environment import peak_memory
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.tensors import num_bytes

TESTED = 3
"""Test batches that are timed."""
ENOUGH = 3
"""Training batches that are timed at least, unless the whole time is up before."""


class OutOfTimeError(BaseException):
    """The time of a run is up within a round, which is discarded and repeated when the run resumes.

    A BaseException, because a plugin's hook may ask for a batch: no code between the two may take it for an error.
    """


class Pace:
    """Times the batches of a run that is to pause, and ends the round when the time is up."""

    def __init__(self, record: Record) -> None:
        self.record, self.pause = record, record.pause
        self._begun = self._last = math.nan
        self._seconds: list[float] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Watch the batches in the block; a round that its time cuts off ends the block without an error."""
        if self.pause is None:
            yield
            return
        between = self.record.session.trainer.between
        between.append(self._next)
        try:
            yield
        except OutOfTimeError:
            between.clear()
            self.record.cut = True
            self._tell(tests=TESTED)
        except KeyboardInterrupt:
            self._tell(tests=0)
            raise
        finally:
            between.clear()

    def _next(self, training: bool) -> None:
        """Called before each batch; ``training``: whether it is trained on."""
        assert self.pause is not None
        now = time.monotonic()
        if math.isnan(self._begun):
            self._begun = now
        if not math.isnan(self._last) and not self.record.next_round:
            self._seconds.append(now - self._last)
        self._last = now if training else math.nan
        until = self.pause.at
        if len(self._seconds) >= ENOUGH or self.record.next_round:
            until = min(until, self._begun + self.pause.within)
        if now >= until:
            raise OutOfTimeError

    def _tell(self, *, tests: int) -> None:
        """Write an estimate of a round's time to status.json, from the batches timed so far.

        ``tests``: test batches to time; with 0 a test counts as nothing. The first batch, which warms up, counts only
        if it is the only one.
        """
        if self.record.next_round or not self._seconds:
            return
        session = self.record.session
        trainer, federation, train = session.trainer, session.federation, session.recipe.train
        test = 0.0
        size, samples = TEST_BATCH.get(trainer.device.type, 1024), len(trainer.test.y)
        if tests and samples:
            index, begun = torch.arange(min(tests * size, samples), device=trainer.device), time.monotonic()
            trainer.predict(index)
            if self.record.personalised:
                lengths = [len(trainer.test_indices[client]) for client in trainer.test_indices]
                samples += round(statistics.fmean(lengths) * federation.clients_per_round)
            test = (time.monotonic() - begun) * samples / len(index)
        batches = statistics.fmean(-(-size // train.batch_size) for size in session.sizes)
        batch = statistics.fmean(self._seconds[1:] or self._seconds)
        pace: dict[str, Any] = {
            "batches": len(self._seconds),
            "round": batch * batches * train.epochs * federation.clients_per_round,
            "test": test,
            "seconds": time.monotonic() - self._begun,
            "model": num_bytes(self.record.weights.values()),
        }
        self.record.folder.tell(pace=pace | peak_memory(trainer.device))
