r"""Synthetic(lambda, mu): generated clients whose models and inputs differ.

Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, section 5.1, calls it
Synthetic(alpha, beta); FedLC, sections 5.1 and 5.3, Synthetic(lambda, mu). For client ``k``, with 60 features and 10
classes:

.. math::
    u_k \sim N(0, \lambda), \quad W_k, b_k \sim N(u_k, 1), \quad B_k \sim N(0, \mu), \quad v_k \sim N(B_k, 1)

    x \sim N(v_k, \mathrm{diag}(j^{-1.2})), \quad y = \arg\max(W_k^T x + b_k), \quad
    N_k = \lfloor \mathrm{LogNormal}(4, 2) \rfloor + 50

As in the authors' code, lambda and mu are standard deviations, and the power law of the sizes is log-normal.
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
MIN_SAMPLES = 50  # per client, including the test part
TEST_FRACTION = 0.1  # of each client's samples


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
        x = np.empty((sizes.sum(), FEATURES), np.float32)
        y, groups = np.empty(len(x), np.int64), np.repeat(np.arange(len(sizes)), sizes)
        ends = np.cumsum(sizes)
        for start, end in zip(ends - sizes, ends, strict=True):
            x[start:end], y[start:end] = sample_client(end - start, lam=options.lam, mu=options.mu, rng=rng)
        in_test = np.arange(len(x)) - (ends - sizes)[groups] < cuts[groups]
        train, test = (Arrays(x[rows], y[rows], groups[rows]) for rows in (~in_test, in_test))
        return Data(train, test, [str(c) for c in range(CLASSES)], fingerprint=NO_FILES)
