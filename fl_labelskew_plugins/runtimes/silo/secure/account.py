"""A silo's account of the sums that it has helped to open: of one round, one set of silos, also after a restart.

Of two sums over sets that differ in one silo, the difference is what that one has sent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from fl_labelskew_registry import LabelSkewError
from pydantic import BaseModel

from fl_labelskew_plugins.machine.files import replacing
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt, SitsOutError, listed

NAME = "secure.json"


class Opened(BaseModel):
    """The file: by run and round, the ranks in the sum that was opened."""

    runs: dict[str, dict[int, list[int]]]


class Account:
    """The account in a silo's folder.

    Raises:
        LabelSkewError: it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._read()

    def check(self, attempt: Attempt, there: list[int]) -> None:
        """Raise SitsOutError where this round's sum was opened with other silos."""
        before = self._read().runs.get(attempt.run, {}).get(attempt.round)
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
        try:
            with replacing(self.file) as part, part.open("w", encoding="utf-8") as file:
                json.dump(opened.model_dump(), file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            what = f"{self.file} cannot be written ({error.strerror})"
            raise attempt.error(f"{what}, and without that account this silo opens nothing") from None

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
