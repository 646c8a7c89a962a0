"""One attempt at a secure sum."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.engine.ring import Vector, parts, unit
from fl_labelskew_plugins.machine.text import clean, few
from fl_labelskew_plugins.recipe.sections import LEAST_SUMMED

OPENING = -1  # as a round


class SecureError(RunError):
    """A violation of the protocol, or too few participants; ``file``: not for other machines."""

    def __init__(self, text: str, file: Path | None = None) -> None:
        super().__init__(text if file is None else f"{text} ({file})")
        self.public = text


class SitsOutError(SecureError):
    """A silo skips an attempt, perhaps without a fault of the server."""


class Sizes(NamedTuple):
    """Numbers of silos, and a digest of their settings: with others, a silo could add nothing, or no noise."""

    at_least: int
    at_most: int
    federation: int
    settings: str = ""


@dataclass(frozen=True)
class Attempt:
    """One attempt at one sum; keys, masks and signatures are bound to it.

    Args:
        round: from 0, or :data:`OPENING`, or :func:`number_of_test` a round.
        question: digest of the server's request; if it differed between silos, a sum could be of one silo.
        wide: number of 64-bit values at the beginning of a vector.
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
        """See :func:`where`."""
        return where(self.round)

    def about(self, step: str, *more: object) -> bytes:
        """Bytes that bind keys and signatures to a step of this attempt."""
        return json.dumps(["fl-labelskew secure aggregation 2", asdict(self), step, *more]).encode()

    def threshold(self, ranks: Collection[int]) -> int:
        """Number of these silos that must stay to the end.

        Raises SecureError for too few silos, or so many that the server could open two sums.

        >>> Attempt("", 0, 0, 32, 1, Sizes(at_least=4, at_most=5, federation=8)).threshold([1, 2, 3, 4, 8])
        4
        """
        silos, least = len(ranks), max(LEAST_SUMMED, self.sizes.at_least)
        if silos < least:
            key = "the opening exchange" if self.round == OPENING else "comm_args.secure_threshold"
            raise self.error(f"{silos} silos take part, but the sum needs {least} ({key})")
        if silos > self.sizes.at_most or silos >= 2 * least:
            most = min(self.sizes.at_most, 2 * least - 1)
            raise self.error(f"{silos} silos take part, but at most {most} are allowed in the sum")
        if (last := max(ranks)) > self.sizes.federation:
            raise self.error(f"silo {last} takes part, but the federation has only {self.sizes.federation} silos")
        return silos if self.round < OPENING else least

    def error(self, what: str) -> SecureError:
        """An error that names the round."""
        return SecureError(f"{self.where}: {what}")

    def vector(self, values: Vector, name: str) -> Vector:
        """Return a vector. Raises SecureError if its shape, type or range is wrong."""
        if values.shape != (self.length,) or values.dtype != unit(self.bits):
            raise self.error(f"{name} must have {self.length} numbers of the ring")
        _, narrow = parts(values, self.wide)
        if len(narrow) and int(narrow.max()) >> self.bits:
            raise self.error(f"{name} has values of more than {self.bits} bits")
        return values


def where(round: int) -> str:
    """Name of a round's sum, for messages."""
    text = f"round {tested_round(round) + 1}"
    text = "opening exchange" if round == OPENING else f"test after {text}" if round < OPENING else text
    return f"secure aggregation, {text}"


def invalid_message(round: int, sender: str, error: Exception) -> SecureError:
    """An error for a message that caused an exception."""
    return SecureError(f"{where(round)}: invalid message of {sender}: {clean(repr(error))}")


def number_of_test(round: int) -> int:
    """The round number of the test after a round."""
    return OPENING - 1 - round


def tested_round(round: int) -> int:
    """The inverse of :func:`number_of_test`."""
    return round if round >= OPENING else OPENING - 1 - round


def about(run: str, round: int, number: int) -> dict[str, Any]:
    """Facts for the audit log."""
    known = tested_round(round) if round != OPENING else None
    return {"run": run, "round": known, "attempt": number, "of": "test" if round < OPENING else None}


def listed(ranks: Collection[int]) -> str:
    """Silos, for messages.

    >>> listed([3, 1])
    'silos 1, 3'
    """
    return f"silo{'' if len(ranks) == 1 else 's'} {few([str(rank) for rank in sorted(ranks)], 100)}"
