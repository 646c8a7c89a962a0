import doctest
import importlib

import pytest
import torch
from fl_labelskew_registry.contracts import ClientView, Federation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear

from fl_labelskew_plugins import ops


def view() -> ClientView:
    run = Federation(1, 1, 1, 1, 2, 1, 1, 1, 0)
    return ClientView(0, 0, torch.ones(2), {}, {}, torch.Generator(), 1, run)


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


@settings(max_examples=30, deadline=None)
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


@pytest.mark.parametrize("scaling", ["indicator", "proportional"])
def test_alpha_one_gives_the_same_tensor_back(scaling):
    logits = torch.randn(3, 2)
    assert ops.restricted_logits(logits, torch.tensor([0, 5]), alpha=1, scaling=scaling) is logits


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


def test_client_without_samples():
    logits = torch.ones(1, 3)
    for scaling in ("indicator", "proportional"):
        scaled = ops.restricted_logits(logits, torch.zeros(3, dtype=torch.long), alpha=0.5, scaling=scaling)
        assert scaled.tolist() == [[0.5] * 3]


def test_restricted_logits_gradcheck():
    z = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    n = torch.tensor([3, 0, 1, 0])
    for scaling in ("indicator", "proportional"):
        assert torch.autograd.gradcheck(lambda z, s=scaling: ops.restricted_logits(z, n, alpha=0.3, scaling=s), z)


def test_clear_errors():
    logits = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"`scaling` to be one of indicator, proportional but got 'both'"):
        ops.restricted_logits(logits, torch.ones(3), alpha=0.5, scaling="both")
    with pytest.raises(ValueError, match=r"`counts` to be of shape \(3,\) but got \(1,\)"):
        ops.restricted_logits(logits, torch.ones(1), alpha=0.5)


def test_full():
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool):
        assert ops.full(torch.ones(2).to(dtype)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(2, dtype=dtype)
        assert ops.full(x) is x


def test_full_precision_switches_autocast_off():
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert x.mm(x).dtype == torch.bfloat16
        with ops.full_precision(x.device):
            assert x.mm(x).dtype == torch.float32
    with ops.full_precision(x.device):
        assert x.mm(x).dtype == torch.float32


def test_on_device_copies_once():
    client, x = view(), torch.ones(2)
    assert ops.on_device(client, "x", x, torch.device("cpu")) is x
    assert client.scratch == {}
    moved = ops.on_device(client, "x", x, torch.device("meta"))
    assert moved.device.type == "meta"
    assert ops.on_device(client, "x", x, torch.device("meta")) is moved


def test_one_hot():
    labels = torch.tensor([2, 0, 2])
    expected = torch.nn.functional.one_hot(labels, 4).double()
    assert torch.equal(ops.one_hot(labels, 4, torch.float64), expected)


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


@pytest.mark.parametrize(
    "module", ["ops", "methods.fedrs", "methods.fedlc", "methods.fedshift", "methods.map", "methods.fedmr"]
)
def test_the_numbers_in_the_docstrings(module):
    failed, attempted = doctest.testmod(
        importlib.import_module(f"fl_labelskew_plugins.{module}"), extraglobs={"torch": torch}
    )
    assert attempted > 0
    assert failed == 0
