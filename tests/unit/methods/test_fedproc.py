import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import assert_finite
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedproc import FedProc, contrast_share, prototype_contrast


def naive(z, y, g, known, temperature):
    def cosine(a, b):
        length = math.sqrt(sum(v * v for v in a)) * math.sqrt(sum(v * v for v in b))
        return sum(v * w for v, w in zip(a, b, strict=True)) / length if length else 0.0

    losses = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        if not known[label]:
            losses.append(0.0)
            continue
        e = {c: math.exp(cosine(row, p) / temperature) for c, p in enumerate(g.tolist()) if known[c]}
        losses.append(-math.log(e[label] / sum(e.values())))
    return losses


@given(
    rows=st.integers(1, 8),
    d=st.integers(1, 5),
    known=st.lists(st.booleans(), min_size=1, max_size=6),
    temperature=st.floats(0.1, 5),
    seed=st.integers(0, 10**6),
)
def test_equals_loops(*, rows, d, known, temperature, seed):
    torch.manual_seed(seed)
    z, g = torch.randn(rows, d, dtype=torch.float64), torch.randn(len(known), d, dtype=torch.float64)
    y = torch.randint(0, len(known), (rows,))
    ours = prototype_contrast(z, y, g, torch.tensor(known), temperature=temperature)
    assert ours.tolist() == pytest.approx(naive(z, y, g, known, temperature), rel=1e-9, abs=1e-12)


def test_hand_numbers():
    g = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])  # lengths do not count
    z, y = torch.tensor([[7.0, 0.0]]), torch.tensor([0])
    e = math.e
    every = prototype_contrast(z, y, g, torch.tensor([True, True, True]), temperature=1.0)
    assert every.item() == pytest.approx(-math.log(e / (e + 1 + 1 / e)), rel=1e-5)
    some = prototype_contrast(z, y, g, torch.tensor([True, False, True]), temperature=1.0)
    assert some.item() == pytest.approx(-math.log(e / (e + 1 / e)), rel=1e-5)
    alone = prototype_contrast(z, y, g, torch.tensor([True, False, False]))
    assert alone.item() == 0  # no other class to be told from


def test_missing_prototypes_are_never_read():
    z, g = torch.randn(4, 2, requires_grad=True), torch.randn(3, 2)
    g[2] = torch.nan
    y = torch.tensor([0, 1, 2, 2])
    for known in (torch.tensor([True, True, False]), torch.zeros(3, dtype=torch.bool)):
        value = prototype_contrast(z, y, g, known)
        z.grad = None
        assert_finite(value, z)
        assert not value[~known[y]].any()
        assert not z.grad[~known[y]].any()


def test_share():
    assert [contrast_share(t, 4) for t in range(4)] == [1, 0.75, 0.5, 0.25]
    assert contrast_share(2, 4, mu=0.1) == pytest.approx(0.05)


def shared():
    return {"prototypes": torch.randn(5, 3), "known": torch.tensor([True, True, False, True, False])}


def test_before_the_first_prototypes_it_is_plain_cross_entropy(assert_plain):
    assert_plain(FedProc())


def test_linear_schedule(world):
    tensors, batch = shared(), world.batch()  # classes 0, 1 and 2, of which 2 has no prototype
    terms = FedProc().loss(batch, world.client(shared=tensors, round=5))  # of 20
    losses = naive(batch.features, batch.labels, *tensors.values(), 0.5)
    entropies = cross_entropy(batch.logits, batch.labels, reduction="none")
    shares = torch.tensor([0.25 if y < 2 else 1.0 for y in batch.labels.tolist()])
    assert terms["contrast"].item() == pytest.approx(0.75 * sum(losses) / len(losses), rel=1e-5)
    torch.testing.assert_close(terms["cross_entropy"], (shares * entropies).mean())
    assert_finite(sum(terms.values()), *world.net.parameters())


def test_constant_schedule(world):
    tensors, batch = shared(), world.batch()
    method = FedProc(FedProc.Params(mu=0.01, schedule="constant", temperature=2.0))
    first, last = (method.loss(batch, world.client(shared=tensors, round=t)) for t in (0, 19))
    assert first == last
    losses = naive(batch.features, batch.labels, *tensors.values(), 2.0)
    assert first["contrast"].item() == pytest.approx(0.01 * sum(losses) / len(losses), rel=1e-5)
    assert torch.equal(first["cross_entropy"], cross_entropy(batch.logits, batch.labels))
