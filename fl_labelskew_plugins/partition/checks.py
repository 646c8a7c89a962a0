"""Checks that every partition needs; the message of a failed one is what a user reads."""

from collections.abc import Sequence

import numpy as np
from fl_labelskew_registry import LabelSkewError, mistake
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
        raise mistake(f"partition {name}", f"{clients} clients", "at least 1")
    if samples < clients:
        few = f"{samples} training samples for {clients} clients, of which each needs at least one"
        raise mistake(f"partition {name}", few, f"client_num_in_total={samples} or less")


def gather(name: str, pieces: Sequence[Sequence[Indices]], advice: str) -> list[Indices]:
    """Each client's pieces as one sorted index array.

    Raises:
        LabelSkewError: a client is empty; the message ends with ``advice``.
    """
    none = np.empty(0, np.int64)
    parts = [np.sort(np.concatenate([none, *client])).astype(np.int64) for client in pieces]
    empty = [k for k, part in enumerate(parts) if not len(part)]
    if empty:
        raise LabelSkewError(f"partition {name}: client {empty[0]} gets no sample ({len(empty)} in all); {advice}")
    return parts
