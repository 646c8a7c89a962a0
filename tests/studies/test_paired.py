"""Paired differences against printed tables, hand numbers and integrals added up by hand."""

import math
import statistics

import pytest

from fl_labelskew_plugins.studies.paired import MOST_SEEDS, interval, power, seeds_needed

# Student's t, two-sided 5 %, as any textbook's table prints it: degrees of freedom to the critical value
PRINTED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}


@pytest.mark.parametrize(("freedom", "critical"), PRINTED.items())
def test_the_interval_is_that_of_the_printed_t_table(freedom, critical):
    differences = [0.3 + 0.7 * (-1) ** k + 0.05 * k for k in range(freedom + 1)]
    middle = sum(differences) / len(differences)
    variance = sum((value - middle) ** 2 for value in differences) / freedom
    half = critical * math.sqrt(variance / len(differences))
    assert interval(differences) == pytest.approx((middle - half, middle + half), abs=2e-3 * half)


@pytest.mark.parametrize("differences", [[2.0], [2.0, 2.0], [0.0, 0.0, 0.0]])
def test_what_does_not_vary_has_no_interval(differences):
    assert all(map(math.isnan, (*interval(differences), seeds_needed(differences))))


# What programs for sample sizes print (paired t-test, two-sided 5 %, power 80 %), effect size to pairs
@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_known_tables(effect, pairs):
    differences = [effect - 1, effect, effect + 1]  # standard deviation 1
    assert statistics.stdev(differences) == 1
    assert seeds_needed(differences) == seeds_needed([-value for value in differences]) == pairs
    assert power(pairs - 1, effect) < 0.8 <= power(pairs, effect)


def test_a_difference_too_small_to_see_needs_more_than_anybody_runs():
    assert seeds_needed([-1.0, 0.001, 1.0]) == math.inf
    assert seeds_needed([-1 + 0.1, 0.1, 1 + 0.1]) == 787 < MOST_SEEDS


@pytest.mark.parametrize(("n", "effect"), [(2, 1.0), (3, 2.5), (5, 1.2), (20, 0.4)])
def test_the_power_is_an_integral_over_the_spread_that_the_seeds_show(n, effect):
    """Noncentral t is (Z + centre) / S; with S known, Z is normal: add up over S, whose square is chi2 / freedom."""
    freedom, centre = n - 1, effect * math.sqrt(n)
    critical = {**PRINTED, 19: 2.093}[freedom]
    step, total = 1e-3, 0.0
    for k in range(8000):
        s = (k + 0.5) * step
        logarithm = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
        density = math.exp(logarithm + (freedom - 1) * math.log(s) - freedom * s * s / 2)
        above = 0.5 * math.erfc((critical * s - centre) / math.sqrt(2))
        total += density * above * step
    assert power(n, effect) == pytest.approx(total, abs=1e-3)
