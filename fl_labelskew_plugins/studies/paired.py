"""How far two rows lie apart, seed by seed: what a paired t-test says of it, and how many seeds it takes to see it.

Student, "The probable error of a mean", Biometrika 6, 1908; the power is that of the noncentral t distribution, as in
Cohen, "Statistical Power Analysis for the Behavioral Sciences", 2nd edition 1988, chapter 2.

scipy is imported once there are two seeds.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence

CONFIDENCE, POWER = 0.95, 0.8
MOST_SEEDS = 1000
"""Seeds that anybody counts up to."""


def interval(differences: Sequence[float]) -> tuple[float, float]:
    r"""The 95 % interval around their mean, :math:`\bar d \pm t_{0.975, n-1} s / \sqrt n`; NaN where none differs.

    >>> low, high = interval([1.0, 2.0, 3.0])  # 2 ± 4.303 * 1 / sqrt(3)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    n = len(differences)
    if len(set(differences)) < 2:  # what does not vary is no sample of anything
        return math.nan, math.nan
    middle, half = statistics.fmean(differences), _critical(n) * statistics.stdev(differences) / math.sqrt(n)
    return middle - half, middle + half


def seeds_needed(differences: Sequence[float]) -> float:
    """The fewest seeds with which a test at 5 %, two-sided, sees a difference of this size in 8 of 10 studies.

    Of this size is: with the mean and the spread that these few differences have, which know both roughly.

    Returns:
        2 at least; infinity for more than :data:`MOST_SEEDS`, NaN where no two of them differ.

    >>> seeds_needed([0.0, 1.0, 2.0])  # mean and standard deviation 1
    10
    """
    if len(set(differences)) < 2:
        return math.nan
    middle, spread = abs(statistics.fmean(differences)), statistics.stdev(differences)
    seeds = range(2, MOST_SEEDS + 1)
    fewest = bisect_left(seeds, POWER, key=lambda n: power(n, middle / spread))
    return seeds[fewest] if fewest < len(seeds) else math.inf


def power(n: int, effect: float) -> float:
    r"""How often a paired t-test of ``n`` seeds at 5 % sees a mean that is ``effect`` standard deviations above 0.

    :math:`P(T > t_{0.975, n-1})`, where ``T`` is noncentral t with ``n - 1`` degrees of freedom around
    :math:`\sqrt n` times the effect. What falls below :math:`-t` would be seen with the wrong sign, and does not count.

    >>> round(power(34, 0.5), 2)  # Cohen's medium effect
    0.81
    """
    from scipy.stats import nct

    return float(nct.sf(_critical(n), n - 1, effect * math.sqrt(n)))


def _critical(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1))
