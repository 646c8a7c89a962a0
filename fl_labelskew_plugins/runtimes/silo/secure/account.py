"""A silo's account of the sums that it has helped to open: of one round, one set of silos, also after a restart.

Of two sums over sets that differ in one silo, the difference is what that one has sent; of two sums over one set, of
which one silo was asked something else, that of its two answers. So of one round it takes one question, too. Without
noise it adds one vector to a round, even if its data or settings have changed since. Numbers of right answers change
little from round to round, so all sums of them are over the silos of the opening.
"""

from __future__ import annotations

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
from fl_labelskew_plugins.recipe.model import POLICY
from fl_labelskew_plugins.runtimes.silo.secure.attempt import (
    OPENING,
    Attempt,
    SecureError,
    SitsOutError,
    listed,
    where,
)

NAME, JOINED = "secure.json", "joined_run"
KEPT = "secure_vector_{}.npz"
"""The vector of the last sum of its kind: ``opening``, ``round`` or ``test``."""


class Opened(BaseModel):
    """The file: by run and round, the ranks in the sum that was opened, and the digest of the question to this silo; by
    run, the number of all silos' training samples.
    """

    runs: dict[str, dict[int, list[int]]]
    questions: dict[str, dict[int, str]] = {}
    samples: dict[str, int] = {}


class Account:
    """The account in a silo's folder.

    Raises:
        LabelSkewError: it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.file, self.joined = folder / NAME, folder / JOINED
        self._read()

    def check(self, attempt: Attempt, there: list[int], *, final: bool = True) -> None:
        """Raise SitsOutError if this round's sum, or of a test the run's opening, was opened with other silos.

        ``final``: whether ``there`` is who is in the sum; else some of them may still be lost.
        """
        opened = self._read().runs.get(attempt.run, {})
        before = opened.get(OPENING, []) if attempt.round < OPENING else opened.get(attempt.round)
        if before is not None and (before != there if final else not {*before} <= {*there}):
            what = f"this silo has opened its sum of {listed(before)}, and is now asked for that of {listed(there)}"
            raise SitsOutError(f"{attempt.where}: {what}; the two would differ by single uploads ({self.file})")

    def open(self, attempt: Attempt, there: list[int]) -> None:
        """Write down that this round's sum is opened; on disk when this returns.

        Raises:
            SecureError: it was opened with others, or nothing can be written.
        """
        self.check(attempt, there)
        opened = self._read()
        opened.runs.setdefault(attempt.run, {})[attempt.round] = there
        self._write(opened, f"{attempt.where}: ", "opens")

    def only(self, attempt: Attempt, vector: Vector) -> Vector:
        """The vector that this silo adds to a round's sum: the first one, also after a restart; on disk by then.

        Raises:
            SecureError: the file is damaged, or nothing can be written.
        """
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
            raise SecureError(f"{attempt.where}: {file} is damaged; begin a new run") from None
        try:
            with replacing(file, 0o600) as part, part.open("wb") as opened:
                np.savez(opened, key=np.array(key), vector=vector)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError as error:
            what = f"{file} cannot be written ({error.strerror}), and without it this silo sends nothing"
            raise SecureError(f"{attempt.where}: {what}") from None
        return vector

    def check_state(self, run: str, round: int, before: int, times: int) -> None:
        """Raise SecureError unless a server names this silo's last state, and goes from round to round.

        Without noise, all silos open each sum. If a server could choose the state of one silo, the sum of one more
        round would differ by this silo's answer only, or contain only its change.

        Args:
            run: the run's name.
            round: that the server asks for.
            before: the round whose private state it is to continue from, or -1.
            times: how often it was selected, this round included.
        """
        account = self._read()
        opened = {number for number in account.runs.get(run, {}) if number >= 0}
        asked = {number for number in account.questions.get(run, {}) if number >= 0}
        if round < (last := max(opened | asked, default=-1)):
            what = f"the server asks for a round before round {last + 1}, which this silo was asked for already"
            raise SecureError(f"round {round + 1}: {what} ({self.file})")
        opened.discard(round)
        if (before, times) != (last := max(opened, default=-1), len(opened) + 1):
            what = f"the server continues from round {before + 1} and has selected this silo {times} times"
            here = f"here {len(opened)} sums before this round are noted, the last one of round {last + 1}"
            raise SecureError(f"round {round + 1}: {what}; {here} ({self.file})")

    def join(self, run: str) -> None:
        """Write down the run that this silo answers, until :meth:`leave`.

        Raises:
            LabelSkewError: it answers another one; the message says how its operator agrees.
        """
        before = read_text(self.joined, "replace").strip() if self.joined.exists() else run
        if before != run:
            what = "the server begins another run, and could compare its sums with those of a run that has not ended"
            agree = f"to agree, remove {self.joined}, or set {POLICY}.several_runs in the silo's file"
            raise shareable(LabelSkewError(f"{what}; {agree}"), what)
        try:
            write_text(self.joined, run, durable=True)
        except OSError as error:
            raise SecureError(
                f"{self.joined} cannot be written ({error.strerror}); this silo answers nothing"
            ) from None

    def leave(self) -> None:
        """The run is over."""
        self.joined.unlink(missing_ok=True)

    def question_of(self, run: str, round: int) -> str:
        """What this silo was asked in a round; empty if nothing."""
        return self._read().questions.get(run, {}).get(round, "")

    def ask(self, run: str, round: int, question: str) -> None:
        """Write down what this silo is asked in a round, before it is worked out.

        Raises:
            SecureError: it was asked something else in this round, or nothing can be written.
        """
        opened = self._read()
        before = opened.questions.setdefault(run, {}).get(round)
        if before == question:
            return
        if before is not None:
            what = "the server asks something else than before in this round of this run, and could compare two answers"
            raise SecureError(f"{where(round)}: {what} ({self.file}); begin a new run")
        opened.questions[run][round] = question
        self._write(opened, f"{where(round)}: ", "answers")

    def count(self, run: str, samples: int) -> None:
        """Write down the number of all silos' training samples, as the server says; once in a run.

        Raises:
            LabelSkewError: it was another one before; a lower one would show how many this silo has.
        """
        opened = self._read()
        before = opened.samples.setdefault(run, samples)
        if before != samples:
            what = f"the server says that all silos have {samples} training samples, and before {before}"
            raise shareable(LabelSkewError(what))
        self._write(opened, "", "answers")

    def _write(self, opened: Opened, begins: str, does: str) -> None:
        try:
            write_text(self.file, json.dumps(opened.model_dump()), durable=True)
        except OSError as error:
            what = f"{self.file} cannot be written ({error.strerror})"
            raise SecureError(f"{begins}{what}, and without that account this silo {does} nothing") from None

    def _read(self) -> Opened:
        try:
            return Opened.model_validate_json(read_bytes(self.file))
        except FileNotFoundError:
            return Opened(runs={})
        except (OSError, ValueError):
            raise LabelSkewError(
                f"{self.file}: is no account of a silo's secure sums; put back what was there, or remove it to begin "
                "anew"
            ) from None
