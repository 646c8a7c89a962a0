import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import assert_finite
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.feddecorr import FedDecorr, decorrelation

EPS = 1e-8


def naive(features, scale):
    rows, (n, d) = features.tolist(), features.shape
    z = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / n
        variance = sum((v - mean) ** 2 for v in column) / (n - 1)
        z.append([(v - mean) / math.sqrt(variance + EPS) for v in column])
    products = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in z] for one in z]
    if scale == "paper":
        return sum((p / (n - 1)) ** 2 for row in products for p in row) / d**2
    pairs = [products[i][j] ** 2 for i in range(d) for j in range(d) if i != j]
    return sum(pairs) / len(pairs) / n


@pytest.mark.parametrize("scale", ["paper", "code"])
@given(st.integers(2, 7), st.integers(2, 5), st.integers(0, 10**6))
def test_equals_a_loop_over_samples_and_dimensions(scale, rows, d, seed):
    torch.manual_seed(seed)
    features = torch.randn(rows, d, dtype=torch.float64)
    assert decorrelation(features, scale=scale).item() == pytest.approx(naive(features, scale), rel=1e-9, abs=1e-12)


def test_hand_numbers():
    # columns (-1, 0, 1) and (1, -2, 1): not correlated; the third is the second, scaled and moved
    features = torch.tensor([[-1.0, 1.0, 5.0], [0.0, -2.0, -1.0], [1.0, 1.0, 5.0]])
    assert decorrelation(features[:, :2]).item() == pytest.approx(2 / 4, rel=1e-5)
    assert decorrelation(features).item() == pytest.approx(5 / 9, rel=1e-5)  # 3 on the diagonal, and 2 pairs
    # code: 2 of 6 pairs with a product of B - 1 = 2, divided by B = 3
    assert decorrelation(features, scale="code").item() == pytest.approx(2 / 6 * 2**2 / 3, rel=1e-5)


@pytest.mark.parametrize("scale", ["paper", "code"])
def test_one_sample_has_no_regulariser(scale):
    features = torch.randn(1, 3, requires_grad=True)
    loss = decorrelation(features, scale=scale)
    loss.backward()
    assert loss.item() == 0
    assert not features.grad.any()


def test_is_added_to_the_cross_entropy_of_every_batch(world):
    method, batch = FedDecorr(FedDecorr.Params(beta=0.5)), world.batch()
    terms = method.loss(batch, world.client())
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    assert terms["decorrelation"].item() == pytest.approx(0.5 * naive(batch.features.double(), "paper"), rel=1e-4)
    code = FedDecorr(FedDecorr.Params(beta=0.5, scale="code")).terms(batch, world.client())
    assert code["decorrelation"].item() == pytest.approx(0.5 * naive(batch.features.double(), "code"), rel=1e-4)
    assert_finite(sum(terms.values()), *world.net.body.parameters())
