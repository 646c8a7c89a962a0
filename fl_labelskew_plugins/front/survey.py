"""Surveys from Python: the clients' samples per class, and how far clients are from each other."""

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
    """Samples per client and class under a recipe's partition, and the measures of ``labelskew survey``; no training.

    Args:
        recipe: from :func:`.run.load`, or an argument of it.
        dataset: replaces the recipe's, as for :func:`.run.run`.
        partition: likewise.

    Returns:
        A row per client: training samples of each class and in all, then the measures.

    Raises:
        LabelSkewError: invalid recipe or objects.
    """
    return of_partition(prepared(recipe, {"dataset": dataset, "partition": partition})).frame
