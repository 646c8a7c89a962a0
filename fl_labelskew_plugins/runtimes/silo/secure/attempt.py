"""What one attempt at a secure sum is about; all its silos have to mean the same one."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.engine.ring import Vector, parts, unit
from fl_labelskew_plugins.machine.text import clean, few
from fl_labelskew_plugins.recipe.sections import LEAST_SUMMED

LEAST = LEAST_SUMMED
OPENING = -1
"""Stands for a round's number in what comes before the first."""


class SecureError(RunError):
    """Somebody did not keep to the protocol, or too few are left of it."""

    @property
    def public(self) -> str:  # type: ignore[override]
        """All of it: it names silos and steps, and nothing of their data."""
        return str(self)


class SitsOutError(SecureError):
    """Why a silo takes no part in an attempt; it stays in the run, for this need not be the server's doing."""


class Sizes(NamedTuple):
    """Numbers of silos: that a sum needs, from the first step to the last; that it has at most; of the federation."""

    at_least: int
    at_most: int
    federation: int


@dataclass(frozen=True)
class Attempt:
    """One attempt at one sum.

    Args:
        run: the run's name.
        round: from 0, or :data:`OPENING`, or :func:`number_of_test` a round.
        number: which attempt at it this is, from 0.
        bits: of the ring; sums of narrow entries are modulo ``2 ** bits``.
        length: entries of a vector.
        sizes: numbers of silos, of each silo's own recipe; in the sum of a test all of the opening must be there.
        question: digest of what all of them were asked; with another model for each, a sum would be of one of them.
        wide: values of 64 bits, with which a vector begins.
    """

    run: str
    round: int
    number: int
    bits: int
    length: int
    sizes: Sizes
    question: str = ""
    wide: int = 0

    @property
    def where(self) -> str:
        """For messages."""
        return where(self.round)

    def about(self, step: str, *more: object) -> bytes:
        """What keys are derived for, and what is signed: this attempt, a step of it and no other."""
        return json.dumps(["fl-labelskew secure aggregation 2", asdict(self), step, *more]).encode()

    def threshold(self, ranks: Collection[int]) -> int:
        """How many of these silos have to be there to the end.

        Raises:
            SecureError: they are too few, or so many that the server could open two sums of them.

        >>> Attempt("", 0, 0, 32, 1, Sizes(at_least=4, at_most=5, federation=8)).threshold([1, 2, 3, 4, 8])
        4
        """
        silos, least = len(ranks), max(LEAST, self.sizes.at_least)
        if silos < least:
            raise self.error(f"{silos} silos are there, and the sum needs {least} (comm_args.secure_threshold)")
        if silos > self.sizes.at_most or silos >= 2 * least:
            most = min(self.sizes.at_most, 2 * least - 1)
            raise self.error(f"{silos} silos are there, and the sum may be of {most} at most")
        if (last := max(ranks)) > self.sizes.federation:
            raise self.error(f"silo {last} is there, and the federation has {self.sizes.federation} silos")
        return silos if self.round < OPENING else least

    def error(self, what: str) -> SecureError:
        """An error that says where it was."""
        return SecureError(f"{self.where}: {what}")

    def vector(self, values: Vector, whose: str) -> Vector:
        """The values, checked.

        Raises:
            SecureError: they are no vector of the ring.
        """
        if values.shape != (self.length,) or values.dtype != unit(self.bits):
            raise self.error(f"{whose} is no vector of {self.length} numbers of the ring")
        _, narrow = parts(values, self.wide)
        if len(narrow) and int(narrow.max()) >> self.bits:
            raise self.error(f"{whose} has values of more than {self.bits} bits")
        return values


def where(round: int) -> str:
    """The sum of a round, for messages."""
    text = f"round {tested_round(round) + 1}"
    text = "opening exchange" if round == OPENING else f"test after {text}" if round < OPENING else text
    return f"secure aggregation, {text}"


def senseless(round: int, whose: str, error: Exception) -> SecureError:
    """What somebody has sent led to an error that nobody foresaw."""
    return SecureError(f"{where(round)}: a message of {whose} makes no sense: {clean(repr(error))}")


def number_of_test(round: int) -> int:
    """Stand for the round's number in the sum of right answers of the model after it."""
    return OPENING - 1 - round


def tested_round(round: int) -> int:
    """Round that a sum belongs to, the inverse of :func:`number_of_test`; as it is for other sums."""
    return round if round >= OPENING else OPENING - 1 - round


def about(run: str, round: int, number: int) -> dict[str, Any]:
    """What the audit log says of the attempt ``number`` at a sum."""
    known = tested_round(round) if round != OPENING else None
    return {"run": run, "round": known, "attempt": number, "of": "test" if round < OPENING else None}


def listed(ranks: Collection[int]) -> str:
    """Silos, for messages.

    >>> listed([3, 1])
    'silos 1, 3'
    """
    return f"silo{'' if len(ranks) == 1 else 's'} {few([str(rank) for rank in sorted(ranks)], 100)}"
