"""The main measure of a run, which rates the global model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Line = Mapping[str, Any]  # a line of `metrics.jsonl`


class Measure(NamedTuple):
    """A key of ``metrics.jsonl``, and short and full name of the tested samples."""

    key: str
    name: str
    samples: str


MEASURES = (
    Measure("accuracy", "global", "the global test set"),
    Measure("client_accuracy_mean", "clients' mean", "clients' own test splits, mean over the clients"),
    Measure("client_accuracy_pooled", "clients pooled", "clients' own test splits, all samples together"),
)
"""A run's main measure is the first of these that it has."""
NAMED = {one.key: one for one in MEASURES}
GLOBAL = MEASURES[0].key


def main_measure(lines: Sequence[Line]) -> Measure:
    """The main measure of these lines; without a test, the first one.

    >>> main_measure([{"round": 0}, {"round": 1, "client_accuracy_mean": 0.5}]).name
    "clients' mean"
    """
    return next((one for one in MEASURES if any(line.get(one.key) is not None for line in lines)), MEASURES[0])


def main_tests(lines: Sequence[Line]) -> list[Line]:
    """The lines that have the main measure."""
    key = main_measure(lines).key
    return [line for line in lines if line.get(key) is not None]


def best_test(lines: Sequence[Line]) -> Line | None:
    """The first line with the highest main measure; None without a test.

    >>> best_test([{"round": round, "accuracy": share} for round, share in enumerate((0.5, 0.7, 0.7))])["round"]
    1
    """
    key = main_measure(lines).key
    return max(main_tests(lines), key=lambda line: line[key], default=None)
