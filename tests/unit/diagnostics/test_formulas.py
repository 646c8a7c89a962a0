import itertools
import math

import numpy as np
import pytest
import torch

from fl_labelskew_plugins.diagnostics.points import arrows, embedding, principal_shares
from fl_labelskew_plugins.diagnostics.training import deviation_bound, pairs, proxy_gradient_norms
from fl_labelskew_plugins.diagnostics.uploads import eigenvalue_variance, norm_and_cosine


def test_proxy_gradients_follow_equation_9():
    h = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    weight = torch.zeros(3, 2, requires_grad=True)  # so every probability is 1/3
    logits = h @ weight.T
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1]), reduction="sum").backward()
    norms = proxy_gradient_norms(weight.grad, torch.tensor([True, True, False]))
    # eq. 9: -(I - p) h summed over the samples: (-2/3, 2/3), (1/3, -4/3) and, missing, (1/3, 2/3)
    assert float(norms["observed"]) == pytest.approx((math.sqrt(8) / 3 + math.sqrt(17) / 3) / 2)
    assert float(norms["missing"]) == pytest.approx(math.sqrt(5) / 3)
    gradient = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    assert proxy_gradient_norms(gradient, torch.tensor([True, True])) == {"observed": torch.tensor(7.5)}
    assert proxy_gradient_norms(gradient, torch.tensor([False, False])) == {"missing": torch.tensor(7.5)}


def test_deviation_bound_by_loops():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(30, 4, generator=generator).softmax(1)
    h = torch.rand(30, 5, generator=generator)
    labels = torch.tensor([0] * 20 + [1] * 6 + [3] * 4)  # class 2 has no sample
    bound = deviation_bound(p, h, labels)
    for j, r in itertools.product(range(4), repeat=2):
        if j == r or 2 in (j, r):
            assert bound[j, r].isnan()
            continue
        of_j, of_r = labels == j, labels == r
        h_r, h_j = h[of_r].mean(0), h[of_j].mean(0)
        # the right-hand form of definition 3: a sum over the other classes
        others = sum(float(p[of_r, y].mean()) for y in range(4) if y != r)
        expected = others * float(h_r @ h_r) / (float(p[of_j, r].mean()) * float(h_r @ h_j))
        assert float(bound[j, r]) == pytest.approx(expected, rel=1e-5)
    ratio, bounds = pairs(bound, torch.tensor([20, 6, 0, 4]))
    assert ratio.tolist() == pytest.approx([20 / 6, 5.0, 1.5])
    assert torch.equal(bounds, torch.stack([bound[0, 1], bound[0, 3], bound[1, 3]]))
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    ratio, bounds = pairs(deviation_bound(p, torch.ones(2, 2), torch.tensor([0, 1])), torch.tensor([1, 1]))
    # D_01 = 0.5 * 2 / (0 * 2) is infinite, and D_10 = 0 * 2 / (0.5 * 2) is not above 0
    assert (ratio.tolist(), bounds.tolist()) == ([], [])


def test_eigenvalue_variance_takes_the_largest_of_each_class():
    rng = np.random.default_rng(2)
    features, labels = rng.normal(size=(30, 5)) @ rng.normal(size=(5, 5)), np.repeat([4, 7, 9], [17, 12, 1])
    expected = []
    for c in (4, 7):  # a class of one sample counts nothing
        m = np.corrcoef(features[labels == c].T)
        top = np.sort(np.linalg.eigvalsh(m))[::-1][:3]
        expected.append(np.square(top - top.mean()).sum() / 30)
    value = eigenvalue_variance(torch.from_numpy(features), torch.from_numpy(labels), top=3)
    assert float(value) == pytest.approx(np.mean(expected))


def test_eigenvalue_variance_of_more_dimensions_than_samples():
    features = torch.randn(4, 60, generator=torch.Generator().manual_seed(3))
    m = np.corrcoef(features.double().numpy().T)
    top = np.sort(np.linalg.eigvalsh(m))[::-1][:50]
    expected = np.square(top - top.mean()).sum() / 4
    assert float(eigenvalue_variance(features, torch.zeros(4, dtype=torch.long))) == pytest.approx(expected)
    assert eigenvalue_variance(features[:1], torch.zeros(1, dtype=torch.long)).isnan()


def test_principal_shares_of_an_ellipse_of_a_point_and_of_few_points():
    angles = torch.linspace(0, 2 * math.pi, 101)[:-1]
    ellipse = torch.stack([3 * angles.cos(), angles.sin(), torch.zeros(100)], dim=1)  # variances 9/2, 1/2, 0
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    assert principal_shares(ellipse @ turn + 5) == pytest.approx([0.9, 0.1, 0.0], abs=1e-6)
    assert principal_shares(torch.ones(4, 3)) == [0.0, 0.0, 0.0]


def test_arrows_keep_their_directions_and_ratios():
    proxies = torch.tensor([[0.1, 0.0], [0.0, -0.4]])
    drawn = arrows(torch.tensor([[0.0, 0.0], [6.0, 8.0]]), proxies, share=0.5)
    assert torch.allclose(drawn, torch.tensor([[1.25, 0.0], [0.0, -5.0]]))
    assert arrows(torch.zeros(1, 2), torch.zeros(3, 2)).tolist() == [[0.0, 0.0]] * 3


def test_norm_and_cosine_of_an_update():
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 7)).astype(np.float32)
    dot, of_a, of_b = (sum(float(x) * float(y) for x, y in zip(*two, strict=True)) for two in ((a, b), (a, a), (b, b)))
    norm, cosine = norm_and_cosine(torch.from_numpy(a), torch.from_numpy(b))
    assert (norm, cosine) == (pytest.approx(math.sqrt(of_a)), pytest.approx(dot / math.sqrt(of_a * of_b)))
    assert norm_and_cosine(torch.tensor([0.0, -2.0]), torch.tensor([0.0, 3.0])) == (2, -1)
    assert norm_and_cosine(torch.zeros(2), torch.ones(2)) == (0, None)
    assert norm_and_cosine(torch.ones(2), torch.zeros(2)) == (pytest.approx(math.sqrt(2)), None)


def test_tsne_separates_distant_groups_and_depends_only_on_the_seed():
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(40, 6)).astype(np.float32))
    features[20:] += 30
    placed = embedding(features, seed=1)
    assert torch.equal(placed, embedding(features, seed=1))
    middle = torch.stack([placed[:20].mean(0), placed[20:].mean(0)])
    nearest = torch.cdist(placed, middle).argmin(1)
    assert nearest.tolist() == [0] * 20 + [1] * 20
