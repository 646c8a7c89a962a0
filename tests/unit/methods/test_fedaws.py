import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_labelskew_plugins.methods.fedaws import FedAwS, spread, spreadout


def cosine(u, v):
    return sum(a * b for a, b in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


def naive_spreadout(w, margin):
    rows = w.tolist()
    pairs = [(one, other) for c, one in enumerate(rows) for i, other in enumerate(rows) if i != c]
    return sum(max(0.0, margin - (1 - cosine(one, other))) ** 2 for one, other in pairs)


@given(st.integers(1, 7), st.integers(1, 5), st.floats(0.1, 2))
def test_spreadout_equals_loops(classes, d, margin):
    w = torch.randn(classes, d, dtype=torch.float64)
    assert spreadout(w, margin=margin).item() == pytest.approx(naive_spreadout(w, margin), rel=1e-9, abs=1e-9)


def test_hand_numbers():
    w = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])  # distances 1, 1 and 2
    assert spreadout(w, margin=1.5).item() == pytest.approx(4 * 0.25)
    assert spreadout(w, margin=1.0).item() == 0


def test_step():
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(spreadout(w, margin=1.5), w)
    with torch.no_grad():
        torch.testing.assert_close(spread(w, rate=0.05, margin=1.5), w - 0.05 * slope)
    assert spread(w.bfloat16(), rate=0.1).dtype == torch.bfloat16
    assert spreadout(w.bfloat16()).dtype == torch.float32


def test_zero_and_single_proxies_do_not_move():
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.1]])
    new = spread(w, rate=0.1)
    assert new.isfinite().all()
    assert torch.equal(new[0], w[0])
    assert not torch.equal(new[1:], w[1:])
    assert torch.equal(spread(w[1:2], rate=0.1), w[1:2])
    assert spread(1e30 * w, rate=0.1).isfinite().all()


def test_the_server_spreads_only_the_class_embeddings_and_in_a_copy(world):
    weights = {k: v.clone() for k, v in world.net.state_dict().items()}
    new = FedAwS(FedAwS.Params(rate=0.3, margin=1.5)).after_aggregation(weights, world.server())
    assert torch.equal(new["classifier.weight"], spread(weights["classifier.weight"], rate=0.3, margin=1.5))
    assert torch.equal(weights["classifier.weight"], world.net.classifier.weight)
    assert [k for k, v in weights.items() if not torch.equal(new[k], v)] == ["classifier.weight"]
