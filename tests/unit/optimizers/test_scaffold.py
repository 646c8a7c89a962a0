"""SCAFFOLD on a quadratic of two clients, worked out by hand: a = (1, 3), b = (0, 1), two steps of 0.1 from w = 1."""

import pytest

from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.optimizers.scaffold import SCAFFOLD


def make(**options):
    return SCAFFOLD(SCAFFOLD.Params(**options))


def test_two_rounds_by_hand(world):
    two = world(make())
    # round 1, c = 0: client 0 goes 1, 0.9, 0.81; client 1 is at its minimum
    assert two.play() == pytest.approx((0.81 + 1) / 2)
    assert two.kept(0) == pytest.approx((1 - 0.81) / 0.2)
    assert two.kept(1) == pytest.approx(0)
    assert two.shared() == pytest.approx(0.475)
    # round 2 from 0.905: 0.905 - 0.1 (0.905 - 0.95 + 0.475) = 0.862, 0.862 - 0.1 (0.862 - 0.475) = 0.8233;
    # 0.905 - 0.1 (-0.285 + 0.475) = 0.886, 0.886 - 0.1 (-0.342 + 0.475) = 0.8727
    assert two.play() == pytest.approx((0.8233 + 0.8727) / 2)
    assert two.kept(0) == pytest.approx(0.95 - 0.475 + (0.905 - 0.8233) / 0.2)
    assert two.kept(1) == pytest.approx(0 - 0.475 + (0.905 - 0.8727) / 0.2)
    assert two.shared() == pytest.approx((0.8835 - 0.3135) / 2)


def test_who_stays_away_keeps_its_control_variate_and_c_moves_by_its_share(world):
    two = world(make())
    two.play(0)  # c moves by |S|/N = 1/2 of the change 0.95
    assert two.shared() == pytest.approx(0.475)
    assert 1 not in two.states


def test_it_finds_the_minimum_of_the_sum_where_fedavg_does_not(world):
    """The sum's minimum is (0 + 3) / 4; FedAvg stops where the clients' changes cancel out."""
    drift = world(FedAvgOptimizer(), steps=(8, 2))
    two = world(make(), steps=(8, 2))
    for _ in range(30):
        drift.play()
        two.play()
    assert two.at == pytest.approx(0.75, abs=1e-3)
    assert abs(drift.at - 0.75) > 0.1


def test_momentum_enters_the_mean_step(world):
    """With constant gradients (a = 0 curvature is none, so: far minima), the control variate is the gradient itself."""
    two = world(make(), a=(1e-6, 1e-6), b=(-1e6, 1e6), steps=(5, 3), momentum=0.9)
    two.play()
    assert (two.kept(0), two.kept(1)) == (pytest.approx(1, rel=1e-4), pytest.approx(-1, rel=1e-4))
