import pytest

from fl_labelskew_plugins.optimizers.fedsam import FedSAM


def test_two_steps_by_hand(world):
    # client 0 has the gradient of 1.5 and goes to 0.85, has that of 1.35 and goes to 0.715; client 1 is at its minimum,
    # where the gradient is 0 and moves nothing
    assert world(FedSAM(FedSAM.Params(sam_rho=0.5))).play() == pytest.approx((0.715 + 1) / 2)


def test_weight_decay_is_that_of_the_weights(world):
    # client 0: 1 - 0.1 (1.5 + 0.2); client 1: 1 - 0.1 (0 + 0.2)
    two = world(FedSAM(FedSAM.Params(sam_rho=0.5)), steps=(1, 1), weight_decay=0.2)
    assert two.play() == pytest.approx((0.83 + 0.98) / 2)
