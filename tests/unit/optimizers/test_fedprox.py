import pytest

from fl_labelskew_plugins.optimizers.fedprox import FedProx


def test_two_steps_by_hand(world):
    # client 0: 1, 0.9, then 0.9 - 0.1 (0.9 + 0.5 (0.9 - 1)) = 0.815; client 1 is at its minimum
    assert world(FedProx(FedProx.Params(fedprox_mu=0.5))).play() == pytest.approx((0.815 + 1) / 2)
