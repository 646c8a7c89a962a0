import pytest
import torch
from fl_labelskew_registry import load
from fl_labelskew_registry.testing import check_method
from labelskew_ldam import LDAM, margin_logits
from pydantic import ValidationError

from fl_labelskew_plugins.studies.check import check


def naive(logits, labels, counts, margin):
    out = logits.clone()
    for row, label in enumerate(labels.tolist()):
        out[row, label] = logits[row, label] - margin / max(int(counts[label]), 1) ** 0.25
    return out


def test_margins_equal_a_loop():
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 3, 3, 0, 2])
    counts = torch.tensor([16, 1, 0, 625])
    torch.testing.assert_close(margin_logits(logits, labels, counts, margin=0.7), naive(logits, labels, counts, 0.7))


def test_margins_by_hand():
    logits = margin_logits(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([16, 1]), margin=1.0)
    assert logits.tolist() == [[-0.5, 0.0], [0.0, -1.0]]


def test_margin_0_is_plain_cross_entropy():
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 3, 3, 0, 2])
    assert torch.equal(margin_logits(logits, labels, torch.tensor([16, 1, 0, 625]), margin=0.0), logits)


def test_params_are_checked():
    with pytest.raises(ValidationError):
        LDAM.Params(margin=-1.0)


def test_the_registry_finds_it():
    assert load("methods", "ldam") is LDAM


def test_its_hooks_return_what_runs_expect():
    check_method(LDAM)


def test_every_runtime_gives_the_same_numbers():  # those that are installed: MPI, silos; and a resumed run
    assert check("ldam") == []
