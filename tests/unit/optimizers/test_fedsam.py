import pytest

from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.optimizers.fedsam import FedSAM


def make(rho):
    return FedSAM(FedSAM.Params(sam_rho=rho))


def test_two_steps_by_hand(world):
    # client 0 has the gradient of 1.5 and goes to 0.85, has that of 1.35 and goes to 0.715; client 1 is at its minimum,
    # where the gradient is 0 and moves nothing
    assert world(make(0.5)).play() == pytest.approx((0.715 + 1) / 2)


def test_weight_decay_is_that_of_the_weights(world):
    # client 0: 1 - 0.1 (1.5 + 0.2); client 1: 1 - 0.1 (0 + 0.2)
    assert world(make(0.5), steps=(1, 1), weight_decay=0.2).play() == pytest.approx((0.83 + 0.98) / 2)


def test_rho_0_is_fedavg_bit_for_bit(world):
    ours, plain = world(make(0.0)), world(FedAvgOptimizer())
    assert [ours.play() for _ in range(3)] == [plain.play() for _ in range(3)]
