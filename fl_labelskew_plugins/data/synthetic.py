r"""Synthetic(lambda, mu): generated clients whose models and inputs differ.

Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, section 5.1, calls it
Synthetic(alpha, beta); FedLC, sections 5.1 and 5.3, Synthetic(lambda, mu). For client ``k``, with 60 features and 10
classes, and a logistic model whose softmax does not change the argmax:

.. math::
    u_k \sim N(0, \lambda), \quad W_k, b_k \sim N(u_k, 1), \quad B_k \sim N(0, \mu), \quad v_k \sim N(B_k, 1)

    x \sim N(v_k, \mathrm{diag}(j^{-1.2})), \quad y = \arg\max(W_k^T x + b_k), \quad
    N_k = \lfloor \mathrm{LogNormal}(4, 2) \rfloor + 50

As in the authors' code, lambda and mu are standard deviations, and the power law of the sizes is log-normal. LEAF's
``data/synthetic`` is another generator, with clusters of clients; FedLC cites both and follows FedProx's.
"""

from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data.fingerprint import NO_FILES
from fl_labelskew_plugins.params import Params

FEATURES, CLASSES = 60, 10
MIN_SAMPLES = 50
"""Minimum of samples per client, including the test part."""
TEST_FRACTION = 0.1
"""Share of each client's samples in the test part."""


def sample_client(
    size: int, *, lam: float, mu: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """One client's ``x`` ``(size, 60)`` and ``y`` ``(size,)``."""
    model_mean, input_mean = rng.normal(0, lam), rng.normal(0, mu)
    weight, bias = rng.normal(model_mean, 1, (FEATURES, CLASSES)), rng.normal(model_mean, 1, CLASSES)
    centre = rng.normal(input_mean, 1, FEATURES)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variances
    x = (centre + spread * rng.standard_normal((size, FEATURES))).astype(np.float32)
    return x, np.argmax(x.astype(np.float64) @ weight + bias, axis=1).astype(np.int64)


class Synthetic(Dataset):
    """Synthetic(lam, mu); samples are ``(60,)`` float32 and groups are clients, for the partition natural."""

    class Params(Params):
        """Parameters of synthetic."""

        lam: float = Field(0.5, ge=0, le=100, description="lambda: difference between the clients' models.")
        mu: float = Field(0.5, ge=0, le=100, description="mu: difference between the clients' inputs.")
        clients: int = Field(10, ge=1, description="Number of clients; must equal client_num_in_total.")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Generate the clients; each has at least one sample in each part."""
        options = self.params
        rng = seeds.numpy_generator(seed, "synthetic")
        sizes = np.floor(rng.lognormal(4, 2, options.clients)).astype(np.int64) + MIN_SAMPLES
        # samples are in random order, so the first ones can be the test part
        cuts = np.clip(np.rint(sizes * TEST_FRACTION).astype(np.int64), 1, sizes - 1)
        train, test = (_room(numbers) for numbers in (sizes - cuts, cuts))
        at_train = at_test = 0
        for size, cut in zip(sizes.tolist(), cuts.tolist(), strict=True):
            x, y = sample_client(size, lam=options.lam, mu=options.mu, rng=rng)
            to_train, to_test = slice(at_train, at_train + size - cut), slice(at_test, at_test + cut)
            test.x[to_test], train.x[to_train] = x[:cut], x[cut:]
            test.y[to_test], train.y[to_train] = y[:cut], y[cut:]
            at_train, at_test = to_train.stop, to_test.stop
        return Data(train, test, [str(c) for c in range(CLASSES)], fingerprint=NO_FILES)


def _room(sizes: NDArray[np.int64]) -> Arrays:
    """An empty part with room for ``sizes`` samples of each client."""
    total = int(sizes.sum())
    x, y = np.empty((total, FEATURES), np.float32), np.empty(total, np.int64)
    return Arrays(x, y, np.repeat(np.arange(len(sizes)), sizes))
