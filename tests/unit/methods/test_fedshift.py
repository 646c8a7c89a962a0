import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_totals import total_of

from fl_labelskew_plugins.methods.fedshift import (
    FedShift,
    counts_epsilon,
    global_prior,
    noisy_counts,
    shifted_logits,
    smoothed_counts,
    smoothed_distribution,
)
from fl_labelskew_plugins.methods.reweighting import Reweighting

HISTOGRAMS = st.integers(1, 6).flatmap(
    lambda c: st.lists(st.lists(st.integers(0, 300), min_size=c, max_size=c), min_size=1, max_size=5)
)


def naive_prior(histograms, smoothing):
    total = sum(sum(n) for n in histograms)
    prior = []
    for c in range(len(histograms[0])):
        p = 0.0
        for n in histograms:
            weight = sum(n) / total if total else 1 / len(histograms)
            share = (n[c] + smoothing) / (sum(n) + smoothing * len(n)) if sum(n) else 1 / len(n)
            p += weight * share
        prior.append(p)
    return prior


def prior_of(counts, smoothing):
    return global_prior(smoothed_counts(counts, smoothing=smoothing).sum(0))


@given(HISTOGRAMS, st.floats(1e-3, 1e3))
def test_equals_double_loops(histograms, smoothing):
    counts = torch.tensor(histograms)
    prior = prior_of(counts, smoothing)
    expected = naive_prior(histograms, smoothing)
    assert prior.tolist() == pytest.approx(expected, rel=1e-5)
    assert prior.sum().item() == pytest.approx(1, rel=1e-5)
    n = histograms[0]
    logits = torch.randn(2, len(n), dtype=torch.float64)
    ours = shifted_logits(logits, counts[0], torch.tensor(expected, dtype=torch.float64), smoothing=smoothing)
    assert ours.dtype == torch.float64
    for row in range(2):
        for c in range(len(n)):
            p = (n[c] + smoothing) / (sum(n) + smoothing * len(n)) if sum(n) else 1 / len(n)
            shifted = logits[row, c].item() + math.log(p / expected[c])
            assert ours[row, c].item() == pytest.approx(shifted, rel=1e-6, abs=1e-6)


def test_hand_numbers():
    counts = torch.tensor([[3, 0], [0, 1]])
    assert smoothed_distribution(counts, smoothing=1.0)[0].tolist() == pytest.approx([0.8, 0.2])
    assert smoothed_counts(counts, smoothing=1.0)[0].tolist() == pytest.approx([2.4, 0.6])
    prior = prior_of(counts, 1.0)
    assert prior.tolist() == pytest.approx([0.75 * 0.8 + 0.25 / 3, 0.75 * 0.2 + 0.25 * 2 / 3])
    shift = shifted_logits(torch.zeros(1, 2), counts[0], prior, smoothing=1.0)[0]
    assert shift.tolist() == pytest.approx([math.log(0.8 / prior[0]), math.log(0.2 / prior[1])], rel=1e-5)


def test_clients_without_samples():
    counts = torch.tensor([[0, 0], [3, 1]])
    fraction = counts.sum(1, keepdim=True) * 0.1
    prior = prior_of(counts, fraction)
    torch.testing.assert_close(prior, smoothed_distribution(counts[1], smoothing=0.4))
    assert prior_of(torch.zeros(2, 4), 1.0).tolist() == [0.25] * 4


@pytest.mark.parametrize("smoothing", [0, 0.0, -1.0])
def test_smoothing_must_be_positive(smoothing):
    with pytest.raises(ValueError, match="`smoothing` to be above 0"):
        smoothed_distribution(torch.tensor([1, 0]), smoothing=smoothing)


@pytest.mark.parametrize("kind", [FedShift, Reweighting])
@pytest.mark.parametrize(("clients", "smoothing"), [(1, 1.0), (2, 1e30), (3, 1e30), (7, 1e30), (10, 1e30)])
def test_one_client_or_huge_smoothing_is_plain_cross_entropy(world, assert_plain, clients, smoothing, kind):
    method = kind(kind.Params(smoothing=smoothing))
    histograms = [torch.randint(0, 300, (5,)) for _ in range(clients - 1)] + [world.counts]
    shared = method.open(total_of(*(method.opening(world.client(counts=n)) for n in histograms)))
    assert_plain(method, shared=shared)


@pytest.mark.parametrize("params", [{}, {"smoothing": 5.0}, {"smoothing_fraction": 0.1, "smoothing": 9.0}])
def test_opening_exchange_and_loss(world, params):
    method = FedShift(FedShift.Params(**params))
    others = torch.tensor([0, 0, 40, 50, 60])
    openings = []
    for i, n in enumerate((world.counts, others)):
        tensors = method.opening(world.client(id=i, counts=n))
        assert {name: tuple(t.shape) for name, t in tensors.items()} == method.opening_shapes(world.federation)
        openings.append(tensors)
    shared = method.open(total_of(*openings))
    assert list(shared) == ["prior"]
    counts = torch.stack([world.counts, others])
    a = 0.1 * counts.sum(1, keepdim=True) if "smoothing_fraction" in params else params.get("smoothing", 1.0)
    torch.testing.assert_close(shared["prior"], prior_of(counts, a))
    logits = torch.randn(3, 5)
    smoothing = a[1] if isinstance(a, torch.Tensor) else a
    ours = method.calibrate(logits, world.client(counts=others, shared=shared))
    torch.testing.assert_close(ours, shifted_logits(logits, others, shared["prior"], smoothing=smoothing))


def test_counts_of_far_more_than_all_samples_cause_a_warning(world, capsys):
    counts = torch.tensor([40, 30, 20, 10, 0])
    for params in ({"smoothing": 40.0}, {"smoothing_fraction": 0.1}, {}):
        method = FedShift(FedShift.Params(**params))
        sent = method.opening(world.client(counts=counts))["smoothed"]
        method.open(dataclasses.replace(total_of({"smoothed": sent}), samples=100))
        assert capsys.readouterr().err == ""
    method.open(dataclasses.replace(total_of({"smoothed": 2.1 * sent}), samples=100))
    assert (
        "the sum of all class counts in the opening is more than twice the number of training samples"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", [FedShift, Reweighting])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_on_the_counts(world, noise, kind):
    method = kind(kind.Params(count_noise=3.0, count_noise_type=noise))
    big = torch.full((5,), 1000)
    one = method.opening(world.client(counts=big))["smoothed"]
    noisy = noisy_counts(big, scale=3.0, noise=noise, generator=world.client().noise)
    assert torch.equal(one, smoothed_counts(noisy, smoothing=1.0))
    assert torch.equal(one, method.opening(world.client(counts=big))["smoothed"])
    assert 0 < (one - 1000).abs().max() < 50
    other = np.random.default_rng(3)
    assert not torch.equal(one, method.opening(world.client(counts=big, noise=other))["smoothed"])
    nobody = torch.zeros(5, dtype=torch.long)
    assert method.opening(world.client(counts=nobody))["smoothed"].min() >= 0
    prior = method.open(total_of({"smoothed": one}))["prior"]
    assert prior.sum().item() == pytest.approx(1)
    with pytest.raises(RuntimeError, match=r"client.noise"):
        method.opening(world.client(noise=None))


@pytest.mark.parametrize("b", [1.0, 4.0, 200.0])
def test_laplace_noise_has_the_laplace_distribution(b):
    n, centre = 200_000, 100_000
    noisy = noisy_counts(torch.full((n,), centre), scale=b, noise="laplace", generator=np.random.default_rng(0))
    noise = (noisy - centre).double()
    # rounded: |noise| <= t has the probability of the continuous variable up to t + 1/2
    for t in (0, round(b), round(3 * b)):
        expected = 1 - math.exp(-(t + 0.5) / b)
        assert (noise.abs() <= t).double().mean().item() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(n))
    assert noise.mean().item() == pytest.approx(0, abs=5 * math.sqrt(2) * b / math.sqrt(n))
    assert noise.var().item() == pytest.approx(2 * b * b + 1 / 12, rel=0.03)


def test_gaussian_noise_has_its_standard_deviation():
    counts = torch.full((100_000,), 10_000)
    noisy = noisy_counts(counts, scale=30.0, noise="gaussian", generator=np.random.default_rng(0))
    assert (noisy - counts).double().std().item() == pytest.approx(30, rel=0.02)


def test_epsilon_of_the_counts(federation):
    # one sample replaced moves two counts by one: with b = 4, densities differ by at most e^(2/4)
    privacy = FedShift(FedShift.Params(count_noise=4.0)).report(federation)["privacy"]
    assert (privacy["epsilon"], privacy["delta"]) == (0.5, 0.0)
    assert "replaced" in privacy["holds_for"]
    assert counts_epsilon(0.5) == 4.0
    assert FedShift().report(federation) == {}
    assert FedShift(FedShift.Params(count_noise=4.0, count_noise_type="gaussian")).report(federation) == {}


def test_negative_counts_leave_a_positive_prior():
    sent = ({"smoothed": torch.tensor([-9.0, 3.0])}, {"smoothed": torch.tensor([1.0, 1.0])})
    prior = FedShift().open(total_of(*sent))["prior"]
    assert prior.tolist() == pytest.approx([1 / 5, 4 / 5])  # of a class with a negative sum, one sample
