import math

import pytest
import torch
from loss_checks import assert_finite, drawn, naive_distillation
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedlmd import FedLMD, majority_labels
from fl_labelskew_plugins.methods.fedntd import not_true_distillation


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


def test_hand_numbers():
    z = torch.tensor([[9.0, 0.0, 0.0, 0.0]])
    g = torch.tensor([[0.0, 9.0, math.log(3), 0.0]])
    majority = torch.tensor([True, True, False, False])
    # a majority label: (0, 3/4, 1/4) against (1/3, 1/3, 1/3)
    expected = 0.75 * math.log(2.25) + 0.25 * math.log(0.75)
    assert not_true_distillation(z, g, torch.tensor([0]), masked=majority).item() == pytest.approx(expected, rel=1e-5)
    # a minority label: only class 2 is left, against (1/2, 1/2) for classes 1 and 2 if class 0 is negligible
    z = torch.tensor([[-99.0, 0.0, 0.0, 9.0]])
    ours = not_true_distillation(z, g, torch.tensor([3]), masked=majority)
    assert ours.item() == pytest.approx(math.log(2), rel=1e-5)


def test_a_sample_without_another_minority_label_counts_zero():
    z, g, _ = drawn(2, 3)
    y, majority = torch.tensor([2, 0]), torch.tensor([True, True, False])
    value = not_true_distillation(z.requires_grad_(), g, y, masked=majority)
    value.backward()
    assert value.item() == pytest.approx(naive_distillation(z[1:], g[1:], y[1:], 1.0, majority) / 2)
    assert not z.grad[0].any()
    assert z.grad[1, 1:].all()
    single = not_true_distillation(z[:1], g[:1], y[:1], masked=majority)
    assert single.item() == 0
    assert not torch.autograd.grad(single, z)[0].any()


@pytest.mark.parametrize("counts", [None, [9, 9, 9, 9, 9], [40, 0, 0, 0, 0], [10, 10, 9, 10, 10]])
def test_the_teacher_is_the_servers_model_without_this_clients_majority(world, counts):
    changes = {} if counts is None else {"counts": torch.tensor(counts)}
    method = FedLMD(FedLMD.Params(beta=0.3, tau=2.0))
    view, server = world.begun(method, **changes)
    batch = world.batch()
    terms = method.loss(batch, view)
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    majority = [n > view.counts.sum() / 5 for n in view.counts]
    expected = naive_distillation(batch.logits, server(batch.inputs), batch.labels, 2.0, majority)
    assert terms["distillation"].item() == pytest.approx(0.3 * expected, rel=1e-4)
    assert_finite(sum(terms.values()), *world.net.parameters())


def test_uniform_targets_need_no_model(world):
    method, view = FedLMD(FedLMD.Params(teacher="uniform")), world.client(frozen=None)
    method.before_round(view)
    assert view.scratch == {}
    batch = world.batch()
    majority = [True, True, True, False, False]
    expected = naive_distillation(batch.logits, torch.zeros(16, 5), batch.labels, 1.0, majority)
    assert method.terms(batch, view)["distillation"].item() == pytest.approx(expected, rel=1e-5)
