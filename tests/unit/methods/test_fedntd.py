import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_checks import assert_finite, drawn, naive_distillation
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedlmd import majority_labels
from fl_labelskew_plugins.methods.fedntd import FedNTD, not_true_distillation


@settings(max_examples=100)
@given(st.integers(1, 6), st.integers(2, 6), st.floats(0.5, 5), st.booleans(), st.integers(0, 10**6))
def test_distillation_equals_a_loop(rows, classes, tau, masks, seed):
    """With ``masks``, as in FedLMD."""
    z, g, y = drawn(rows, classes, seed)
    counts = torch.randint(5, (classes,), generator=torch.Generator().manual_seed(seed))
    majority = majority_labels(counts) if masks else None
    ours = not_true_distillation(z, g, y, tau=tau, masked=majority)
    assert ours.item() == pytest.approx(naive_distillation(z, g, y, tau, majority), rel=1e-9, abs=1e-12)


def test_hand_numbers():
    z = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    g = torch.tensor([[0.0, math.log(3), 0.0], [0.0, 0.0, 0.0]])
    labels = torch.tensor([0, 2])
    # the first sample: (3/4, 1/4) against (1/2, 1/2); the second: equal outputs
    first = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert not_true_distillation(z, g, labels).item() == pytest.approx(first / 2, rel=1e-5)
    # temperature 2 takes the root of the odds: 3 becomes sqrt(3); the factor is 4
    p = math.sqrt(3) / (1 + math.sqrt(3))
    first = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert not_true_distillation(z, g, labels, tau=2.0).item() == pytest.approx(4 * first / 2, rel=1e-5)


def test_the_teacher_is_the_servers_model(world):
    method = FedNTD(FedNTD.Params(beta=0.3, tau=2.0))
    view, server = world.begun(method)
    batch = world.batch()
    terms = method.loss(batch, view)
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    expected = naive_distillation(batch.logits, server(batch.inputs), batch.labels, 2.0)
    assert terms["distillation"].item() == pytest.approx(0.3 * expected, rel=1e-4)
    assert_finite(sum(terms.values()), *world.net.parameters())
