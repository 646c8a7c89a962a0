import pytest

from fl_labelskew_plugins.optimizers.feddyn import FedDyn


def test_two_rounds_by_hand(world):
    two = world(FedDyn(FedDyn.Params(feddyn_alpha=0.5)), steps=(1, 1))
    # client 0 goes to 0.9, client 1 stays: gradients 0.05 and 0, h = 0.5 / 2 * 0.1 = 0.025, w = 0.95 - 0.025 / 0.5
    assert two.play() == pytest.approx(0.9)
    assert (two.kept(0), two.kept(1)) == (pytest.approx(0.05), pytest.approx(0))
    assert float(two.server.memory["w"]) == pytest.approx(0.025)
    assert not two.server.shared  # h stays on the server
    # from 0.9: 0.9 - 0.1 (0.9 - 0.05) = 0.815 and 0.9 - 0.1 * 3 (-0.1) = 0.93, mean 0.8725; h = 0.025 + 0.5 * 0.0275
    assert two.play() == pytest.approx(0.8725 - 0.03875 / 0.5)
    assert two.kept(0) == pytest.approx(0.05 - 0.5 * (0.815 - 0.9))
    assert two.kept(1) == pytest.approx(0 - 0.5 * (0.93 - 0.9), rel=1e-5)
