import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_checks import assert_finite, naive_divergence
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.combined import combine
from fl_labelskew_plugins.methods.fedlc import FedLC, calibrated_logits
from fl_labelskew_plugins.methods.fedvls import FedVLS, logit_suppression, vacant_class_distillation


def naive_suppression(logits, labels, counts, form):
    total, classes = 0.0, len(counts)
    for c, n in enumerate(counts):
        if n == 0:
            continue
        share, exponentials = n / sum(counts), []
        for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
            if y != c:
                exponentials.append(math.exp(z[c]) / (classes * share if form == "code" else 1))
            elif form == "code":
                exponentials.append(1.0)
        if exponentials:
            total += share * math.log(sum(exponentials) / len(labels))
    return total


def test_distillation_by_hand():
    # vacant classes 1 and 3: the teacher has 3/4 and 1/4, the client 1/2 and 1/2
    z, teacher = torch.tensor([[7.0, 2.0, -7.0, 2.0]]), torch.tensor([[0.0, math.log(3), 9.0, 0.0]])
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert vacant_class_distillation(z, teacher, torch.tensor([1, 3])).item() == pytest.approx(expected, rel=1e-5)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_distillation_equals_a_loop(rows, vacant, seed):
    torch.manual_seed(seed)
    z, teacher = 3 * torch.randn(2, rows, 6, dtype=torch.float64)
    classes = torch.randperm(6)[:vacant]
    ours = vacant_class_distillation(z, teacher, classes).item()
    assert ours == pytest.approx(naive_divergence(z, teacher, classes.tolist()), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("form", ["paper", "code"])
@given(st.integers(1, 6), st.integers(0, 10**6))
def test_suppression_equals_a_loop(form, rows, seed):
    torch.manual_seed(seed)
    counts = torch.tensor([40, 3, 0, 7])
    z, labels = 3 * torch.randn(rows, 4, dtype=torch.float64), torch.tensor([0, 1, 3])[torch.randint(3, (rows,))]
    expected = naive_suppression(z, labels, counts.tolist(), form)
    assert logit_suppression(z, labels, counts, form=form).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_suppression_by_hand():
    z, labels, counts = torch.log(torch.tensor([[1.0, 2.0, 9.0], [4.0, 1.0, 9.0]])), torch.tensor([0, 1]), [3, 1, 0]
    # class 0: 4 in the second sample; class 1: 2 in the first; both are divided by two samples
    paper = 0.75 * math.log(4 / 2) + 0.25 * math.log(2 / 2)
    code = 0.75 * math.log((1 + 4 / 2.25) / 2) + 0.25 * math.log((1 + 2 / 0.75) / 2)
    for form, expected in (("paper", paper), ("code", code)):
        ours = logit_suppression(z, labels, torch.tensor(counts), form=form)
        assert ours.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", ["paper", "code"])
def test_a_client_with_one_class_has_nothing_to_suppress(form):
    z, labels, counts = torch.randn(4, 3, requires_grad=True), torch.full((4,), 1), torch.tensor([0, 12, 0])
    loss = logit_suppression(z, labels, counts, form=form)
    loss.backward()
    assert loss.item() == 0
    assert not z.grad.any()


@pytest.mark.parametrize("form", ["paper", "code"])
def test_the_loss_is_the_sum_of_algorithm_1(world, form):
    method = FedVLS(FedVLS.Params(lam=2.0, suppression=0.5, form=form))
    view, server = world.begun(method)
    batch, counts = world.batch(), world.counts.tolist()
    terms = method.loss(batch, view)
    calibrated = 0.0
    for z, y in zip(batch.logits.tolist(), batch.labels.tolist(), strict=True):
        scores = [n / 40 * math.exp(v) for n, v in zip(counts, z, strict=True)]
        calibrated -= math.log(scores[y] / sum(scores)) / 16
    distillation = naive_divergence(batch.logits, server(batch.inputs), [3, 4])
    suppression = naive_suppression(batch.logits, batch.labels, counts, form)
    values = {name: term.item() for name, term in terms.items()}
    expected = {"cross_entropy": calibrated, "distillation": 2 * distillation, "suppression": 0.5 * suppression}
    assert values == pytest.approx(expected, rel=1e-4)
    assert_finite(sum(terms.values()), *world.net.parameters())


def test_vacant_proxies_learn_only_from_the_distillation(world):
    def gradient(**weights):
        method, view = FedVLS(FedVLS.Params(suppression=0.5, **weights)), world.client()
        method.before_round(view)
        world.net.classifier.weight.grad = None
        with torch.no_grad():
            world.net.classifier.weight.add_(torch.randn(5, 3))
        sum(method.loss(world.batch(), view).values()).backward()
        return world.net.classifier.weight.grad[3:]

    assert not gradient(lam=0.0).any()
    assert gradient(lam=0.1).all()


@pytest.mark.parametrize(("counts", "vacant"), [([9, 1, 2, 3, 4], 0), ([9, 1, 2, 3, 0], 1), ([19, 0, 0, 0, 0], 4)])
def test_a_client_without_two_vacant_classes_has_no_teacher(world, counts, vacant):
    method, view = FedVLS(), world.client(counts=torch.tensor(counts))
    method.before_round(view)
    batch = world.batch()
    batch.labels = torch.zeros_like(batch.labels)
    terms = method.loss(batch, view)
    assert ("distillation" in terms) == (vacant > 1)
    assert all(term.isfinite() for term in terms.values())


def test_a_combination_may_replace_the_calibration(world):
    batch = world.batch()
    both = combine({"fedlc": FedLC(), "fedvls": FedVLS(FedVLS.Params(calibration="none"))})
    view = world.client()
    both.before_round(view)
    terms = both.loss(batch, view)
    lowered = calibrated_logits(batch.logits, world.counts, tau=1.0)
    assert torch.equal(terms["cross_entropy"], cross_entropy(lowered, batch.labels))
