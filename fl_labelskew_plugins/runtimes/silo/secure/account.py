"""A silo's account of the sums that it has helped to open: of one round, one set of silos, also after a restart.

Of two sums over sets that differ in one silo, the difference is what that one has sent; of two sums over one set, of
which one silo was asked something else, that of its two answers. So of one round it takes one question, too. Numbers of
right answers change little from round to round, so all sums of them are over the silos of the opening.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from fl_labelskew_registry import LabelSkewError
from pydantic import BaseModel

from fl_labelskew_plugins.machine.files import replacing
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, Attempt, SecureError, SitsOutError, listed

NAME = "secure.json"


class Opened(BaseModel):
    """The file: by run and round, the ranks in the sum that was opened, the digest of the question to this silo, and
    the ranks with which its vector without noise was masked.
    """

    runs: dict[str, dict[int, list[int]]]
    questions: dict[str, dict[int, str]] = {}
    masked: dict[str, dict[int, list[int]]] = {}


class Account:
    """The account in a silo's folder.

    Raises:
        LabelSkewError: it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._read()

    def check(self, attempt: Attempt, there: list[int]) -> None:
        """Raise SitsOutError if this round's sum, or of a test the run's opening, was opened with other silos."""
        opened = self._read().runs.get(attempt.run, {})
        before = opened.get(OPENING, []) if attempt.round < OPENING else opened.get(attempt.round)
        if before is not None and before != there:
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

    def mask(self, attempt: Attempt, sharing: list[int]) -> None:
        """Write down the silos that share masks with this one in a round; on disk when this returns.

        Two sums with the same vector and different silos can be opened without this silo, by disjoint sets of others.

        Raises:
            SitsOutError: its vector of this round was masked with others.
            SecureError: nothing can be written.
        """
        if (
            attempt.round <= OPENING
        ):  # no two of these sums can be opened by disjoint sets: each needs most of all silos
            return
        opened = self._read()
        before = opened.masked.setdefault(attempt.run, {}).setdefault(attempt.round, sharing)
        if before != sharing:
            what = f"this silo has masked its vector with {listed(before)}, and now {listed(sharing)} share masks"
            raise SitsOutError(f"{attempt.where}: {what}; the two sums would differ by single uploads ({self.file})")
        self._write(opened, f"{attempt.where}: ", "sends")

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
            raise SecureError(f"round {round + 1}: {what} ({self.file}); begin a new run")
        opened.questions[run][round] = question
        self._write(opened, f"round {round + 1}: ", "answers")

    def _write(self, opened: Opened, where: str, does: str) -> None:
        try:
            with replacing(self.file) as part, part.open("w", encoding="utf-8") as file:
                json.dump(opened.model_dump(), file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            what = f"{self.file} cannot be written ({error.strerror})"
            raise SecureError(f"{where}{what}, and without that account this silo {does} nothing") from None

    def _read(self) -> Opened:
        try:
            return Opened.model_validate_json(self.file.read_bytes())
        except FileNotFoundError:
            return Opened(runs={})
        except (OSError, ValueError):
            raise LabelSkewError(
                f"{self.file}: is no account of a silo's secure sums; put back what was there, or remove it to begin "
                "anew"
            ) from None
