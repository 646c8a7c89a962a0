import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_checks import assert_finite
from method_totals import total_of
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.methods.fedshift import FedShift
from fl_labelskew_plugins.methods.reweighting import Reweighting, importance_weights, weighted_cross_entropy


def naive(logits, labels, weights):
    total = 0.0
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        total += weights[y] * (math.log(sum(math.exp(v) for v in z)) - z[y])
    return total / len(labels)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5))
def test_loss_equals_a_loop(rows, weights):
    logits, labels = torch.randn(rows, len(weights), dtype=torch.float64), torch.randint(0, len(weights), (rows,))
    ours = weighted_cross_entropy(logits, labels, torch.tensor(weights, dtype=torch.float64))
    assert ours.item() == pytest.approx(naive(logits, labels, weights), rel=1e-9)


def test_hand_numbers():
    # smoothed by one: 4/5 and 1/5
    weights = importance_weights(torch.tensor([3, 0]), torch.tensor([0.5, 0.5]), smoothing=1.0)
    assert weights.tolist() == pytest.approx([0.625, 2.5])
    z, y = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
    assert weighted_cross_entropy(z, y, weights).item() == pytest.approx(math.log(2) * (3 * 0.625 + 2.5) / 4)


def test_weights_make_the_clients_classes_the_federations():
    """The weighted frequencies are the prior, where a client holds all classes and next to nothing is smoothed."""
    counts, prior = torch.tensor([900, 90, 10]), torch.tensor([0.2, 0.3, 0.5])
    weights = importance_weights(counts, prior, smoothing=1e-9)
    torch.testing.assert_close(counts / 1000 * weights, prior)


def test_huge_weights_and_logits_one_sample():
    z = (1e4 * torch.randn(1, 3)).requires_grad_()
    assert_finite(weighted_cross_entropy(z, torch.tensor([2]), torch.tensor([1e-30, 1.0, 1e30])), z)


def test_gradcheck_and_clear_errors():
    y, w = torch.tensor([0, 2, 2]), torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    z = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: weighted_cross_entropy(z, y, w), z)
    with pytest.raises(ValueError, match=r"`weights` to be of shape \(3,\)"):
        weighted_cross_entropy(z, y, w[:2])


@pytest.mark.parametrize("params", [{}, {"smoothing_fraction": 0.1}])
def test_the_prior_is_fedshifts(world, params):
    method, batch = Reweighting(Reweighting.Params(**params)), world.batch()
    others = torch.tensor([0, 0, 40, 50, 60])
    openings = total_of(*(method.opening(world.client(counts=n)) for n in (world.counts, others)))
    shared = method.open(openings)
    assert torch.equal(shared["prior"], FedShift(FedShift.Params(**params)).open(openings)["prior"])
    a = 0.1 * int(world.counts.sum()) if "smoothing_fraction" in params else 1.0
    n, total = world.counts.tolist(), int(world.counts.sum())
    weights = [shared["prior"][c].item() / ((n[c] + a) / (total + 5 * a)) for c in range(5)]
    terms = method.loss(batch, world.client(shared=shared))
    expected = naive(batch.logits, batch.labels, weights)
    assert terms["cross_entropy"].item() == pytest.approx(expected, rel=1e-5)


def test_what_it_shares_with_fedshift(world):
    noisy = Reweighting(Reweighting.Params(count_noise=3.0))
    sent = noisy.opening(world.client(counts=torch.full((5,), 1000)))["smoothed"]
    assert 0 < (sent - 1000).abs().max() < 50
    assert "noisy" in noisy.deviations()[0]
    assert Reweighting().aggregation == "samples"  # FedAvg's; algorithm 1's is FedShift's
    assert set(Reweighting.Params.model_fields) ^ set(FedShift.Params.model_fields) == {"denominator"}
    logits = torch.randn(2, 5)
    assert noisy.calibrate(logits, world.client()) is logits
    assert FedShift().logits_only()
    assert not noisy.logits_only()


def test_two_rounds_on_digits(digits):
    """The same as training on FedAvg's loss with weights worked out here, from the histograms of all three clients."""
    run, plain = digits("reweighting"), digits("fedavg")
    counts = [Turn(run.trainer, k).view.counts.double() for k in range(3)]
    smoothed = [(n + 1) / (n.sum() + 10) for n in counts]
    prior = sum(n.sum() * p for n, p in zip(counts, smoothed, strict=True)) / sum(n.sum() for n in counts)

    def loss(batch, client):
        losses = cross_entropy(batch.logits, batch.labels, reduction="none")
        weights = (prior / smoothed[client.id]).float()[batch.labels]
        return {"cross_entropy": (weights * losses).mean()}

    plain.method.loss = loss
    unweighted = digits("fedavg")
    for clients in ([0, 1], [1, 2]):
        ours, theirs = run.play(clients), plain.play(clients)
        unweighted.play(clients)
        for k in clients:
            assert ours[k].loss_terms["cross_entropy"] == pytest.approx(theirs[k].loss_terms["cross_entropy"], rel=1e-4)
    for name, weights in run.server.weights.items():
        torch.testing.assert_close(weights, plain.server.weights[name], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(weights, unweighted.server.weights[name], rtol=1e-3, atol=1e-3)
