import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import assert_finite
from torch.nn.functional import cosine_similarity

from fl_labelskew_plugins.methods.fedaws import FedAwS, positive_loss, spread, spreadout


def cosine(u, v):
    return sum(a * b for a, b in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


def naive_spreadout(w, margin, nearest):
    rows, total = w.tolist(), 0.0
    for c, one in enumerate(rows):
        distances = sorted(1 - cosine(one, other) for i, other in enumerate(rows) if i != c)
        if nearest is None:
            total += sum(max(0.0, margin - d) ** 2 for d in distances)
        else:
            total -= sum(d**2 for d in distances[:nearest])
    return total


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.floats(0.1, 2), st.none() | st.integers(1, 9))
def test_spreadout_equals_loops(classes, d, margin, nearest):
    w = torch.randn(classes, d, dtype=torch.float64)
    ours = spreadout(w, margin=margin, nearest=nearest).item()
    assert ours == pytest.approx(naive_spreadout(w, margin, nearest), rel=1e-9, abs=1e-9)


def test_hand_numbers():
    w = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])  # distances 1, 1 and 2
    assert spreadout(w, margin=1.5).item() == pytest.approx(4 * 0.25)
    assert spreadout(w, margin=1.0).item() == 0
    assert spreadout(w, nearest=1).item() == pytest.approx(-3)
    assert spreadout(w, nearest=2).item() == pytest.approx(-(1 + 4) - (1 + 1) - (1 + 4))


@pytest.mark.parametrize("nearest", [None, 2])
def test_gradcheck(nearest):
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: spreadout(w, margin=1.9, nearest=nearest), w)


@pytest.mark.parametrize("nearest", [None, 1])
def test_what_has_no_direction_or_no_other_stays_where_it_is(nearest):
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.1]])
    new = spread(w, rate=0.1, steps=3, nearest=nearest)
    assert new.isfinite().all()
    assert torch.equal(new[0], w[0])
    assert not torch.equal(new[1:], w[1:])
    assert torch.equal(spread(w[1:2], rate=0.1, nearest=nearest), w[1:2])
    assert spread(1e30 * w, rate=0.1, nearest=nearest).isfinite().all()


def test_steps_are_those_of_gradient_descent_with_momentum():
    w = torch.randn(5, 3)
    expected, velocity = w.clone().requires_grad_(), torch.zeros_like(w)
    for _ in range(4):
        (slope,) = torch.autograd.grad(spreadout(expected, margin=1.5), expected)
        velocity = 0.9 * velocity + slope
        expected = (expected - 0.05 * velocity).detach().requires_grad_()
    torch.testing.assert_close(spread(w, rate=0.05, steps=4, momentum=0.9, margin=1.5), expected.detach())
    with torch.no_grad():
        assert not torch.equal(spread(w, rate=0.05, margin=1.5), w)


@pytest.mark.parametrize("nearest", [None, 2])
def test_classes_end_apart(nearest):
    w = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [1.0, 0.0, 0.1], [1.0, 0.1, 0.1]])
    new = spread(w, rate=0.1, steps=200, nearest=nearest)
    furthest = cosine_similarity(new[:, None], new, dim=2).fill_diagonal_(-1).max()
    assert cosine_similarity(w[:, None], w, dim=2).fill_diagonal_(1).min() > 0.98
    assert furthest < 0.05


def test_bf16_keeps_its_type():
    w = torch.randn(4, 3).bfloat16()
    assert spread(w, rate=0.1).dtype == torch.bfloat16
    assert spreadout(w).dtype == torch.float32


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.floats(0, 1))
def test_positive_loss_equals_a_loop(rows, d, classes, target):
    z, w = torch.randn(rows, d, dtype=torch.float64), torch.randn(classes, d, dtype=torch.float64)
    y = torch.randint(classes, (rows,))
    expected = sum(max(0.0, target - cosine(z[i].tolist(), w[y[i]].tolist())) ** 2 for i in range(rows)) / rows
    assert positive_loss(z, y, w, target=target).item() == pytest.approx(expected, abs=1e-12)


def test_positive_loss_without_a_direction_or_at_its_target():
    z = torch.tensor([[0.0, 0.0], [5.0, 0.0]], requires_grad=True)
    loss = positive_loss(z, torch.tensor([0, 0]), torch.tensor([[1.0, 0.0]]))
    assert_finite(loss, z)
    assert loss.item() == pytest.approx(0.81 / 2)
    assert torch.equal(z.grad[1], torch.zeros(2))


class TestFedAwS:
    def test_neutral_setting_leaves_the_weights_alone(self, world):
        weights = world.net.state_dict()
        assert FedAwS(FedAwS.Params(rate=0.0)).after_aggregation(weights, {}) is weights

    def test_clients_train_with_cross_entropy(self, assert_plain):
        assert_plain(FedAwS())

    def test_the_server_moves_the_class_embeddings_alone(self, world):
        weights = {k: v.clone() for k, v in world.net.state_dict().items()}
        new = FedAwS(FedAwS.Params(rate=0.3, steps=2)).after_aggregation(weights, {})
        assert torch.equal(new["classifier.weight"], spread(weights["classifier.weight"], rate=0.3, steps=2))
        assert not torch.equal(new["classifier.weight"], weights["classifier.weight"])
        assert new.keys() == weights.keys()
        assert all(torch.equal(new[k], weights[k]) for k in weights if k != "classifier.weight")
        assert torch.equal(weights["classifier.weight"], world.net.classifier.weight)  # what it got is as it was

    def test_positive_clients_do_not_see_other_classes(self, world):
        method, batch = FedAwS(FedAwS.Params(local="positive")), world.batch()
        terms = method.loss(batch, world.client())
        assert list(terms) == ["positive"]
        terms["positive"].backward()
        slopes = world.net.classifier.weight.grad
        assert (slopes[:3] != 0).any(dim=1).all()
        assert (slopes[3:] == 0).all()  # classes 3 and 4 are missing
        assert world.net.classifier.bias.grad is None
        world.net.eval()
        assert method.loss(world.batch([0]), world.client())["positive"].isfinite()

    def test_two_rounds_on_digits(self, digits):
        """The classifier alone is another than FedAvg's after a round."""
        plain, spreading, positive = digits("fedavg"), digits("fedaws", margin=1.5), digits("fedaws", local="positive")
        for run in (plain, spreading, positive):
            run.play([0, 1])
        differ = [k for k, v in plain.server.weights.items() if not torch.equal(spreading.server.weights[k], v)]
        assert differ == ["classifier.weight"]
        for run in (spreading, positive):
            run.play([0, 2])
            assert all(v.isfinite().all() for v in run.server.weights.values())

    def test_what_it_says_and_what_it_goes_with(self, federation):
        assert FedAwS().combines
        assert "cross-entropy" in FedAwS().deviations()[0]
        positive = FedAwS(FedAwS.Params(local="positive"))
        assert not positive.combines
        assert "cosines" in positive.deviations()[0]
        assert positive.warnings(federation) == FedAwS().warnings(federation) == []
        assert "collapse" in FedAwS(FedAwS.Params(local="positive", rate=0.0)).warnings(federation)[0]
        assert not FedAwS().logits_only()
