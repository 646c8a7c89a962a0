"""Checks that every partition needs; the message of a failed one is what a user reads."""

from collections.abc import Sequence

import numpy as np
from fl_labelskew_registry import LabelSkewError
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def by_class(name: str, labels: NDArray[np.int64], clients: int) -> tuple[Indices, list[Indices]]:
    """The classes that occur ``(C',)`` and the sorted indices of each one's samples.

    Args:
        name: the partition's name, for messages.
        labels: ``(N,)`` class of each sample.
        clients: ``K``.

    Raises:
        LabelSkewError: ``K < 1``, or fewer samples than clients.
    """
    check_size(name, len(labels), clients)
    classes, counts = np.unique(labels, return_counts=True)
    order = np.argsort(labels, kind="stable")
    return classes.astype(np.int64), np.split(order, np.cumsum(counts)[:-1])


def check_size(name: str, samples: int, clients: int) -> None:
    """Raise LabelSkewError unless ``1 <= clients <= samples``."""
    if clients < 1:
        raise LabelSkewError(f"partition {name}: {clients} clients; at least 1 is needed")
    if samples < clients:
        raise LabelSkewError(
            f"partition {name}: {samples} training samples for {clients} clients; every client needs at least one, "
            f"so client_num_in_total may be {samples} at most"
        )


def gather(name: str, pieces: Sequence[Sequence[Indices]], advice: str) -> list[Indices]:
    """Each client's pieces as one sorted index array.

    Raises:
        LabelSkewError: a client is empty; the message ends with ``advice``.
    """
    parts = [np.sort(np.concatenate(own)).astype(np.int64) if len(own) else np.empty(0, np.int64) for own in pieces]
    empty = [k for k, part in enumerate(parts) if not len(part)]
    if empty:
        raise LabelSkewError(f"partition {name}: client {empty[0]} gets no sample ({len(empty)} in all); {advice}")
    return parts
