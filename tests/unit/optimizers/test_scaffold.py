import pytest

from fl_labelskew_plugins.optimizers.scaffold import SCAFFOLD


def test_two_rounds_by_hand(world):
    two = world(SCAFFOLD())
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
