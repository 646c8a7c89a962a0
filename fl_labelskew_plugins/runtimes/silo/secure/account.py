"""A silo's record of the sums that it has helped to open.

A silo answers one request per round. Without noise, it opens sums of a round only over one set of silos, and adds the
same vector to all of them; docs/secure.md has the reasons. Numbers of right answers change little between rounds, so
their sums are over all silos of the opening.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import cast
from zipfile import BadZipFile

import numpy as np
from fl_labelskew_registry import LabelSkewError, shareable
from pydantic import BaseModel

from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.machine.files import check_regular, read_bytes, read_text, replacing, write_text
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.recipe.model import POLICY
from fl_labelskew_plugins.runtimes.silo.secure.attempt import (
    OPENING,
    Attempt,
    SecureError,
    SitsOutError,
    listed,
    where,
)

NAME, JOINED, FAILED = "secure.json", "joined_run", "training_failed"
KEPT = "secure_vector_{}.npz"  # the vector of the last sum of a kind: `opening`, `round` or `test`


class Opened(BaseModel):
    """The file's content."""

    runs: dict[str, dict[int, list[int]]]  # ranks in the opened sum, by run and round
    questions: dict[str, dict[int, str]] = {}  # digest of the request, by run and round
    samples: dict[str, int] = {}  # all silos' training samples, by run


class Account:
    """The record in a silo's folder. Methods that write it raise SecureError if they cannot.

    Raises LabelSkewError if it is damaged, or the training has failed before.
    """

    def __init__(self, folder: Path) -> None:
        self.file, self.joined, self.failed = folder / NAME, folder / JOINED, folder / FAILED
        self._read()
        if self.failed.exists():
            why = "perhaps because the server tries to find out which samples this silo has"
            what = f"this silo's training failed before, {why}"
            raise LabelSkewError(f"{what}; read this silo's log, and remove {self.failed} to take part again")

    def check(self, attempt: Attempt, included: list[int]) -> None:
        """Raise SitsOutError if this round's sum (tests: the opening) was opened over other silos."""
        opened = self._read().runs.get(attempt.run, {})
        before = opened.get(OPENING, []) if attempt.round < OPENING else opened.get(attempt.round)
        if before is not None and before != included:
            what = f"this silo has opened a sum over {listed(before)}, and is now asked for one over {listed(included)}"
            raise SitsOutError(f"{attempt.where}: {what}; the two sums would differ by single uploads", self.file)

    def open(self, attempt: Attempt, included: list[int]) -> None:
        """Record that this round's sum is opened."""
        opened = self._read()
        opened.runs.setdefault(attempt.run, {})[attempt.round] = included
        self._write(opened, f"{attempt.where}: ", "opens")

    def only(self, attempt: Attempt, vector: Vector) -> Vector:
        """The first vector of this silo for a sum, also after a restart."""
        kind = "round" if attempt.round > OPENING else "test" if attempt.round < OPENING else "opening"
        file, key = self.file.with_name(KEPT.format(kind)), f"{attempt.run} {attempt.round}"
        try:
            check_regular(file)
            with np.load(file, allow_pickle=False) as kept:
                if str(kept["key"]) == key:
                    return cast(Vector, kept["vector"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            what = "this silo's record of its vector is damaged; begin a new run"
            raise SecureError(f"{attempt.where}: {what}", file) from None
        try:
            with replacing(file, 0o600) as part, part.open("wb") as opened:
                np.savez(opened, key=np.array(key), vector=vector)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError as error:
            what = f"this silo cannot save its vector ({error.strerror}), so it sends nothing"
            raise SecureError(f"{attempt.where}: {what}", file) from None
        return vector

    def check_state(self, run: str, round: int, before: int, times: int) -> None:
        """Raise SecureError unless the server continues from this silo's last state, and has opened the last sum.

        Else a sum could differ only in the answer of a silo with another state, or the server could test samples
        without opening a sum.

        ``before``: round of the private state, or -1; ``times``: this silo's selections so far.
        """
        account = self._read()
        opened = {number for number in account.runs.get(run, {}) if number >= 0}
        asked = {number for number in account.questions.get(run, {}) if number >= 0}
        if round < (last := max(opened | asked, default=-1)):
            latest = f"round {last + 1}"
            what = f"the server asks for a round before {latest}, but has already asked this silo for {latest}"
            raise SecureError(f"round {round + 1}: {what}", self.file)
        if round > last and last not in opened and last >= 0:
            what = f"the server asks for round {round + 1} before the sum of round {last + 1} was opened"
            raise SecureError(what, self.file)
        opened.discard(round)
        if (before, times) != (last := max(opened, default=-1), len(opened) + 1):
            what = f"the server continues from round {before + 1} and has selected this silo {times} times"
            sums = counted(len(opened), "sum")
            here = f"this silo has recorded {sums} before this round, the last one in round {last + 1}"
            raise SecureError(f"round {round + 1}: {what}; {here}", self.file)

    def join(self, run: str) -> None:
        """Record the run until :meth:`leave`. Raises LabelSkewError for another run."""
        before = read_text(self.joined, "replace").strip() if self.joined.exists() else run
        if before != run:
            what = "the server begins another run, and could compare its sums with those of a run that has not ended"
            agree = f"to allow this, remove {self.joined}, or set {POLICY}.several_runs in the silo's file"
            raise shareable(LabelSkewError(f"{what}; {agree}"), what)
        try:
            write_text(self.joined, run, durable=True)
        except OSError as error:
            what = f"this silo cannot record the run that it answers ({error.strerror}), so it answers nothing"
            raise SecureError(what, self.joined) from None

    def leave(self) -> None:
        """Remove the record of :meth:`join`."""
        self.joined.unlink(missing_ok=True)

    def fail(self) -> None:
        """Take no part until a person removes a file."""
        with contextlib.suppress(OSError):  # if the disk is full, the next request cannot be recorded either
            write_text(self.failed, "", durable=True)

    def question_of(self, run: str, round: int) -> str:
        """Digest of a round's request, if any."""
        return self._read().questions.get(run, {}).get(round, "")

    def asked_rounds(self, run: str) -> int:
        """Number of rounds with a request, without openings and tests."""
        return sum(round >= 0 for round in self._read().questions.get(run, {}))

    def ask(self, run: str, round: int, question: str) -> None:
        """Record a round's request before the answer. Raises SecureError if it has changed."""
        opened = self._read()
        before = opened.questions.setdefault(run, {}).get(round)
        if before == question:
            return
        if before is not None:
            what = "the server repeats this round of this run with another question, and could compare the two answers"
            raise SecureError(f"{where(round)}: {what}; begin a new run", self.file)
        opened.questions[run][round] = question
        self._write(opened, f"{where(round)}: ", "answers")

    def count(self, run: str, samples: int) -> None:
        """Record the number of all silos' training samples. Raises LabelSkewError if it has changed.

        A lower one would reveal this silo's number.
        """
        opened = self._read()
        before = opened.samples.setdefault(run, samples)
        if before != samples:
            what = f"the server reports {samples} training samples of all silos, but it reported {before} before"
            raise shareable(LabelSkewError(what))
        self._write(opened, "", "answers")

    def _write(self, opened: Opened, begins: str, does: str) -> None:
        try:
            write_text(self.file, json.dumps(opened.model_dump()), durable=True)
        except OSError as error:
            what = f"this silo cannot write its record of sums ({error.strerror}), so it {does} nothing"
            raise SecureError(f"{begins}{what}", self.file) from None

    def _read(self) -> Opened:
        try:
            return Opened.model_validate_json(read_bytes(self.file))
        except FileNotFoundError:
            return Opened(runs={})
        except (OSError, ValueError):
            use = "restore the original file, or remove it to begin a new one"
            raise LabelSkewError(f"{self.file}: is not a valid record of a silo's secure sums; {use}") from None
