import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_checks import assert_finite, softmax
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedlmd import FedLMD, label_masking_distillation, majority_labels
from fl_labelskew_plugins.methods.fedntd import not_true_distillation


def naive(student, teacher, labels, majority, tau):
    """Sample by sample and class by class."""
    total = 0.0
    for z, g, y in zip(student.tolist(), teacher.tolist(), labels.tolist(), strict=True):
        others = [c for c in range(len(z)) if c != y]
        taught = [c for c in others if not majority[c]]
        if not taught:
            continue
        q = dict(zip(others, softmax([z[c] for c in others], tau), strict=True))
        p = softmax([g[c] for c in taught], tau)
        total += sum(b * math.log(b / q[c]) for c, b in zip(taught, p, strict=True))
    return tau**2 * total / len(labels)


def drawn(rows, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z, g = torch.randn(2, rows, classes, dtype=torch.float64, generator=generator) * 2
    return z, g, torch.randint(classes, (rows,), generator=generator)


@pytest.mark.parametrize(
    ("counts", "majority"),
    [
        ([5, 3, 0, 0], [True, True, False, False]),
        ([9, 2, 1, 0], [True, False, False, False]),  # a rare class is a minority label
        ([4, 2, 1, 1], [True, False, False, False]),  # the mean itself is not above the mean
        ([7, 0, 0, 0], [True, False, False, False]),  # a client with one class
        ([3, 3, 3, 3], [False, False, False, False]),
        ([8, 7, 7, 1], [True, True, True, False]),
    ],
)
def test_a_majority_label_has_more_samples_than_the_mean_of_all_classes(counts, majority):
    assert majority_labels(torch.tensor(counts)).tolist() == majority


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(2, 6), st.floats(0.5, 5), st.integers(0, 10**6))
def test_distillation_equals_a_loop(rows, classes, tau, seed):
    z, g, y = drawn(rows, classes, seed)
    majority = majority_labels(torch.randint(5, (classes,), generator=torch.Generator().manual_seed(seed)))
    ours = label_masking_distillation(z, g, y, majority, tau=tau)
    assert ours.item() == pytest.approx(naive(z, g, y, majority, tau), rel=1e-9, abs=1e-12)


def test_hand_numbers():
    z = torch.tensor([[9.0, 0.0, 0.0, 0.0]])
    g = torch.tensor([[0.0, 9.0, math.log(3), 0.0]])
    majority = torch.tensor([True, True, False, False])
    # a majority label: (0, 3/4, 1/4) against (1/3, 1/3, 1/3)
    expected = 0.75 * math.log(2.25) + 0.25 * math.log(0.75)
    assert label_masking_distillation(z, g, torch.tensor([0]), majority).item() == pytest.approx(expected, rel=1e-5)
    # a minority label: only class 2 is left, against (1/2, 1/2) for classes 1 and 2 if class 0 is negligible
    z = torch.tensor([[-99.0, 0.0, 0.0, 9.0]])
    assert label_masking_distillation(z, g, torch.tensor([3]), majority).item() == pytest.approx(math.log(2), rel=1e-5)


def test_without_majority_labels_it_is_not_true_distillation():
    z, g, y = drawn(5, 4)
    none = majority_labels(torch.full((4,), 7))
    assert torch.equal(label_masking_distillation(z, g, y, none, tau=2.0), not_true_distillation(z, g, y, tau=2.0))


def test_the_teachers_outputs_for_majority_labels_have_no_effect():
    z, g, y = drawn(5, 4)
    majority = torch.tensor([True, True, False, False])
    before = label_masking_distillation(z, g, y, majority)
    g[:, :2] += 50 * torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(label_masking_distillation(z, g, y, majority), before)
    g[:, 2] += 1
    assert not torch.equal(label_masking_distillation(z, g, y, majority), before)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_gradients_of_labels_majority_and_minority_logits(tau):
    z, g, _ = drawn(5, 5)
    y, majority = torch.tensor([0, 1, 1, 0, 2]), torch.tensor([True, True, False, False, False])
    label_masking_distillation(z.requires_grad_(), g, y, majority, tau=tau).backward()
    for n in range(5):
        others = [c for c in range(5) if c != y[n]]
        q = softmax([z[n, c].item() for c in others], tau)
        taught = [c for c in others if not majority[c]]
        p = dict(zip(taught, softmax([g[n, c].item() for c in taught], tau), strict=True))
        expected = {c: tau * (a - p.get(c, 0)) / 5 for c, a in zip(others, q, strict=True)}
        assert z.grad[n].tolist() == pytest.approx([expected.get(c, 0) for c in range(5)], rel=1e-9, abs=1e-15)
        assert z.grad[n, y[n]] == 0
        assert all(z.grad[n, c] > 0 for c in others if majority[c])  # a step lowers them


def test_a_sample_without_another_minority_label_counts_zero():
    z, g, _ = drawn(2, 3)
    y, majority = torch.tensor([2, 0]), torch.tensor([True, True, False])
    value = label_masking_distillation(z.requires_grad_(), g, y, majority)
    value.backward()
    assert value.item() == pytest.approx(naive(z[1:], g[1:], y[1:], majority, 1.0) / 2)
    assert not z.grad[0].any()
    assert z.grad[1, 1:].all()
    single = label_masking_distillation(z[:1], g[:1], y[:1], majority)
    assert single.item() == 0
    assert not torch.autograd.grad(single, z)[0].any()


def test_equal_outputs_of_the_teacher_are_a_uniform_target():
    z, _, y = drawn(6, 5)
    majority = torch.tensor([True, False, False, True, False])
    expected = 0.0
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        taught = [c for c in (1, 2, 4) if c != label]
        total = sum(math.exp(v) for c, v in enumerate(row) if c != label)
        expected += sum(math.log(total / math.exp(row[c]) / len(taught)) / len(taught) for c in taught)
    ours = label_masking_distillation(z, torch.zeros_like(z), y, majority)
    assert ours.item() == pytest.approx(expected / 6, rel=1e-9)


def test_gradcheck_and_precision():
    z, g, y = drawn(4, 5)
    majority = torch.tensor([True, False, False, True, False])
    assert torch.autograd.gradcheck(
        lambda z: label_masking_distillation(z, g, y, majority, tau=2.0), z.requires_grad_()
    )
    half = label_masking_distillation(z.bfloat16(), g.bfloat16(), y, majority)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(naive(z.bfloat16(), g.bfloat16(), y, majority, 1.0), rel=1e-5)


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e4, 1e6])
@pytest.mark.parametrize("majority", [[True, False, False], [True, True, False]])
def test_extreme_logits_have_a_finite_gradient(size, majority):
    z, g, _ = drawn(3, 3)
    local = (size * z.float()).requires_grad_()
    y = torch.tensor([0, 1, 2])
    assert_finite(label_masking_distillation(local, size * g.float(), y, torch.tensor(majority)), local)


@pytest.mark.parametrize("teacher", ["global", "uniform"])
def test_beta_zero_keeps_no_teacher(world, assert_plain, teacher):
    method, view = FedLMD(FedLMD.Params(beta=0.0, teacher=teacher)), world.client()
    method.before_round(view)
    assert view.scratch == {}
    assert_plain(method, scratch=view.scratch)


@pytest.mark.parametrize("counts", [None, [9, 9, 9, 9, 9], [40, 0, 0, 0, 0], [10, 10, 9, 10, 10]])
def test_the_teacher_is_the_servers_model_without_this_clients_majority(world, counts):
    changes = {} if counts is None else {"counts": torch.tensor(counts)}
    method, view = FedLMD(FedLMD.Params(beta=0.3, tau=2.0)), world.client(**changes)
    method.before_round(view)
    server = view.frozen(world.net.state_dict())
    with torch.no_grad():
        world.net.body[0].weight.add_(0.5)  # training has begun
        world.net.classifier.weight.mul_(2)
    batch = world.batch()
    terms = method.loss(batch, view)
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    majority = [n > view.counts.sum() / 5 for n in view.counts]
    expected = naive(batch.logits, server(batch.inputs), batch.labels, majority, 2.0)
    assert terms["distillation"].item() == pytest.approx(0.3 * expected, rel=1e-4)
    assert_finite(sum(terms.values()), *world.net.parameters())
    assert all(p.grad is None for p in view.scratch["fedlmd.teacher"].parameters())


def test_uniform_targets_need_no_model(world):
    method, view = FedLMD(FedLMD.Params(teacher="uniform")), world.client(frozen=None)
    method.before_round(view)
    assert view.scratch == {}
    batch = world.batch()
    majority = [True, True, True, False, False]
    expected = naive(batch.logits, torch.zeros(16, 5), batch.labels, majority, 1.0)
    assert method.terms(batch, view)["distillation"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("teacher", ["global", "uniform"])
def test_two_rounds_on_digits(digits, teacher):
    run = digits("fedlmd", teacher=teacher)
    for clients in ([0, 1], [1, 2]):
        for result in run.play(clients).values():
            assert result.loss_terms["distillation"] > 0
            assert result.state == {}


def test_deviations():
    assert FedLMD(FedLMD.Params(beta=0.0, teacher="uniform")).deviations() == []
    assert ["only minority label" in line for line in FedLMD().deviations()] == [True]
    assert "C - B - 1" in FedLMD(FedLMD.Params(teacher="uniform")).deviations()[1]
