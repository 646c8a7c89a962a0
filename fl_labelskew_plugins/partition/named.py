"""named: the recipe names each client, and how many samples of which class it gets."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from fl_labelskew_registry import LabelSkewError, Partitioner, mistake
from numpy.random import Generator
from pydantic import Field, field_validator

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import Indices, PartitionSeed, gather

Amount = Literal["all"] | int | float
NAME = "partition named"


def class_number(key: str | int, class_names: Sequence[str], classes: int) -> int:
    """The class with this name or number; names come first. Raise LabelSkewError for an unknown class."""
    if isinstance(key, str) and key in class_names:
        return list(class_names).index(key)
    if str(key).isdecimal() and int(key) < classes:
        return int(key)
    shown = [clean(name, 40) for name in class_names[:20]]
    expected = f"a number from 0 to {classes - 1}" + (f", or a name: {', '.join(shown)}" if shown else "")
    raise mistake(NAME, f"class {clean(str(key), 40)!r} is unknown", expected)


def named(
    labels: Indices, shares: Sequence[Mapping[int, Amount]], *, names: Sequence[str], rng: Generator
) -> list[Indices]:
    """Give each client its samples of each class, drawn without replacement; further samples belong to no client.

    Args:
        labels: ``(N,)`` int64.
        shares: for each client, class to amount: ``all``, a number of samples, or (float) a share of the class.
        names: of the clients, for messages.
        rng: shuffles the samples of each class, in ascending order of the classes.

    Raises:
        LabelSkewError: a class has too few samples, or a client gets none of a class that it names.
    """
    pieces: list[list[Indices]] = [[] for _ in shares]
    for c in sorted({c for client in shares for c in client}):
        samples = rng.permutation(np.flatnonzero(labels == c))
        holders = [k for k, client in enumerate(shares) if c in client]
        part, end = 0.0, 0
        for k in holders:
            amount = shares[k][c]
            if isinstance(amount, int):
                size = amount
            else:  # cumulative, so that shares with the sum 1 are all samples of the class
                before, part = part, part + (1.0 if amount == "all" else amount)
                size = round(part * len(samples)) - round(before * len(samples))
            if not size:
                raise LabelSkewError(f"{NAME}: client {names[k]} gets none of the {len(samples)} samples of class {c}")
            pieces[k].append(samples[end : end + size])
            end += size
        if end > len(samples):
            wanted = ", ".join(f"{names[k]}: {shares[k][c]}" for k in holders)
            problem = f"the clients ({wanted}) get {end} samples of class {c}, but it has {len(samples)}"
            raise mistake(NAME, problem, "smaller numbers or shares")
    return gather("named", pieces, "give it a class")


class Named(Partitioner):
    """Each client has a name, and exact numbers or shares of samples of the classes."""

    class Params(Params):
        clients: dict[str, dict[str | int, Amount]] = Field(
            min_length=1,
            description="Name of each client to its classes (names or numbers), and for each class `all`, a number of "
            "samples (an integer), or a share of the class's samples (0.5).",
        )
        partition_seed: PartitionSeed = None

        @field_validator("clients", mode="before")
        @classmethod
        def _amounts_are_possible(cls, value: Any) -> Any:
            for name, classes in value.items() if isinstance(value, dict) else ():
                if not isinstance(name, str) or clean(name, 40) != name or not name.strip():
                    problem = f"client {clean(str(name), 40)}: the name is not text of 1 to 40 printable characters"
                    raise ValueError(f"{problem}; put a number in quotation marks")
                if not isinstance(classes, dict) or not classes:
                    raise ValueError(f"client {name}: has no classes; allowed: a mapping such as {{0: all, 1: 0.5}}")
                for key, amount in classes.items():
                    share = type(amount) is float and 0 < amount <= 1
                    if amount != "all" and not share and not (type(amount) is int and amount > 0):
                        use = "all, an integer of at least 1 (samples), or a share above 0 and at most 1.0"
                        raise ValueError(f"client {name}, class {clean(str(key), 40)}: got {amount!r}; allowed: {use}")
            return value

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.client_names = list(self.params.clients)

    def split(self, labels: Indices, groups: Indices | None, *, clients: int, rng: Generator) -> list[Indices]:
        """Call :func:`named`. Raise LabelSkewError for another number of clients, or unknown classes."""
        if clients != len(self.client_names):
            problem = f"{len(self.client_names)} named clients, but client_num_in_total={clients}"
            raise mistake(NAME, problem, f"train_args.client_num_in_total={len(self.client_names)}")
        if self.params.partition_seed is not None:
            rng = seeds.published_generator(self.params.partition_seed)
        classes = len(self.class_names) or int(labels.max()) + 1
        shares: list[dict[int, Amount]] = []
        for name, amounts in self.params.clients.items():
            numbers = {key: class_number(key, self.class_names, classes) for key in amounts}
            if len(set(numbers.values())) < len(numbers):
                raise LabelSkewError(f"{NAME}: client {name} has a class twice, by name and by number; remove one")
            shares.append({numbers[key]: amount for key, amount in amounts.items()})
        return named(labels, shares, names=self.client_names, rng=rng)
