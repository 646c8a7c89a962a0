import math

import pytest
import torch
from fl_labelskew_registry import Total
from fl_labelskew_registry.contracts import ClientView
from fl_labelskew_registry.testing import FEDERATION
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear

from fl_labelskew_plugins import ops


def view() -> ClientView:
    return ClientView(0, 0, torch.ones(2), {}, {}, torch.Generator(), 1, FEDERATION)


def naive_restricted(logits, counts, alpha, min_count, scaling):
    out = logits.clone()
    for row in range(logits.shape[0]):
        for c in range(logits.shape[1]):
            n = int(counts[c])
            if scaling == "indicator":
                a = 1.0 if n >= min_count else alpha
            else:
                a = alpha + (1 - alpha) * n / max(1, int(counts.max()))
            out[row, c] = a * logits[row, c]
    return out


@given(
    rows=st.integers(1, 5),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=7),
    alpha=st.floats(0, 1),
    min_count=st.integers(1, 20),
    scaling=st.sampled_from(["indicator", "proportional"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_restricted_logits_equals_a_double_loop(*, rows, counts, alpha, min_count, scaling, dtype):
    logits = torch.randn(rows, len(counts), dtype=dtype)
    n = torch.tensor(counts)
    ours = ops.restricted_logits(logits, n, alpha=alpha, min_count=min_count, scaling=scaling)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, naive_restricted(logits, n, alpha, min_count, scaling))


def test_rare_observed_classes_keep_their_logits():
    logits = torch.tensor([[3.0, 5.0, 7.0]])
    counts = torch.tensor([1, 1000, 0])
    assert ops.restricted_logits(logits, counts, alpha=0.5).tolist() == [[3.0, 5.0, 3.5]]
    # at the threshold is observed, below it is missing
    counts = torch.tensor([2, 1, 3])
    assert ops.restricted_logits(logits, counts, alpha=0.0, min_count=2).tolist() == [[3.0, 0.0, 7.0]]


def test_restricted_logits_keep_masked_logits():
    """FedLC with ``missing: mask`` inside FedRS with ``alpha: 0``: 0 times infinity is not a number."""
    logits = torch.tensor([[1.0, -torch.inf, 2.0]], requires_grad=True)
    restricted = ops.restricted_logits(logits, torch.tensor([4, 0, 0]), alpha=0)
    assert restricted.tolist() == [[1.0, -torch.inf, 0.0]]
    torch.nn.functional.cross_entropy(restricted, torch.tensor([0])).backward()
    assert logits.grad[0, 1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_gradient_of_a_missing_proxy(alpha):
    """Equation 10: alpha * sum_i p_ic h_i, over the batch's mean."""
    h = torch.randn(6, 3, dtype=torch.float64)
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, dtype=torch.float64, requires_grad=True)
    labels, counts = torch.tensor([0, 1, 0, 1, 1, 0]), torch.tensor([3, 3, 0, 0])
    scores = ops.restricted_logits(linear(h, w, b), counts, alpha=alpha)
    cross_entropy(scores, labels).backward()
    p = scores.softmax(1).detach()
    for c in range(4):
        a = 1.0 if counts[c] else alpha
        expected = a * sum((p[i, c] - (labels[i] == c).double()) * h[i] for i in range(6)) / 6
        torch.testing.assert_close(w.grad[c], expected)
    if alpha == 0:
        assert not w.grad[2:].any()
        assert not b.grad[2:].any()


def test_on_device_copies_once():
    client, x = view(), torch.ones(2)
    assert ops.on_device(client, "x", x, torch.device("cpu")) is x
    assert client.scratch == {}
    moved = ops.on_device(client, "x", x, torch.device("meta"))
    assert moved.device.type == "meta"
    assert ops.on_device(client, "x", x, torch.device("meta")) is moved


def test_value_with_gradient():
    x = torch.randn(3, requires_grad=True)
    value = ops.value_with_gradient(x, torch.tensor(5.0), torch.tensor([1.0, 2.0, 3.0]))
    (2 * value).backward()
    assert value.item() == 5
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    x = torch.randn(3, dtype=torch.bfloat16, requires_grad=True)
    ops.value_with_gradient(x, torch.tensor(5.0), torch.ones(3)).backward()
    assert x.grad.dtype == torch.bfloat16


def test_value_with_gradient_refuses_a_second_derivative():
    x = torch.randn(3, requires_grad=True)
    value = ops.value_with_gradient(x * 1, torch.tensor(5.0), torch.ones(3))
    scale = torch.ones((), requires_grad=True)
    (first,) = torch.autograd.grad(value * scale, x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.sum(), scale)


def naive_mmd(s, t, kernels=5, factor=2.0):
    both = s.tolist() + t.tolist()
    dist = [[sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in both] for x in both]
    n, m = len(both), len(s)
    bandwidth = sum(map(sum, dist)) / (n * n - n) / factor ** (kernels // 2)

    def mean(rows, columns):
        values = [
            sum(math.exp(-dist[i][j] / (bandwidth * factor**k)) for k in range(kernels)) for i in rows for j in columns
        ]
        return sum(values) / len(values)

    one, other = range(m), range(m, n)
    return mean(one, one) + mean(other, other) - 2 * mean(one, other)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4))
def test_mmd_equals_double_loops(n, m, d):
    s, t = torch.randn(n, d, dtype=torch.float64), torch.randn(m, d, dtype=torch.float64) + 1
    assert ops.mmd(s, t).item() == pytest.approx(naive_mmd(s, t), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (3, 1), (0, 2)])
def test_mmd_of_one_sample_on_either_side_is_zero_and_has_no_gradient(n, m):
    s, t = torch.randn(n, 2, requires_grad=True), torch.randn(m, 2)
    value = ops.mmd(s, t)
    value.backward()
    assert value.item() == 0
    assert torch.equal(s.grad, torch.zeros(n, 2))


def test_mmd_gradient():
    """The bandwidth carries no gradient, so the check holds it where it is, at the sample's own value."""
    s, t = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        both = torch.cat([s, t])
        bandwidth = torch.cdist(both, both).square().sum() / 30

    def fixed(s):
        sign = torch.cat([torch.full((3,), 1 / 3), torch.full((3,), -1 / 3)]).double()
        both = torch.cat([s, t])
        squared = (both[:, None] - both).square().sum(-1)
        kernel = sum(torch.exp(-squared / (bandwidth * 2.0**k)) for k in range(-2, 3))
        return (kernel * sign[:, None] * sign).sum()

    assert torch.autograd.gradcheck(fixed, s)
    (ours,), (theirs,) = torch.autograd.grad(ops.mmd(s, t), s), torch.autograd.grad(fixed(s), s)
    torch.testing.assert_close(ours, theirs)


def test_unit_vectors():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([row / math.sqrt(sum(v**2 for v in row.tolist())) for row in x])
    torch.testing.assert_close(ops.unit(x), expected)
    assert torch.autograd.gradcheck(ops.unit, x)
    zero = torch.zeros(2, 3, requires_grad=True)
    value = ops.unit(zero)
    value.sum().backward()
    assert not value.any()
    assert zero.grad.abs().max() <= 1
    assert ops.unit(torch.randn(2, 3).bfloat16()).dtype == torch.float32


def test_class_means_equal_a_loop():
    z, y = torch.randn(20, 3), torch.randint(0, 4, (20,))
    means, counts = ops.class_means(z.requires_grad_(), y, 6)
    assert not means.requires_grad
    assert torch.equal(counts, torch.bincount(y, minlength=6))
    for c in range(6):
        expected = z[y == c].mean(0) if (y == c).any() else torch.zeros(3)
        torch.testing.assert_close(means[c], expected.detach())


def test_global_prototypes_equal_a_loop():
    sums, counts = torch.randn(4, 5, 3), torch.randint(0, 9, (4, 5))
    counts[:, 3:] = 0
    sums[:, 3:] = 0
    before = {"prototypes": torch.randn(5, 3), "known": torch.tensor([True, True, False, True, False])}
    total = Total({"sums": sums.sum(0), "counts": counts.sum(0)}, clients=4)
    shared = ops.global_prototypes(total, {**before, "prior": counts})
    assert set(shared) == {"prototypes", "known", "prior"}
    assert shared["known"].tolist() == [True, True, True, True, False]
    for c in range(3):
        expected = sum(sums[k, c] for k in range(4)) / sum(int(counts[k, c]) for k in range(4))
        torch.testing.assert_close(shared["prototypes"][c], expected)
    assert torch.equal(shared["prototypes"][3:], before["prototypes"][3:])
    first = ops.global_prototypes(total, {})
    assert first["known"].tolist() == [True, True, True, False, False]
    assert not first["prototypes"][3:].any()


def test_a_private_model_is_kept_and_found_again():
    client, net = view(), torch.nn.BatchNorm1d(2)
    assert ops.private_model(client.state, "mine.") is None
    client.state["another"] = torch.ones(1)
    ops.keep_private(client, "mine.", net.state_dict())
    with torch.no_grad():
        net.weight.add_(1)  # a copy, not a view
    weights = ops.private_model(client.state, "mine.")
    assert list(weights) == list(net.state_dict())
    assert weights["weight"].tolist() == [1.0, 1.0]
    assert weights["num_batches_tracked"].dtype == torch.int64
