import dataclasses
import math

import pytest
import torch
from fl_labelskew_registry.contracts import Total

from fl_labelskew_plugins.methods.ccvr import CCVR, moments, virtual_features


def test_moments_equal_those_of_the_pooled_features():
    z, labels = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % 3
    labels[labels == 2] = 1
    labels[0] = 2
    by_class = [z[labels == c] for c in range(4)]  # none of class 3, one sample of class 2
    sums = torch.stack([part.sum(0) for part in by_class])
    squares = torch.stack([sum((torch.outer(row, row) for row in part), torch.zeros(4, 4)) for part in by_class])
    means, covariances = moments(sums, squares, labels.bincount(minlength=4))
    for c in (0, 1):
        torch.testing.assert_close(means[c], by_class[c].mean(0))
        torch.testing.assert_close(covariances[c], by_class[c].T.cov())
    assert torch.equal(means[2], z[0])
    assert not covariances[2:].any()


def test_virtual_features_have_these_moments():
    covariance = torch.tensor([[[2.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    means = torch.tensor([[1.0, -1.0], [3.0, 4.0]], dtype=torch.float64)
    drawn = virtual_features(means, covariance, 20000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(1), means, atol=0.05, rtol=0)
    torch.testing.assert_close(drawn[0].T.cov(), covariance[0], atol=0.06, rtol=0)
    assert torch.equal(drawn[1], means[1].expand(20000, 2))


@pytest.mark.parametrize("optimizer", ["FedOpt", "FedDC"])
def test_the_closing_exchange_only_changes_the_classifier(digits, optimizer):
    """The optimisers keep momentum or drifts, which change nothing else."""
    run = digits("ccvr", optimizer=optimizer, epochs=1)
    run.play([0, 1])
    before = {name: value.clone() for name, value in run.server.weights.items()}
    late = dataclasses.replace(run.server.federation, num_samples=1)  # samples of clients that join late are missing
    run.server.federation = late
    results = run.play([0, 1, 2])  # round 2 of 2
    changed = {name for name, value in run.server.weights.items() if not torch.equal(value, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(value, before[name]) for name, value in results[0].upload.items())
    assert not results[0].loss_terms


def test_only_the_closing_exchange_sends_sums_of_all_clients(digits):
    run = digits("ccvr", epochs=0)
    assert not run.play([0, 1])[0].contributions
    before = run.server.weights
    results = run.play([0, 1, 2])
    counts = sum(result.contributions["counts"] for result in results.values())
    assert torch.equal(counts, sum(run.trainer.counts(k) for k in range(3)))
    assert all(torch.equal(value, before[name]) for name, value in run.server.weights.items())


def test_a_classifier_that_neglects_classes_is_repaired(world):
    """Features are well separated, but the classifier prefers class 0."""
    centres = torch.eye(3, dtype=torch.float64) * 4
    z = (centres[:, None] + 0.1 * torch.randn(3, 50, 3, dtype=torch.float64)).flatten(0, 1)
    labels = torch.arange(3).repeat_interleave(50)
    sums = torch.stack([z[labels == c].sum(0) for c in range(3)])
    squares = torch.stack([z[labels == c].T @ z[labels == c] for c in range(3)])
    method = CCVR()
    shared = method.combine(Total({"sums": sums, "squares": squares, "counts": labels.bincount()}, 2, closing=True), {})
    weights = {"classifier.weight": torch.zeros(3, 3), "classifier.bias": torch.tensor([9.0, 0.0, 0.0])}
    new = method.after_aggregation(weights, world.server(shared))
    predicted = (z.float() @ new["classifier.weight"].T + new["classifier.bias"]).argmax(1)
    assert torch.equal(predicted, labels)
    assert method.after_aggregation(weights, world.server()) is weights


def test_sums_of_another_round_or_wrong_sums_change_nothing(world, capsys):
    sums = {"sums": torch.eye(2), "squares": torch.stack([torch.eye(2)] * 2), "counts": torch.tensor([5, 5])}
    kept = {"prior": torch.ones(2)}
    assert CCVR().combine(Total(sums, 2), kept) == kept
    assert CCVR().combine(Total({"squares": sums["squares"]}, 2, closing=True), kept) == kept
    assert "CCVR: no sums in the closing exchange; the classifier stays as it is" in capsys.readouterr().err
    for counts in ([5, 5], [10, -1], [0, 0]):
        wrong = {**sums, "counts": torch.tensor(counts)}
        assert CCVR().combine(Total(wrong, 2, closing=True, samples=9), kept) == kept
        assert "the counts in the closing exchange are negative, all 0, or more than the" in capsys.readouterr().err
    right = {**sums, "counts": torch.tensor([5, 4])}
    assert CCVR().combine(Total(right, 2, closing=True, samples=9), kept).keys() == {*kept, *right}


def test_impossible_covariances_leave_the_classifier(world, capsys):
    huge = {"sums": torch.eye(2), "squares": torch.full((2, 2, 2), math.nan), "counts": torch.tensor([5, 5])}
    weights = {"classifier.weight": torch.randn(2, 2), "classifier.bias": torch.zeros(2)}
    assert CCVR().after_aggregation(weights, world.server(huge)) is weights
    assert "CCVR: the covariances of the features are too large or not numbers; the cla" in capsys.readouterr().err


def test_a_class_that_no_client_holds_is_not_trained(world):
    shared = {"sums": torch.eye(2), "squares": torch.stack([torch.eye(2)] * 2), "counts": torch.tensor([5, 0])}
    weights = {"classifier.weight": torch.randn(2, 2), "classifier.bias": torch.zeros(2)}
    new = CCVR().after_aggregation(weights, world.server(shared))
    assert new["classifier.bias"].isfinite().all()
