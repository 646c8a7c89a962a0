"""FedDC on two quadratics: by hand, beside FedDyn, and where it ends."""

import pytest
import torch

from fl_labelskew_plugins.optimizers.fedavg import FedAvg
from fl_labelskew_plugins.optimizers.feddc import FedDC
from fl_labelskew_plugins.optimizers.feddyn import FedDyn


def make(alpha=0.5, **options):
    return FedDC(FedDC.Params(feddc_alpha=alpha, **{f"feddc_{k}": v for k, v in options.items()}))


def test_two_rounds_of_the_paper_s_by_hand(world):
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


def test_two_rounds_of_the_code_s_by_hand(world):
    two = world(make(reading="code"), steps=(1, 1))
    assert two.play() == pytest.approx(0.95 - 0.05)  # the mean, and the mean drift
    assert two.shared() == pytest.approx(0.5)
    # local training is as above
    assert two.play() == pytest.approx((0.865 + 0.88) / 2 - (0.135 + 0.02) / 2)
    assert two.kept(0, "optimizer/mean/w") == pytest.approx(0.5 + 0.35)
    assert two.kept(1, "optimizer/mean/w") == pytest.approx(-0.5 + 0.2, rel=1e-5)
    assert two.shared() == pytest.approx((0.85 - 0.3) / 2)
    assert float(two.server.memory["w"]) == pytest.approx(-(0.135 + 0.02) / 2)


def test_the_penalty_pulls_within_a_round(world):
    """Two steps: the second sees the first one's way through ``alpha (theta - w)``."""
    two = world(make(correction=False), steps=(2, 1))
    two.play()
    # 1, 0.9, 0.9 - 0.1 (0.9 + 0.5 (0.9 - 1)) = 0.815
    assert two.kept(0, "optimizer/drift/w") == pytest.approx(-0.185)


@pytest.mark.parametrize(("reading", "steps"), [("paper", (3, 3)), ("code", (3, 3)), ("code", (6, 2))])
def test_without_its_correction_and_with_everybody_it_is_feddyn(world, reading, steps):
    """FedDyn's gradient is ``-alpha h_k``, and its server's ``-h / alpha`` the mean drift; both uniform."""
    settings = {"steps": steps, "momentum": 0.5}
    two, dyn = (
        world(make(correction=False, reading=reading), **settings),
        world(FedDyn(FedDyn.Params(feddyn_alpha=0.5)), **settings),
    )
    for _ in range(8):
        assert two.play() == pytest.approx(dyn.play(), abs=1e-5)
    assert "optimizer/w" not in two.server.shared


@pytest.mark.parametrize(("reading", "expected"), [("paper", 0.9 - 0.1), ("code", 0.9 - 0.1 / 2)])
def test_who_stays_away_has_a_drift_in_the_code_alone(world, reading, expected):
    two = world(make(reading=reading), steps=(1, 1))
    assert two.play(0) == pytest.approx(expected)
    assert two.shared() == pytest.approx(1 if reading == "paper" else 0.5)
    assert 1 not in two.states


def test_momentum_enters_the_mean_step(world):
    """With constant gradients, the mean step is the gradient itself."""
    two = world(make(alpha=0.0), a=(1e-6, 1e-6), b=(-1e6, 1e6), steps=(5, 3), momentum=0.9)
    two.play()
    kept = two.kept(0, "optimizer/mean/w"), two.kept(1, "optimizer/mean/w")
    assert kept == (pytest.approx(1, rel=1e-4), pytest.approx(-1, rel=1e-4))
    assert not any("drift" in name for name in two.states[0])


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_it_finds_the_minimum_of_the_sum(world, reading):
    two = world(make(alpha=1.0, reading=reading), steps=(4, 4))
    for _ in range(60):
        two.play()
    assert two.at == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_the_neutral_setting_is_fedavg(world, reading):
    settings = {"steps": (3, 3), "momentum": 0.9, "weight_decay": 1e-3}
    two, plain = world(make(alpha=0.0, correction=False, reading=reading), **settings), world(FedAvg(), **settings)
    for _ in range(3):
        two.play()
        plain.play()
        assert torch.equal(two.server.weights["w"], plain.server.weights["w"])
    assert not two.states[0]
    assert not two.server.shared


def test_weights_of_the_uploads():
    assert make().aggregation is None  # the method's: by samples, as the paper has it, unless the method says otherwise
    assert make(reading="code").aggregation == "uniform"
    assert make().deviations() == []
    assert "control variates" in make(reading="code").deviations()[0]
