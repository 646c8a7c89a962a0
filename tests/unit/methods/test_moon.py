import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import assert_finite
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from fl_labelskew_plugins.methods.moon import MOON, model_contrast


def naive(z, positive, negative, temperature):
    total = 0.0
    for row, p, n in zip(z, positive, negative, strict=True):
        a, b = (math.exp(cosine_similarity(row, other, dim=0).item() / temperature) for other in (p, n))
        total -= math.log(a / (a + b))
    return total / len(z)


@given(st.integers(1, 6), st.integers(1, 5), st.floats(0.1, 5), st.integers(0, 10**6))
def test_equals_a_loop(rows, d, temperature, seed):
    torch.manual_seed(seed)
    z, p, n = torch.randn(3, rows, d, dtype=torch.float64)
    ours = model_contrast(z, p, n, temperature=temperature)
    assert ours.item() == pytest.approx(naive(z, p, n, temperature), rel=1e-9, abs=1e-12)


def test_hand_numbers():
    z = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    p, n = torch.tensor([[1.0, 0.0], [0.0, -4.0]]), torch.tensor([[0.0, 5.0], [0.0, 1.0]])
    # temperature 1: cosines 1 against 0, and -1 against 1
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))) / 2
    assert model_contrast(z, p, n, temperature=1.0).item() == pytest.approx(expected, rel=1e-5)
    # both models alike: nothing to tell apart, and nothing to follow
    z.requires_grad_()
    same = model_contrast(z, p, p)
    same.backward()
    assert same.item() == pytest.approx(math.log(2))
    assert not z.grad.any()


def test_a_clients_first_round_has_no_contrast(world, assert_plain):
    method, view = MOON(), world.client()
    method.before_round(view)
    assert view.scratch == {}
    assert_plain(method, scratch=view.scratch)
    method.after_round(view)
    assert view.state.keys() == {f"moon.{k}" for k in world.net.state_dict()}


def test_later_rounds_contrast_the_servers_model_with_the_last_local_model(world):
    method = MOON(MOON.Params(mu=5.0, temperature=0.7))
    last = world.moved()
    view, server = world.begun(method, state=world.moved("moon."))
    previous = view.frozen(last)
    batch = world.batch()
    terms = method.loss(batch, view)
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    expected = naive(batch.features, server.features(batch.inputs), previous.features(batch.inputs), 0.7)
    assert terms["contrast"].item() == pytest.approx(5 * expected, rel=1e-5)
    assert_finite(sum(terms.values()), *world.net.parameters())
    method.after_round(view)
    assert torch.equal(view.state["moon.body.0.weight"], world.net.body[0].weight)


def test_contrast_of_projected_features(world):
    """Each model projects with its own head."""
    method = MOON(MOON.Params(projection="mlp"))
    world.net.shared_modules = nn.ModuleDict(method.shared_modules(world.federation))
    assert [tuple(p.shape) for p in world.net.shared_modules.parameters()] == [(3, 3), (3,), (256, 3), (256,)]
    last = world.moved()
    view = world.client(state=world.moved("moon."))
    method.before_round(view)
    models = [view.frozen(world.net.state_dict()), view.frozen(last)]
    batch = world.batch()
    positive, negative = (m.shared_modules["projection"](m.features(batch.inputs)) for m in models)
    expected = naive(world.net.shared_modules["projection"](batch.features), positive, negative, 0.5)
    term = method.terms(batch, view)["contrast"]
    assert term.item() == pytest.approx(expected, rel=1e-5)
    term.backward()
    assert all(p.grad is not None for p in world.net.shared_modules.parameters())
