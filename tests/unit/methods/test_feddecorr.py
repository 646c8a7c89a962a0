import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_checks import assert_finite
from torch import nn
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
@settings(max_examples=30, deadline=None)
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


def test_equals_the_spread_of_the_eigenvalues():
    """Proposition 1: the squared norm is d plus the squared distances of the eigenvalues from their mean, 1."""
    features = torch.randn(20, 6, dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(torch.corrcoef(features.T))
    expected = (6 + (eigenvalues - 1).square().sum()) / 6**2
    assert decorrelation(features).item() == pytest.approx(expected.item(), rel=1e-6)


def test_both_scales_have_the_same_gradient_up_to_a_factor():
    features = torch.randn(16, 4, dtype=torch.float64, requires_grad=True)
    paper, code = (torch.autograd.grad(decorrelation(features, scale=s), features)[0] for s in ("paper", "code"))
    torch.testing.assert_close(code, paper * (15**2 / 16 * 4 / 3))


def test_a_step_makes_the_features_less_correlated_and_their_rank_larger():
    base = torch.randn(64, 1)
    features = (base + 0.1 * torch.randn(64, 8)).requires_grad_()  # almost one dimension

    def spectrum():
        values = torch.linalg.eigvalsh(torch.corrcoef(features.detach().T)).clamp(min=1e-12) / 8
        return math.exp(-(values * values.log()).sum())  # effective rank

    first, rank = decorrelation(features).item(), spectrum()
    for _ in range(50):
        (gradient,) = torch.autograd.grad(decorrelation(features, scale="code"), features)
        features = (features - 0.1 * gradient).detach().requires_grad_()
    assert decorrelation(features).item() < 0.7 * first
    assert spectrum() > 1.5 * rank


@pytest.mark.parametrize("scale", ["paper", "code"])
def test_the_size_and_place_of_the_features_do_not_matter(scale):
    features = torch.randn(8, 3, dtype=torch.float64)
    moved = features * torch.tensor([2.0, 30.0, 0.5]) + torch.tensor([5.0, -1.0, 0.0])
    assert decorrelation(moved, scale=scale).item() == pytest.approx(decorrelation(features, scale=scale).item(), 1e-6)


@pytest.mark.parametrize("scale", ["paper", "code"])
def test_one_sample_has_no_regulariser(scale):
    features = torch.randn(1, 3, requires_grad=True)
    loss = decorrelation(features, scale=scale)
    loss.backward()
    assert loss.item() == 0
    assert not features.grad.any()


@pytest.mark.parametrize("scale", ["paper", "code"])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
@pytest.mark.parametrize("rows", [2, 9])
def test_constant_and_huge_features_have_a_finite_gradient(scale, size, rows):
    features = size * torch.randn(rows, 4)
    features[:, 0] = 3.0  # such as a ReLU that never fires
    features.requires_grad_()
    assert_finite(decorrelation(features, scale=scale), features)


@pytest.mark.parametrize("scale", ["paper", "code"])
def test_gradcheck_and_bf16(scale):
    features = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: decorrelation(z, scale=scale), features)
    half = features.detach().bfloat16()
    assert torch.equal(decorrelation(half, scale=scale), decorrelation(half.float(), scale=scale))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = decorrelation(features.detach().float(), scale=scale)
    assert torch.equal(inside, decorrelation(features.detach().float(), scale=scale))


def test_is_added_to_the_cross_entropy_of_every_batch(world):
    method, batch = FedDecorr(FedDecorr.Params(beta=0.5)), world.batch()
    terms = method.loss(batch, world.client())
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    assert terms["decorrelation"].item() == pytest.approx(0.5 * naive(batch.features.double(), "paper"), rel=1e-4)
    code = FedDecorr(FedDecorr.Params(beta=0.5, scale="code")).terms(batch, world.client())
    assert code["decorrelation"].item() == pytest.approx(0.5 * naive(batch.features.double(), "code"), rel=1e-4)
    assert_finite(sum(terms.values()), *world.net.body.parameters())


def test_a_batch_of_one_sample_has_the_gradient_of_cross_entropy(world):
    world.net.eval()  # batch norm needs two samples
    batch, weights = world.batch(slice(0, 1)), list(world.net.parameters())
    terms = FedDecorr().loss(batch, world.client())
    ours = torch.autograd.grad(sum(terms.values()), weights, retain_graph=True)
    plain = torch.autograd.grad(nn.functional.cross_entropy(batch.logits, batch.labels), weights)
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_two_rounds_on_digits_are_less_correlated_than_fedavgs(digits):
    def correlation(**options):
        run = digits("feddecorr", **options)
        for clients in ([0, 1], [1, 2]):
            results = run.play(clients)
        assert all(result.state == {} for result in results.values())
        return results[1].loss_terms["decorrelation"] / options["beta"]

    assert correlation(beta=20.0) < 0.95 * correlation(beta=1e-9)


def test_deviations():
    assert FedDecorr(FedDecorr.Params(beta=0.0)).deviations() == []
    assert len(FedDecorr().deviations()) == 1
    assert "scale: code" in FedDecorr(FedDecorr.Params(scale="code")).deviations()[1]
