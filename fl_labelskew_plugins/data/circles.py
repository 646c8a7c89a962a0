"""Circles: the four classes in the plane of FedMR's simulation.

Fan et al., "Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping", TMLR 2024, appendix B:
"samples of each category are generated from a circle with a different center and a radius of 0.5", 5000 of each.
"""

from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data.fingerprint import NO_FILES
from fl_labelskew_plugins.params import Params

CENTRES = ((1, 1), (1, -1), (-1, 1), (-1, -1))
TEST_PER_CLASS = 250  # the paper has no test samples


def circles(per_class: int, rng: np.random.Generator) -> Arrays:
    """``x`` ``(4 * per_class, 2)`` float32, at uniform angles, and ``y``."""
    angle = rng.uniform(0, 2 * np.pi, (4, per_class))
    x = np.asarray(CENTRES)[:, None] + 0.5 * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return Arrays(x.reshape(-1, 2).astype(np.float32), np.repeat(np.arange(4), per_class))


class Circles(Dataset):
    """Four classes, each a circle of radius 0.5; samples are ``(2,)`` float32."""

    class Params(Params):
        per_class: int = Field(5000, ge=1, description="Training samples per class.")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        rng = seeds.numpy_generator(seed, "circles")
        train, test = (circles(number, rng) for number in (self.params.per_class, TEST_PER_CLASS))
        return Data(train, test, [f"({x}, {y})" for x, y in CENTRES], fingerprint=NO_FILES)
