"""The face of a partition that looks at labels alone."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from fl_labelskew_registry import Partitioner
from numpy.typing import NDArray


class ByLabels(Partitioner):
    """Calls the pure function ``deal(labels, *, clients, rng, ...)``, whose other arguments are the parameters."""

    deal: ClassVar[Callable[..., list[NDArray[np.int64]]]]

    def split(
        self,
        labels: NDArray[np.int64],
        groups: NDArray[np.int64] | None,
        *,
        clients: int,
        rng: np.random.Generator,
    ) -> list[NDArray[np.int64]]:
        """What ``deal`` returns."""
        return type(self).deal(labels, clients=clients, rng=rng, **self.params.model_dump())
