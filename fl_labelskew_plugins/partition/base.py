"""Base class and checks of partitions by label.

Such a partition is a pure function ``divide(labels, *, clients, rng, ...)`` of labels ``(N,)`` int64. It returns the
sorted sample indices of each client, int64, disjoint, and together all samples.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from fl_labelskew_registry import LabelSkewError, Partitioner, mistake
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import seeds

Indices = NDArray[np.int64]
PartitionSeed = Annotated[
    int | None,
    Field(
        ge=0,
        description="Seed of numpy's default_rng for this partition; null: from random_seed. With a number, all "
        "seeds of a sweep have the same clients.",
    ),
]


class ByLabels(Partitioner):
    """Calls ``divide`` with the parameters."""

    divide: ClassVar[Callable[..., list[Indices]]]

    def split(self, labels: Indices, groups: Indices | None, *, clients: int, rng: Generator) -> list[Indices]:
        """Call ``divide``; ``partition_seed`` replaces the generator."""
        options = self.params.model_dump()
        if (seed := options.pop("partition_seed", None)) is not None:
            rng = seeds.published_generator(seed)
        return type(self).divide(labels, clients=clients, rng=rng, **options)


def by_class(name: str, labels: Indices, clients: int) -> tuple[Indices, list[Indices]]:
    """The classes with samples ``(C',)`` and the sorted indices of their samples."""
    check_size(name, len(labels), clients)
    classes, counts = np.unique(labels, return_counts=True)
    order = np.argsort(labels, kind="stable")
    return classes.astype(np.int64), np.split(order, np.cumsum(counts)[:-1])


def check_size(name: str, samples: int, clients: int) -> None:
    """Raise LabelSkewError unless ``1 <= clients <= samples``."""
    if clients < 1:
        raise mistake(f"partition {name}", f"{clients} clients", "at least 1")
    if samples < clients:
        problem = f"{samples} training samples are too few for {clients} clients"
        raise mistake(f"partition {name}", problem, f"client_num_in_total={samples} or less")


def gather(name: str, pieces: Sequence[Sequence[Indices]], advice: str) -> list[Indices]:
    """Each client's pieces as one sorted index array. Raise LabelSkewError with ``advice`` for an empty client."""
    nothing = np.empty(0, np.int64)
    parts = [np.sort(np.concatenate([nothing, *client])).astype(np.int64) for client in pieces]
    if empty := [k for k, part in enumerate(parts) if not len(part)]:
        raise LabelSkewError(
            f"partition {name}: client {empty[0]} gets no sample (clients without samples: {len(empty)}); {advice}"
        )
    return parts
