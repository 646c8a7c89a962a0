import pytest

from fl_labelskew_plugins.optimizers.mime import Mime


def make(**options):
    return Mime(Mime.Params(**options))


def test_two_rounds_by_hand(world):
    two = world(make(server_momentum=0.5))
    # no c yet, and s = 0. Client 0: 1 - 0.1 * 0.5 * 1 = 0.95, 0.95 - 0.1 * 0.5 * 0.95 = 0.9025; client 1 stays
    assert two.play() == pytest.approx((0.9025 + 1) / 2)
    # c is the mean of the gradients 1 and 0 at w = 1, s half of it, and the upload is the mean of both
    assert float(two.server.memory["w"]) == pytest.approx(0.25)
    assert two.shared() == pytest.approx(0.375)
    # from 0.95125, c = 0.5, s = 0.25. Client 0: at the server g = c, so 0.95125 - 0.1 (0.5 * 0.5 + 0.5 * 0.25), which
    # is 0.91375; then g = 0.91375 - 0.95125 + 0.5 = 0.4625: 0.91375 - 0.1 (0.5 * 0.4625 + 0.125) = 0.878125
    # Client 1: 0.91375, then g = 3 (0.91375 - 0.95125) + 0.5 = 0.3875: 0.91375 - 0.1 (0.5 * 0.3875 + 0.125) = 0.881875
    assert two.play() == pytest.approx((0.878125 + 0.881875) / 2)
    c = (0.95125 + 3 * (0.95125 - 1)) / 2
    assert float(two.server.memory["w"]) == pytest.approx(0.5 * c + 0.5 * 0.25)
    assert two.shared() == pytest.approx(0.5 * c + 0.5 * (0.5 * c + 0.5 * 0.25))
    assert list(two.server.shared) == ["optimizer/w"]


def test_the_clip_comes_after_the_correction_and_before_weight_decay(world):
    two = world(make(server_momentum=0.5), steps=(1, 1), weight_decay=0.2, gradient_clip_norm=0.3)
    # d is half the gradient, decay included. Client 0: d = 0.5 (1 + 0.2) = 0.6, without the decay 0.2 it is 0.4, which
    # is clipped to 0.3, and with the decay 0.5; client 1: d = 0.5 (0 + 0.2) = 0.1, without the decay -0.1, not clipped
    assert two.play() == pytest.approx(1 - 0.1 * (0.5 + 0.1) / 2)
    # c is the mean of the gradients 1.2 and 0.2, not clipped, and s half of it
    assert float(two.server.memory["w"]) == pytest.approx(0.35)
    # from 0.97, where both gradients of g are the same: d = 0.5 c + 0.5 s = 0.525, and 0.331 without the decay 0.194
    assert two.play() == pytest.approx(0.97 - 0.1 * (0.3 + 0.2 * 0.97))


def test_server_lr_scales_the_mean_change(world):
    # beta is 0.9: client 0 goes to 0.99 and 0.9801
    assert world(make(server_lr=0.5)).play() == pytest.approx(1 - 0.5 * 0.00995)
