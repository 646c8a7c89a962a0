import math

import pytest
import torch
from fl_labelskew_registry import load
from fl_labelskew_registry.testing import check_method
from labelskew_not_true import NotTrue, not_true_distillation
from pydantic import ValidationError

from fl_labelskew_plugins.studies.check import check


def naive(student, teacher, labels, tau):
    total = 0.0
    for z, g, label in zip(student.tolist(), teacher.tolist(), labels.tolist(), strict=True):
        others = [c for c in range(len(z)) if c != label]
        norm, norm_g = (sum(math.exp(logits[c] / tau) for c in others) for logits in (z, g))
        for c in others:
            p, q = math.exp(g[c] / tau) / norm_g, math.exp(z[c] / tau) / norm
            total += p * math.log(p / q)
    return tau**2 * total / len(student)


@pytest.mark.parametrize("tau", [1.0, 2.5])
def test_the_distillation_equals_a_loop(tau):
    student, teacher, labels = torch.randn(6, 4), torch.randn(6, 4), torch.tensor([0, 1, 3, 3, 0, 2])
    value = not_true_distillation(student, teacher, labels, tau=tau)
    assert value.item() == pytest.approx(naive(student, teacher, labels, tau), rel=1e-5)


def test_the_distillation_by_hand():
    # without class 0, the student has (1/2, 1/2) and the teacher (3/4, 1/4)
    student, teacher = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, math.log(3), 0.0]])
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert not_true_distillation(student, teacher, torch.tensor([0]), tau=1.0).item() == pytest.approx(expected)


def test_the_label_s_logit_has_no_gradient():
    student = torch.randn(6, 4, requires_grad=True)
    labels = torch.tensor([0, 1, 3, 3, 0, 2])
    not_true_distillation(student, torch.randn(6, 4), labels, tau=1.0).backward()
    assert student.grad.gather(1, labels[:, None]).abs().max() == 0
    assert student.grad.abs().max() > 0


def test_params_are_checked():
    with pytest.raises(ValidationError):
        NotTrue.Params(tau=0.0)


def test_the_registry_finds_it():
    assert load("methods", "not_true") is NotTrue


def test_its_hooks_return_what_runs_expect():
    check_method(NotTrue)


def test_every_runtime_gives_the_same_numbers():  # those that are installed: MPI, silos; and a resumed run
    assert check("not_true") == []
