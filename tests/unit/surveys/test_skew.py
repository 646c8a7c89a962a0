import math

import numpy as np
import pytest
from scipy.stats import entropy

from fl_labelskew_plugins.surveys.skew import shares, skew

DRAWN = np.random.default_rng(0)
COUNTS = DRAWN.integers(0, 50, (40, 7)) * (DRAWN.random((40, 7)) > 0.4)
COUNTS[COUNTS.sum(1) == 0, 0] = 3


def naive(counts):
    """Hellinger's distance of each client from the prior, term by term."""
    total = sum(sum(row) for row in counts)
    prior = [sum(row[c] for row in counts) / total for c in range(len(counts[0]))]
    for row in counts:
        p = [n / sum(row) for n in row]
        yield math.sqrt(sum((math.sqrt(a) - math.sqrt(b)) ** 2 for a, b in zip(p, prior, strict=True)) / 2)


def test_two_clients_by_hand():
    measured = skew(np.array([[30, 10], [0, 40]]))
    assert measured.missing.tolist() == [[False, False], [True, False]]
    assert measured.measures["held"].tolist() == [2, 1]
    assert measured.measures["imbalance"].tolist() == [3.0, 1.0]
    assert measured.size_ratio == 1.0
    assert measured.worst == 1
    assert measured.measures["chance"] == pytest.approx([math.sqrt(1 / (8 * 40) / 2)] * 2)


def test_means_count_clients_alike_or_by_their_samples():
    measured = skew(np.array([[30, 30], [20, 0]]))
    a, b = measured.measures["hellinger"]
    assert measured.mean["hellinger"] == pytest.approx((a + b) / 2)
    assert measured.weighted_mean["hellinger"] == pytest.approx((60 * a + 20 * b) / 80)
    assert measured.mean["held"] == 1.5
    assert measured.size_ratio == 3.0


def test_distances_equal_naive_loops_and_scipy():
    measured = skew(COUNTS)
    assert measured.measures["hellinger"] == pytest.approx(list(naive(COUNTS.tolist())), abs=1e-12)
    assert measured.measures["effective"] == pytest.approx([math.exp(entropy(row)) for row in shares(COUNTS)])


def test_a_client_without_samples_is_in_no_mean():
    measured = skew(np.array([[4, 4], [0, 0], [8, 0]]))
    without = skew(np.array([[4, 4], [8, 0]]))
    assert measured.mean == without.mean
    assert measured.weighted_mean == without.weighted_mean
    assert measured.worst == 2
    for name in ("hellinger", "effective", "imbalance", "chance"):
        assert np.isnan(measured.measures[name]).tolist() == [False, True, False]


def test_one_client_is_its_own_prior():
    measured = skew(np.array([[5, 3, 0]]))
    assert measured.measures["hellinger"].tolist() == [0.0]
    assert measured.measures["chance"].tolist() == [0.0]
    assert measured.beyond_chance == 1.0


@pytest.mark.parametrize("samples", [200, 2000])
def test_iid_clients_have_the_distance_expected_by_chance(samples):
    rng = np.random.default_rng(1)
    federations = [skew(rng.multinomial(samples, [0.4, 0.3, 0.2, 0.1], size=8)) for _ in range(200)]
    squared = np.mean([np.square(federation.measures["hellinger"]).mean() for federation in federations])
    assert math.sqrt(squared) == pytest.approx(federations[0].measures["chance"][0], rel=0.05)
    assert np.mean([federation.beyond_chance for federation in federations]) == pytest.approx(1, abs=0.1)
