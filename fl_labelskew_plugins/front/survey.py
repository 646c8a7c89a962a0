"""A survey from Python: who would hold what, and how far clients are from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import Partitioner

from fl_labelskew_plugins.front.run import prepared
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.surveys.survey import of_partition

if TYPE_CHECKING:
    import pandas as pd


def survey(
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    dataset: object = None,
    partition: Sequence[Sequence[int]] | Partitioner | None = None,
) -> pd.DataFrame:
    """Who would hold what under a recipe's partition, and the measures of ``labelskew survey``; nothing is trained.

    Args:
        recipe: one of :func:`.run.load`, or what that takes.
        dataset: in place of the recipe's, as for :func:`.run.run`.
        partition: likewise.

    Returns:
        A row for each client: training samples of each class and in all, then the measures.

    Raises:
        LabelSkewError: a mistake in what was asked for.
    """
    return of_partition(prepared(recipe, {"dataset": dataset, "partition": partition})).frame
