"""Index lists from Python as a partition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from fl_labelskew_registry import LabelSkewError, Partitioner
from numpy.typing import NDArray


class GivenPartition(Partitioner):
    """One index list per client."""

    def __init__(self, indices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.indices = [np.asarray(part) for part in indices]
        self.name = "given"
        self.description = f"{len(self.indices)} lists of indices"

    def split(
        self, labels: NDArray[Any], groups: NDArray[Any] | None, *, clients: int, rng: np.random.Generator
    ) -> list[NDArray[Any]]:
        """The given lists. Raise LabelSkewError if their number is not ``clients``."""
        if len(self.indices) != clients:
            raise LabelSkewError(
                f"partition: got {self.description} for {clients} clients; load the recipe with "
                f"{{'train_args.client_num_in_total': {len(self.indices)}}}"
            )
        return self.indices
