"""Circles: the four classes in the plane of FedMR's simulation.

Fan et al., "Federated Learning under Partially Class-Disjoint Data via Manifold Reshaping", TMLR 2024, appendix B:
"samples of each category are generated from a circle with a different center and a radius of 0.5", centres (1, 1),
(1, -1), (-1, 1) and (-1, -1), 5000 samples of each.
"""

from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data.fingerprint import NO_FILES
from fl_labelskew_plugins.params import Params

CENTRES = ((1, 1), (1, -1), (-1, 1), (-1, -1))
RADIUS = 0.5


def circles(per_class: int, *, filled: bool, rng: np.random.Generator) -> Arrays:
    """``x`` ``(4 * per_class, 2)`` float32 and ``y``; angles are uniform, and so is the area of a filled circle."""
    angle = rng.uniform(0, 2 * np.pi, (4, per_class))
    radius = RADIUS * (np.sqrt(rng.uniform(0, 1, (4, per_class))) if filled else 1.0)
    x = np.asarray(CENTRES)[:, None] + np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return Arrays(x.reshape(-1, 2).astype(np.float32), np.repeat(np.arange(4), per_class))


class Circles(Dataset):
    """Four classes, each a circle of radius 0.5; samples are ``(2,)`` float32."""

    class Params(Params):
        """Parameters of circles."""

        per_class: int = Field(5000, ge=1, description="Training samples of a class.")
        test_per_class: int = Field(250, ge=1, description="Test samples of a class; the paper has none.")
        filled: bool = Field(False, description="Samples from the whole disc; the paper does not say. false: its edge.")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Generate both parts."""
        rng = seeds.numpy_generator(seed, "circles")
        train, test = (
            circles(number, filled=self.params.filled, rng=rng)
            for number in (self.params.per_class, self.params.test_per_class)
        )
        return Data(train, test, [f"({x}, {y})" for x, y in CENTRES], fingerprint=NO_FILES)
