import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import naive_divergence
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedphp import FedPHP
from fl_labelskew_plugins.methods.map import MAP, distillation, hpm_momentum
from fl_labelskew_plugins.ops import mmd, restricted_logits


@given(st.integers(1, 5), st.integers(1, 6), st.floats(0.5, 10))
def test_distillation_equals_a_double_loop(rows, classes, temperature):
    s, t = torch.randn(2, rows, classes, dtype=torch.float64) * 3
    expected = naive_divergence(s, t, range(classes), temperature)
    assert distillation(s, t, temperature=temperature).item() == pytest.approx(expected, abs=1e-12)


def test_distillation_hand_numbers():
    s, t = torch.tensor([[0.0, 0.0]]), torch.tensor([[4 * math.log(3), 0.0]])  # 1/2 1/2 against 3/4 1/4
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert distillation(s, t).item() == pytest.approx(expected, rel=1e-5)
    assert distillation(t, t).item() == pytest.approx(0, abs=1e-7)


def test_hpm_momentum():
    assert hpm_momentum(1, rounds=1000, fraction=0.1) == pytest.approx(0.009)
    assert hpm_momentum(100, rounds=1000, fraction=0.1) == pytest.approx(0.9)
    assert hpm_momentum(500, rounds=1000, fraction=0.1) == 1.0
    assert hpm_momentum(0, rounds=10, fraction=1.0) == 0.0
    assert hpm_momentum(5, rounds=10, fraction=1.0, mu0=0.0) == 0.0


@pytest.mark.parametrize(("epochs", "first", "second"), [(1, 0.5, 0.5), (2, 1, 1), (3, 2, 1), (5, 3, 2), (10, 5, 5)])
def test_stages(epochs, first, second):
    stages = [(stage.name, stage.epochs, stage.upload) for stage in MAP().stages(epochs)]
    assert stages == [("aggregate", first, True), ("personalise", second, False)]
    (stage,) = FedPHP().stages(epochs)
    assert (stage.name, stage.epochs, stage.upload) == ("personalise", epochs, True)


def test_the_first_stage_is_restricted_the_second_is_not(world):
    method, batch = MAP(MAP.Params(alpha=0.25)), world.batch()
    first = method.loss(batch, world.client(stage="aggregate"))["cross_entropy"]
    restricted = restricted_logits(batch.logits, world.counts, alpha=0.25)
    assert torch.equal(first, cross_entropy(restricted, batch.labels))
    second = method.loss(batch, world.client(stage="personalise"))
    assert list(second) == ["cross_entropy"]  # a first round has no private model
    assert torch.equal(second["cross_entropy"], cross_entropy(batch.logits, batch.labels))


@pytest.mark.parametrize("method", [MAP, FedPHP])
@pytest.mark.parametrize(("transfer", "lam", "weight"), [("kd", None, 0.05), ("mmd", None, 0.1), ("kd", 0.5, 0.5)])
def test_the_private_model_teaches_in_the_second_stage(world, method, transfer, lam, weight):
    method = method(method.Params(transfer=transfer, lam=lam, temperature=2.0))
    private = world.moved()
    view = world.client(state={f"hpm.{k}": v for k, v in private.items()}, stage="personalise", times_selected=2)
    method.before_round(view)
    batch = world.batch()
    terms = method.loss(batch, view)
    teacher = view.frozen(private)
    ce = cross_entropy(batch.logits, batch.labels)
    assert terms["cross_entropy"].item() == pytest.approx((1 - weight) * ce.item())
    if transfer == "kd":
        expected = naive_divergence(batch.logits, teacher(batch.inputs), range(5), 2.0)
    else:
        expected = mmd(batch.features, teacher.features(batch.inputs)).item()
    assert terms["transfer"].item() == pytest.approx(weight * expected, rel=1e-4)
    view.stage = "aggregate"
    assert list(method.loss(world.batch(), view)) == ["cross_entropy"]


def test_first_round_keeps_the_personalised_model(world):
    method, view = MAP(), world.client()
    method.before_round(view)
    assert view.scratch == {}
    assert method.personalised(view.state) is None
    method.after_round(view)
    weights = world.net.state_dict()
    private = method.personalised(view.state)
    assert set(view.state) == {f"hpm.{k}" for k in weights}
    assert all(torch.equal(private[k], v) for k, v in weights.items())


@pytest.mark.parametrize("method", [MAP, FedPHP])
@pytest.mark.parametrize(("count", "mu"), [("text", 0.45), ("algorithm", 0.225)])
def test_later_rounds_blend_it(world, method, count, mu):
    """Equation 10, with Q = 2/10, T = 20, so mu = 0.9 z / 4, where the second selection is z = 2 or 1."""
    method, private = method(method.Params(hpm_count=count)), world.moved()
    state = {f"hpm.{k}": v.clone() for k, v in private.items()} | {"other": torch.ones(1)}
    untouched = dict(state)
    view = world.client(state=state, times_selected=2)
    method.after_round(view)
    new = method.personalised(view.state)
    for k, theta in world.net.state_dict().items():
        expected = (1 - mu) * theta + mu * private[k] if theta.is_floating_point() else theta
        torch.testing.assert_close(new[k], expected)
        assert torch.equal(untouched[f"hpm.{k}"], private[k])  # replaced, not changed in place
    assert "other" not in new
