import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, dropout, linear

from fl_labelskew_plugins.methods.fedrod import FedRoD, balanced_logits


@given(
    rows=st.integers(1, 5),
    counts=st.lists(st.integers(0, 10**6), min_size=1, max_size=7),
    gamma=st.floats(0, 4),
    missing=st.sampled_from(["one", "mask"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_balanced_logits_equal_a_double_loop(*, rows, counts, gamma, missing, dtype):
    logits = torch.randn(rows, len(counts), dtype=dtype)
    ours = balanced_logits(logits, torch.tensor(counts), gamma=gamma, missing=missing)
    assert ours.dtype == dtype
    for row in range(rows):
        for c, n in enumerate(counts):
            expected = logits[row, c].item() + gamma * math.log(max(n, 1))
            if missing == "mask" and n == 0:
                expected = -math.inf
            assert ours[row, c].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_balanced_softmax_by_hand():
    # 3 e^0 of 3 e^0 + 1 e^0
    z, n = torch.zeros(1, 2), torch.tensor([3, 1])
    assert cross_entropy(balanced_logits(z, n), torch.tensor([1])).item() == pytest.approx(math.log(4))
    # a class that a client lacks is as one sample, or is not there
    n = torch.tensor([3, 0])
    assert cross_entropy(balanced_logits(z, n), torch.tensor([0])).item() == pytest.approx(math.log(4 / 3))
    assert cross_entropy(balanced_logits(z, n, missing="mask"), torch.tensor([0])).item() == 0


def test_the_private_head_sends_no_gradient_to_the_generic_part(world):
    method, view, batch = FedRoD(FedRoD.Params(private=3.0)), world.client(), world.batch()
    method.before_round(view)
    head = list(method.private_parameters(view))
    with torch.no_grad():
        head[0].normal_()
    terms = method.loss(batch, view)
    generic = cross_entropy(balanced_logits(batch.logits, world.counts), batch.labels)
    assert torch.equal(terms["cross_entropy"], generic)
    both = batch.logits + linear(batch.features, *head)
    torch.testing.assert_close(terms["private"], 3 * cross_entropy(both, batch.labels))
    weights = list(world.net.parameters())
    ours = torch.autograd.grad(sum(terms.values()), weights, retain_graph=True)
    theirs = torch.autograd.grad(generic, weights, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(g.any() for g in torch.autograd.grad(terms["private"], head))


def test_the_private_head_starts_at_zero_and_is_part_of_the_personalised_model(world):
    method, first = FedRoD(), world.client()
    method.before_round(first)
    head = method.private_parameters(first)
    assert [tuple(p.shape) for p in head] == [(5, 3), (5,)]
    assert not any(p.any() for p in head)
    with torch.no_grad():
        for p in head:
            p.normal_()
    before = {k: v.clone() for k, v in world.net.state_dict().items()}
    method.after_round(first)
    assert all(torch.equal(v, before[k]) for k, v in world.net.state_dict().items())
    second = world.client(state=dict(first.state))
    method.before_round(second)
    again = method.private_parameters(second)
    assert all(torch.equal(a, b) for a, b in zip(again, head, strict=True))
    assert all(a is not b for a, b in zip(again, head, strict=True))
    world.net.eval()
    both = method.private_logits(world.x, second)
    net = second.frozen(method.personalised(second.state))
    torch.testing.assert_close(net(world.x), both)
    assert not torch.allclose(both, world.net(world.x))


def test_a_classifier_without_bias(world):
    world.net.classifier = nn.Linear(3, 5, bias=False)
    method, view = FedRoD(), world.client()
    method.before_round(view)
    assert len(method.private_parameters(view)) == 1
    sum(method.loss(world.batch(), view).values()).backward()
    method.after_round(view)
    assert method.personalised(view.state).keys() == world.net.state_dict().keys()


def test_without_balance_the_upload_is_fedavgs_bit_for_bit(digits):
    """In a network with dropout, too: the private head draws nothing from its generator."""
    plain, ours = digits("fedavg"), digits("fedrod", gamma=0.0)
    for run in (plain, ours):
        run.trainer.model.body.register_forward_hook(lambda body, _, h: dropout(h, 0.5, body.training))
        run.play([0, 1])
        run.play([1, 2])
    assert all(torch.equal(v, plain.server.weights[k]) for k, v in ours.server.weights.items())
