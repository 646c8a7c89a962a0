"""``fl.survey``."""

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
    """Measure a recipe's label skew without training; the arguments are as for :func:`.run.run`.

    Returns:
        A row per client: training samples of each class and in all, then the measures of ``labelskew survey``.

    Raises:
        LabelSkewError: invalid recipe or objects.
    """
    return of_partition(prepared(recipe, {"dataset": dataset, "partition": partition})).frame
