r"""Measures of label skew, from class counts only.

Client ``k`` of ``K`` holds ``n_kc`` training samples of class ``c`` of ``C``, ``N_k`` in total. Its class shares are
``P_k(c) = n_kc / N_k``; the prior is ``P(c) = sum_k n_kc / N``. Measures of a client without samples are NaN, and
excluded from means.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def shares(counts: NDArray[Any]) -> Floats:
    """Class shares ``P_k(c)`` of counts ``(..., C)``, in the same shape.

    >>> shares(np.array([[3, 1], [0, 0]]))
    array([[0.75, 0.25],
           [ nan,  nan]])
    """
    total = counts.sum(-1, keepdims=True)
    parts: Floats = np.full(counts.shape, np.nan)
    np.divide(counts, total, out=parts, where=total > 0)
    return parts


def hellinger(p: Floats, q: Floats) -> Floats:
    r"""Hellinger's distance of distributions, as in Jimenez-Gutierrez et al., https://arxiv.org/abs/2503.17070.

    .. math:: H(p, q) = \frac{1}{\sqrt 2} \sqrt{\sum_c \bigl(\sqrt{p_c} - \sqrt{q_c}\bigr)^2}

    ``p`` and ``q`` are ``(..., C)`` and broadcast; the result is ``(...)``.

    >>> round(float(hellinger(np.array([1.0, 0.0]), np.array([0.5, 0.5]))), 4)
    0.5412
    """
    distance: Floats = np.sqrt(np.square(np.sqrt(p) - np.sqrt(q)).sum(-1) / 2)
    return distance


def effective_classes(p: Floats) -> Floats:
    r"""Number of equal shares with the same entropy as ``p`` ``(..., C)``: Hill's number of order 1.

    .. math:: \exp\Bigl(-\sum_c p_c \ln p_c\Bigr)

    Hill, "Diversity and evenness", Ecology 54, 1973.

    >>> effective_classes(np.array([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])).round(4)
    array([2.    , 1.3841])
    """
    logs = np.log(p, out=np.zeros(p.shape), where=p > 0)  # 0 ln 0 is 0
    number: Floats = np.exp(-(p * logs).sum(-1))
    return number


def imbalance(counts: NDArray[Any]) -> Floats:
    r"""Samples of the largest class divided by those of the smallest held class; of counts ``(..., C)``.

    .. math:: \max_c n_c \, / \min_{c: n_c > 0} n_c

    The imbalance factor of Cui et al. (CVPR 2019, https://arxiv.org/abs/1901.05555), only over held classes.

    >>> imbalance(np.array([[30, 10, 0], [5, 5, 5]]))
    array([3., 1.])
    """
    largest = counts.max(-1).astype(float)
    smallest = np.where(counts > 0, counts, np.inf).min(-1)
    ratio: Floats = np.divide(largest, smallest, out=np.full_like(largest, np.nan), where=largest > 0)
    return ratio


def by_chance(samples: NDArray[np.int64], classes: int) -> Floats:
    r"""Approximate Hellinger distance from the prior that only sampling causes.

    .. math:: \sqrt{\frac{C - 1}{8 N_k} \Bigl(1 - \frac{N_k}{N}\Bigr)}

    Near its minimum the squared distance is an eighth of the chi-squared statistic divided by ``N_k``. The statistic's
    mean is ``C - 1``, less the client's share of all samples. ``samples`` are ``N_k``, ``(K,)``; ``classes`` is ``C``.

    >>> by_chance(np.array([450, 450]), 10).round(4)
    array([0.0354, 0.0354])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = (classes - 1) / (8 * samples) * (1 - samples / samples.sum())
    return np.where(samples > 0, np.sqrt(squared).clip(max=1), np.nan)


@dataclass(frozen=True)
class Skew:
    """Label skew of a federation, from :func:`skew`.

    ``prior`` is ``(C,)``; ``missing`` ``(K, C)`` marks classes without samples of a client; ``samples`` is ``(K,)``.
    ``measures`` are ``(K,)``, in the order of tables; ``hellinger`` and ``chance`` are distances from the prior.
    """

    prior: Floats
    missing: NDArray[np.bool_]
    samples: NDArray[np.int64]
    measures: dict[str, NDArray[Any]]

    @property
    def missing_pairs(self) -> float:
        """Share of (client, class) pairs without samples."""
        return float(self.missing.mean())

    @property
    def mean(self) -> dict[str, float]:
        """Unweighted mean over the clients."""
        return {name: float(values[self.samples > 0].mean()) for name, values in self.measures.items()}

    @property
    def weighted_mean(self) -> dict[str, float]:
        """Mean over the clients, weighted by samples."""
        some = self.samples > 0
        weights = self.samples[some]
        return {name: float(np.average(v[some], weights=weights)) for name, v in self.measures.items()}

    @property
    def worst(self) -> int:
        """Client with the largest distance from the prior."""
        return int(np.nanargmax(self.measures["hellinger"]))

    @property
    def beyond_chance(self) -> float:
        """Clients' mean distance from the prior, divided by that by chance; 1 for equal draws."""
        chance = self.weighted_mean["chance"]
        return self.weighted_mean["hellinger"] / chance if chance else 1.0

    @property
    def size_ratio(self) -> float:
        """Samples of the largest client divided by those of the smallest non-empty one."""
        some = self.samples[self.samples > 0]
        return float(some.max() / some.min())


def skew(counts: NDArray[np.int64]) -> Skew:
    """Label skew of counts ``(K, C)``, which are not all 0.

    >>> measured = skew(np.array([[30, 10], [0, 40]]))
    >>> measured.prior, measured.missing_pairs, measured.measures["hellinger"].round(4)
    (array([0.375, 0.625]), 0.25, array([0.2727, 0.4576]))
    """
    samples, prior, local = counts.sum(1), shares(counts.sum(0)), shares(counts)
    measures = {
        "held": (counts > 0).sum(1),
        "effective": effective_classes(local),
        "imbalance": imbalance(counts),
        "hellinger": hellinger(local, prior),
        "chance": by_chance(samples, int((prior > 0).sum())),
    }
    return Skew(prior, counts == 0, samples, measures)
