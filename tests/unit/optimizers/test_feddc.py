import pytest

from fl_labelskew_plugins.optimizers.feddc import FedDC


def make():
    return FedDC(FedDC.Params(feddc_alpha=0.5))


def test_two_rounds_by_hand(world):
    two = world(make(), steps=(1, 1))
    # client 0 goes to 0.9: drift -0.1, upload 0.8, mean step 1; client 1 stays
    assert two.play() == pytest.approx(0.9)
    assert (two.kept(0, "optimizer/drift/w"), two.kept(1, "optimizer/drift/w")) == (pytest.approx(-0.1), 0)
    assert (two.kept(0, "optimizer/mean/w"), two.kept(1, "optimizer/mean/w")) == (pytest.approx(1), 0)
    assert two.shared() == pytest.approx(0.5)
    # from 0.9, client 0: 0.9 - 0.1 (0.9 + 0.5 (-0.1) + 0.5 - 1) = 0.865, drift -0.135;
    # client 1: 0.9 - 0.1 (-0.3 + 0.5 - 0) = 0.88, drift -0.02
    assert two.play() == pytest.approx((0.865 - 0.135 + 0.88 - 0.02) / 2)
    assert two.kept(0, "optimizer/mean/w") == pytest.approx(0.35)
    assert two.shared() == pytest.approx((0.35 + 0.2) / 2)
    assert not two.server.memory


def test_the_penalty_pulls_within_a_round(world):
    """The second step depends on the first through ``alpha (theta - w)``."""
    two = world(make(), steps=(2, 1))
    two.play()
    # 1, 0.9, 0.9 - 0.1 (0.9 + 0.5 (0.9 - 1)) = 0.815
    assert two.kept(0, "optimizer/drift/w") == pytest.approx(-0.185)


def test_a_client_outside_the_round_has_no_drift(world):
    two = world(make(), steps=(1, 1))
    assert two.play(0) == pytest.approx(0.9 - 0.1)
    assert two.shared() == pytest.approx(1)
    assert 1 not in two.states
