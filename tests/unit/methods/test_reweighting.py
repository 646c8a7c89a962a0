import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_totals import total_of

from fl_labelskew_plugins.methods.fedshift import FedShift
from fl_labelskew_plugins.methods.reweighting import Reweighting, importance_weights, weighted_cross_entropy


def naive(logits, labels, weights):
    total = 0.0
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        total += weights[y] * (math.log(sum(math.exp(v) for v in z)) - z[y])
    return total / len(labels)


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


@pytest.mark.parametrize("params", [{}, {"smoothing_fraction": 0.1}])
def test_the_prior_equals_that_of_fedshift(world, params):
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


def test_rules_shared_with_fedshift(world):
    noisy = Reweighting(Reweighting.Params(count_noise=3.0))
    assert "noisy" in noisy.deviations()[0]
    assert set(Reweighting.Params.model_fields) ^ set(FedShift.Params.model_fields) == {"denominator"}
    logits = torch.randn(2, 5)
    assert noisy.calibrate(logits, world.client()) is logits
    assert FedShift().logits_only()
    assert not noisy.logits_only()
