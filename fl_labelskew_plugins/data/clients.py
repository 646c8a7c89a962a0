"""Who holds which samples: runs a partition, checks it, and deals the test samples to match."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fl_labelskew_registry import Data, LabelSkewError, Partitioner, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.machine.text import clean


@dataclass(frozen=True)
class Clients:
    """The samples of ``K`` clients.

    Args:
        train: sorted indices of each client's training samples, int64, disjoint.
        test: sorted indices of each client's own test samples, int64, disjoint; may be empty.
        counts: ``(K, C)`` int64 training samples by class.
        test_counts: ``(K, C)`` int64 test samples by class.
        digest: SHA-256 of the index arrays, see :func:`digest`.
        names: one for each client: of its group, where every client is one whole group that has a name of its own,
            else its number.
    """

    train: list[NDArray[np.int64]]
    test: list[NDArray[np.int64]]
    counts: NDArray[np.int64]
    test_counts: NDArray[np.int64]
    digest: str
    names: list[str]

    def record(self) -> dict[str, Any]:
        """What a run keeps of its partition, in JSON's types."""
        counts = {"counts": self.counts.tolist(), "test_counts": self.test_counts.tolist()}
        return {"digest": self.digest, "clients": self.names, **counts}

    @property
    def groups(self) -> dict[int, str]:
        """The clients' names, by their numbers, where they are those of groups; else none."""
        names = dict(enumerate(self.names))
        return {} if all(name == str(k) for k, name in names.items()) else names


def digest(train: Sequence[NDArray[np.int64]], test: Sequence[NDArray[np.int64]]) -> str:
    """SHA-256 in hex, the same on every platform.

    It covers, as little-endian int64: ``K``, then each training array's length and indices, then those of test.
    """
    total = hashlib.sha256()
    for parts in (train, test):
        total.update(np.array(len(parts), dtype="<i8").tobytes())
        for part in parts:
            total.update(np.array(len(part), dtype="<i8").tobytes())
            total.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return total.hexdigest()


def class_counts(labels: NDArray[np.int64], parts: Sequence[NDArray[np.int64]], classes: int) -> NDArray[np.int64]:
    """Samples by client and class, ``(K, C)`` int64."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts]).astype(np.int64)


def check_parts(name: str, parts: Any, clients: int, samples: int) -> list[NDArray[np.int64]]:
    """The parts as sorted int64 arrays.

    Raises:
        LabelSkewError: not ``clients`` non-empty, disjoint arrays of indices below ``samples``; names the partitioner.
    """
    if not isinstance(parts, list | tuple) or len(parts) != clients:
        got = f"{len(parts)} parts" if isinstance(parts, list | tuple) else type(parts).__name__
        raise mistake(f"partitioner {name}", f"returned {got}", f"a list of {clients} index arrays")
    owner = np.full(samples, -1, np.int64)
    checked = []
    for k, part in enumerate(parts):
        indices = np.asarray(part)
        if indices.ndim != 1 or not len(indices) or not np.issubdtype(indices.dtype, np.integer):
            got = f"client {k} has {indices.dtype} of shape {indices.shape}"
            raise mistake(f"partitioner {name}", got, "integer indices in one dimension, at least one")
        indices = np.sort(indices.astype(np.int64))
        if indices[0] < 0 or indices[-1] >= samples:
            got = f"client {k} has indices {indices[0]} to {indices[-1]}"
            raise mistake(f"partitioner {name}", got, f"indices from 0 to {samples - 1}")
        if (np.diff(indices) == 0).any():
            twice = int(indices[1:][np.diff(indices) == 0][0])
            raise mistake(f"partitioner {name}", f"client {k} has sample {twice} twice", "every index once")
        if (owner[indices] >= 0).any():
            shared = int(indices[owner[indices] >= 0][0])
            raise LabelSkewError(
                f"partitioner {name}: sample {shared} is in clients {owner[shared]} and {k}; give it to one of them"
            )
        owner[indices] = k
        checked.append(indices)
    return checked


def check_labels(part: str, labels: NDArray[np.int64], classes: int) -> None:
    """Raise LabelSkewError unless all labels ``(N,)`` are ``0 .. classes - 1``."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        got = f"{part} labels are {labels.min()} to {labels.max()}"
        raise mistake("data set", got, f"labels from 0 to {classes - 1} with {classes} class names")


def largest_remainder(total: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """``total`` items in proportion to integer ``weights`` ``(K,)``; ties go to the lower number. Exact."""
    if not weights.any():
        return np.zeros_like(weights)
    whole, rest = np.divmod(total * weights, weights.sum())
    whole[np.argsort(-rest, kind="stable")[: total - whole.sum()]] += 1
    return whole


def proportional_test(
    labels: NDArray[np.int64], counts: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Each client's test samples: those of class ``c`` go to clients in proportion to their training counts ``n_kc``.

    Of ``labels`` ``(N_test,)``, by ``counts`` ``(K, C)``; a class that no client trains on is not dealt.
    """
    parts: list[list[NDArray[np.int64]]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        samples = rng.permutation(np.flatnonzero(labels == c))
        shares = largest_remainder(len(samples), counts[:, c])
        for part, piece in zip(parts, np.split(samples, np.cumsum(shares)), strict=False):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


def client_groups(groups: NDArray[np.int64], parts: Sequence[NDArray[np.int64]]) -> list[int] | None:
    """The group that each client is, or None unless every client is one whole group; ``groups`` is ``(N,)``."""
    names, sizes = np.unique(groups, return_counts=True)
    size = dict(zip(names.tolist(), sizes.tolist(), strict=True))
    held = [np.unique(groups[part]).tolist() for part in parts]
    whole = all(len(g) == 1 and size[g[0]] == len(part) for g, part in zip(held, parts, strict=True))
    return [g[0] for g in held] if whole else None


def divide(data: Data, partitioner: Partitioner, *, clients: int, seed: int) -> Clients:
    """Deal the training samples with ``partitioner``, and the test samples to match.

    Where every client is one whole group of the data set and the test part has groups too, a client's test samples are
    those of its group; otherwise they follow its own class mix (:func:`proportional_test`).

    Nothing but ``seed``, the recipe's, moves the result. What the partitioner returns is checked.

    Raises:
        LabelSkewError: the partition cannot be made, or the partitioner returned a wrong one.
    """
    classes = len(data.class_names)
    check_labels("training", data.train.y, classes)
    check_labels("test", data.test.y, classes)
    rng = seeds.numpy_generator(seed, "partition")
    parts = partitioner.split(data.train.y, data.train.groups, clients=clients, rng=rng)
    plugin = type(partitioner)
    train = check_parts(f"{plugin.__module__}:{plugin.__qualname__}", parts, clients, len(data.train.y))
    counts = class_counts(data.train.y, train, classes)
    of_train, of_test = data.train.groups, data.test.groups
    groups = None if of_train is None else client_groups(of_train, train)
    if groups is not None and of_test is not None:
        test = [np.flatnonzero(of_test == group).astype(np.int64) for group in groups]
    else:
        test = proportional_test(data.test.y, counts, seeds.numpy_generator(seed, "test partition"))
    named = groups is not None and len(data.group_names) > max(groups)
    names = [clean(data.group_names[group], 40) for group in groups or ()] if named else []
    if len(set(names)) < clients:
        names = [str(k) for k in range(clients)]
    return Clients(train, test, counts, class_counts(data.test.y, test, classes), digest(train, test), names)
