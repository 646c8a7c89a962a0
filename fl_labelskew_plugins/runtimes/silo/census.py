"""What a server knows of all silos' data together: whether they fit, their sizes, class counts, mean and std."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from fl_labelskew_registry import Data, Federation, RunError

from fl_labelskew_plugins.data import stats
from fl_labelskew_plugins.recipe.conflicts import classes_of
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.session import Session, numbered
from fl_labelskew_plugins.runtimes.silo.facts import Facts, digest


class OtherClassesError(RunError):
    """A silo's classes are not those of the federation."""


def form(recipe: Recipe, test: Data | None) -> tuple[tuple[int, ...], int]:
    """Shape of one sample, and ``C``: of the server's test samples, or what the recipe says where it holds none."""
    if test is not None:
        return tuple(test.test.x.shape[1:]), len(test.class_names)
    shape, classes = recipe.data.input_shape, classes_of(recipe.data, recipe.dataset.params)
    assert shape is not None  # or the recipe would have been refused
    assert classes is not None
    return tuple(shape), classes


def server_classes(recipe: Recipe, test: Data | None) -> list[str] | None:
    """The class names that a server knows: those of its test samples, or of its recipe; None where it knows none."""
    names = getattr(recipe.dataset.params, "class_names", None) if test is None else test.class_names
    return None if names is None or numbered(names) else list(names)


class Census:
    """What a server knows of all silos' data.

    Args:
        recipe: what is run.
        test: the server's own test samples; None where it holds none.
        sizes: training samples of each silo, kept up to date here; 0 where it has not said, 1 where a sum says it.
        warn: told a client and what an operator should look at.
        summed: whether no silo tells its samples, but secure aggregation their sum.
    """

    def __init__(
        self,
        recipe: Recipe,
        test: Data | None,
        sizes: list[int],
        warn: Callable[[int, str], None],
        *,
        summed: bool = False,
    ) -> None:
        self._recipe, self.sizes, self._warn = recipe, sizes, warn
        self._form, self.class_names = form(recipe, test), server_classes(recipe, test)
        self._classes = None if self.class_names is None else digest(self.class_names)
        self._facts: dict[int, Facts] = {}
        self._sums: dict[int, stats.MomentSums] = {}
        self.samples: int | None = 0 if summed else None
        """Of all silos, where no silo tells its own; 0 before the sum is made."""

    def check(self, client: int, facts: Facts) -> None:
        """Raise RunError where a silo's data do not fit the federation, OtherClassesError where its classes do not."""
        shape, classes = self._form
        if (facts.input_shape, facts.num_classes) != (shape, classes):
            raise RunError(
                f"its samples are {facts.input_shape} of {facts.num_classes} classes, the federation's {shape} of "
                f"{classes}; use such data"
            )
        if self._classes is not None and facts.classes not in (None, self._classes):
            raise OtherClassesError("its classes are not the server's, in name or in order")
        others = [k for k, known in sorted(self._facts.items()) if None not in (known.classes, facts.classes)]
        if self._classes is None and (apart := [k for k in others if self._facts[k].classes != facts.classes]):
            what = f"names its classes otherwise than silo {apart[0] + 1}, and which is right is not known here"
            self._warn(client, f"{what}; compare their data_args")
        if facts.samples > (most := self._recipe.comm.max_samples):
            raise RunError(
                f"it says that it has {facts.samples} training samples, and {most} are allowed at most "
                "(comm_args.max_samples of the server)"
            )
        if self.samples is None and self.sizes[client] and self.sizes[client] != facts.samples:
            raise RunError(f"it had {self.sizes[client]} training samples when the run began, now {facts.samples}")

    @property
    def num_classes(self) -> int:
        """``C``."""
        return self._form[1]

    def add(self, client: int, facts: Facts, sums: stats.MomentSums | None = None) -> None:
        """Count a silo that was checked."""
        self._facts[client], self.sizes[client] = facts, facts.samples or 1
        if sums is not None:
            self._sums[client] = sums

    def moments(self, clients: Collection[int]) -> stats.Moments | None:
        """Of the training samples of these silos together; None where none of them has told its sums."""
        parts = [self._sums[client] for client in sorted(clients) if client in self._sums]
        return stats.pooled(parts) if parts else None

    @property
    def exact(self) -> bool:
        """Whether the sums that silos have told are those of uint8 samples."""
        return bool(self._sums) and all(sums.exact for sums in self._sums.values())

    def class_counts(self, session: Session) -> torch.Tensor | None:
        """``(K, C)`` class counts of silos, 0 for one that nobody has heard of; None where they do not tell them."""
        if self._recipe.train.proxy_aggregation != "class" or self.samples is not None:
            return None
        none = [0] * session.federation.num_classes
        rows = [self._facts[k].counts if k in self._facts else None for k in range(len(self.sizes))]
        return torch.tensor([row or none for row in rows]).to(session.trainer.device)

    def federation(self, federation: Federation, without: Collection[int] = ()) -> Federation:
        """The run as a whole, with the samples of all silos, or ``without`` some; of all where none is left."""
        if self.samples is not None:
            return replace(federation, num_samples=self.samples, min_samples=0)
        known = [n for k, n in enumerate(self.sizes) if n and k not in without] or [n for n in self.sizes if n]
        return replace(federation, num_samples=sum(known), min_samples=min(known))
