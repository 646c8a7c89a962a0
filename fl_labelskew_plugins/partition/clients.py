"""Run and check a partition, and divide the test samples accordingly."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fl_labelskew_registry import Data, LabelSkewError, Partitioner, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.machine.text import clean


class Parts:
    """Sorted int64 sample indices of each of ``K`` clients, from ``owners`` ``(N,)``; -1: a sample of no client."""

    def __init__(self, owners: NDArray[np.int64], clients: int) -> None:
        sizes = np.bincount(owners + 1, minlength=clients + 1)
        self.ends = np.cumsum(sizes[1:])
        """``(K,)`` end of each client's part of ``indices``."""
        self.indices = np.argsort(owners, kind="stable")[sizes[0] :].astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        return self.indices[self.span(client)]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[client] for client in range(len(self)))

    def span(self, client: int) -> slice:
        """Range of a client's samples in ``indices``."""
        return slice(self.ends[client - 1] if client else 0, self.ends[client])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """``(K,)``."""
        return np.diff(self.ends, prepend=0)

    def counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Samples by client and class, ``(K, C)`` int64, from all ``labels`` ``(N,)``."""
        cells = np.repeat(np.arange(len(self)), self.sizes) * classes + labels[self.indices]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)


@dataclass(frozen=True)
class Clients:
    """The training and test samples of ``K`` clients, and their numbers ``(K, C)`` by class.

    ``names`` are those of the partition, or of groups if every client is one whole group with a unique name, otherwise
    numbers.
    """

    train: Parts
    test: Parts
    counts: NDArray[np.int64]
    test_counts: NDArray[np.int64]
    digest: str
    names: list[str]

    def record(self) -> str:
        """JSON text of the partition, with one line per client."""
        parts = [f'"digest": {json.dumps(self.digest)}', f'"clients": {json.dumps(self.names)}']
        for name, table in (("counts", self.counts), ("test_counts", self.test_counts)):
            parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(row.tolist()) for row in table) + "]")
        return "{" + ",\n".join(parts) + "}\n"

    @property
    def groups(self) -> dict[int, str]:
        """The clients' names by number, unless they are numbers."""
        names = dict(enumerate(self.names))
        return {} if all(name == str(k) for k, name in names.items()) else names


def digest(train: Parts | Sequence[NDArray[np.int64]], test: Parts | Sequence[NDArray[np.int64]]) -> str:
    """SHA-256 in hex of little-endian int64 numbers.

    First for training, then for test: ``K``, and for each client the length of its array and its indices.
    """
    total = hashlib.sha256()
    for parts in (train, test):
        total.update(np.array(len(parts), dtype="<i8").tobytes())
        for part in parts:
            total.update(np.append(len(part), part).astype("<i8").tobytes())
    return total.hexdigest()


def check_parts(name: str, parts: Any, clients: int, samples: int) -> Parts:
    """Raise LabelSkewError unless ``parts`` are ``clients`` non-empty, disjoint arrays of indices below ``samples``."""
    if not isinstance(parts, list | tuple) or len(parts) != clients:
        got = f"{len(parts)} parts" if isinstance(parts, list | tuple) else type(parts).__name__
        raise mistake(f"partitioner {name}", f"returned {got}", f"a list of {clients} index arrays")
    owners = np.full(samples, -1, np.int64)
    for k, part in enumerate(parts):
        indices = np.asarray(part)
        if indices.ndim != 1 or not len(indices) or not np.issubdtype(indices.dtype, np.integer):
            got = f"client {k} has {indices.dtype} of shape {indices.shape}"
            raise mistake(f"partitioner {name}", got, "a one-dimensional array of at least one integer index")
        first, last = indices.min(), indices.max()
        if first < 0 or last >= samples:
            got = f"client {k} has indices {first} to {last}"
            raise mistake(f"partitioner {name}", got, f"indices from 0 to {samples - 1}")
        values, times = np.unique(indices, return_counts=True)
        if times.max() > 1:
            got = f"client {k} has sample {values[times > 1][0]} twice"
            raise mistake(f"partitioner {name}", got, "every index once")
        if (shared := values[owners[values] >= 0]).size:
            problem = f"sample {shared[0]} is in clients {owners[shared[0]]} and {k}"
            raise LabelSkewError(f"partitioner {name}: {problem}; give it to one of them")
        owners[values] = k
    return Parts(owners, clients)


def largest_remainder(total: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """``total`` items in exact proportion to integer ``weights`` ``(K,)``; ties go to the lower index."""
    if not weights.any():
        return np.zeros_like(weights)
    whole, rest = np.divmod(total * weights, weights.sum())
    whole[np.argsort(-rest, kind="stable")[: total - whole.sum()]] += 1
    return whole


def proportional_test(labels: NDArray[np.int64], counts: NDArray[np.int64], rng: np.random.Generator) -> Parts:
    """Divide test samples, from ``labels`` ``(N_test,)``, in proportion to training ``counts`` ``(K, C)`` per class."""
    owners = np.full(len(labels), -1, np.int64)
    for c in range(counts.shape[1]):
        samples = rng.permutation(np.flatnonzero(labels == c))
        shares = largest_remainder(len(samples), counts[:, c])
        owners[samples[: shares.sum()]] = np.repeat(np.arange(len(counts)), shares)
    return Parts(owners, len(counts))


def client_groups(groups: NDArray[np.int64], parts: Parts) -> NDArray[np.int64] | None:
    """The group of each client, if every client is one whole group of ``groups`` ``(N,)``."""
    unique, sizes = np.unique(groups, return_counts=True)
    first = groups[parts.indices[parts.ends - parts.sizes]]
    equal = groups[parts.indices] == np.repeat(first, parts.sizes)
    return first if equal.all() and (sizes[np.searchsorted(unique, first)] == parts.sizes).all() else None


def of_groups(groups: NDArray[np.int64], clients: NDArray[np.int64]) -> Parts:
    """Samples of clients that are one group each; ``groups``: ``(N,)`` of each sample, ``clients``: ``(K,)``."""
    order = np.argsort(clients)
    positions = np.searchsorted(clients, groups, sorter=order).clip(max=len(clients) - 1)
    return Parts(np.where(clients[order][positions] == groups, order[positions], -1), len(clients))


def divide(data: Data, partitioner: Partitioner, *, clients: int, seed: int) -> Clients:
    """Divide the samples. Raise LabelSkewError for an impossible or invalid partition.

    If every client is one whole group and the test part has groups too, a client's test samples are those of its
    group. Otherwise they follow its class mix.
    """
    classes = len(data.class_names)
    for part, y in (("training", data.train.y), ("test", data.test.y)):
        if len(y) and not 0 <= y.min() <= y.max() < classes:
            problem = f"{part} labels are {y.min()} to {y.max()}, but there are {classes} class names"
            raise mistake("data set", problem, f"labels from 0 to {classes - 1}")
    rng = seeds.numpy_generator(seed, "partition")
    partitioner.class_names = data.class_names
    parts = partitioner.split(data.train.y, data.train.groups, clients=clients, rng=rng)
    kind = type(partitioner)
    train = check_parts(f"{kind.__module__}:{kind.__qualname__}", parts, clients, len(data.train.y))
    counts = train.counts(data.train.y, classes)
    groups = None if data.train.groups is None else client_groups(data.train.groups, train)
    if groups is not None and data.test.groups is not None:
        test = of_groups(data.test.groups, groups)
    else:
        test = proportional_test(data.test.y, counts, seeds.numpy_generator(seed, "test partition"))
    names = list(partitioner.client_names) or [str(k) for k in range(clients)]
    if not partitioner.client_names and groups is not None and len(data.group_names) > groups.max():
        group_names = [clean(data.group_names[group], 40) for group in groups.tolist()]
        names = group_names if len(set(group_names)) == clients else names
    return Clients(train, test, counts, test.counts(data.test.y, classes), digest(train, test), names)
