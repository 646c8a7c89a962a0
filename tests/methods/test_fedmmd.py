import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import assert_finite
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.methods.fedmmd import SIGMAS, FedMMD, two_stream_loss
from fl_labelskew_plugins.ops import mmd


def naive_fixed(s, t):
    """The printed form of the discrepancy, with the variances of the authors' code."""

    def mean(xs, ys):
        total = 0.0
        for x in xs:
            for y in ys:
                squared = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
                total += sum(math.exp(-squared / (2 * sigma)) for sigma in SIGMAS)
        return total / (len(xs) * len(ys))

    s, t = s.tolist(), t.tolist()
    return mean(s, s) + mean(t, t) - 2 * mean(s, t)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(1, 4))
def test_fixed_bandwidths_equal_double_loops(rows, d):
    s, t = torch.randn(2, rows, d, dtype=torch.float64)
    assert two_stream_loss(s, t, bandwidths="fixed").item() == pytest.approx(naive_fixed(s, t), rel=1e-9, abs=1e-12)
    assert torch.equal(two_stream_loss(s, t), mmd(s, t))


def test_nineteen_kernels():
    assert len(SIGMAS) == 19
    assert (min(SIGMAS), max(SIGMAS)) == (1e-6, 1e6)
    far = two_stream_loss(torch.zeros(2, 1), torch.full((2, 1), 1e6), bandwidths="fixed")
    assert far.item() == pytest.approx(38, rel=1e-6)  # no kernel reaches that far


@pytest.mark.parametrize("bandwidths", ["mean", "fixed"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
def test_equal_and_huge_outputs_have_a_gradient(bandwidths, rows, size):
    frozen = size * torch.randn(rows, 3)
    for start in (frozen.clone(), size * torch.randn(rows, 3)):
        local = start.requires_grad_()
        assert_finite(two_stream_loss(local, frozen, bandwidths=bandwidths), local)


@pytest.mark.parametrize("on", ["features", "logits"])
@pytest.mark.parametrize("bandwidths", ["mean", "fixed"])
def test_the_servers_model_stays_beside_the_trained_one(world, on, bandwidths):
    method, view = FedMMD(FedMMD.Params(lam=0.5, on=on, bandwidths=bandwidths)), world.client()
    method.before_round(view)
    server = view.frozen(world.net.state_dict())
    with torch.no_grad():
        world.net.body[0].weight.add_(0.5)  # training has begun
        world.net.classifier.weight.mul_(2)
    batch = world.batch()
    terms = method.loss(batch, view)
    local, frozen = (
        (batch.features, server.features(batch.inputs)) if on == "features" else (batch.logits, server(batch.inputs))
    )
    expected = naive_fixed(local, frozen) if bandwidths == "fixed" else mmd(local, frozen).item()
    assert terms["mmd"].item() == pytest.approx(0.5 * expected, rel=1e-4)
    assert torch.equal(terms["cross_entropy"], cross_entropy(batch.logits, batch.labels))
    before = {k: v.clone() for k, v in view.scratch["fedmmd.teacher"].state_dict().items()}
    assert_finite(sum(terms.values()), *world.net.parameters())
    assert all(torch.equal(v, before[k]) for k, v in view.scratch["fedmmd.teacher"].state_dict().items())


@pytest.mark.parametrize("options", [{}, {"on": "logits", "bandwidths": "fixed"}])
def test_two_rounds_on_digits(digits, options):
    run = digits("fedmmd", **options)
    for clients in ([0, 1], [1, 2]):
        for result in run.play(clients).values():
            assert result.loss_terms["mmd"] > 0  # from the first step on the trained model leaves the frozen one
            assert result.state == {}
    plain = digits("fedmmd", lam=0.0)
    plain.play([0, 1])
    assert "mmd" not in plain.fit(2).loss_terms


@pytest.mark.parametrize("options", [{}, {"on": "logits", "bandwidths": "fixed"}])
def test_the_discrepancy_holds_a_client_near_the_server(digits, options):
    def moved(lam):
        run = digits("fedmmd", lam=lam, **options)
        result = run.play([0])[0]
        distance = sum((result.upload[k] - v).square().sum() for k, v in run.made.start.items())
        return distance, result.loss_terms["mmd"] / lam

    free, held = moved(1e-9), moved(0.1)
    assert held[0] < 0.8 * free[0]
    assert held[1] < 0.6 * free[1]


@pytest.mark.parametrize(
    ("options", "last"),
    [({}, 1), ({}, 2), ({"on": "logits", "bandwidths": "fixed"}, 1)],  # two samples: the narrow fixed kernels are steep
)
def test_a_last_batch_of_one_sample_moves_no_more_than_cross_entropy_does(digits, options, last):
    def moved(method, samples, **options):
        run = digits(method, **options)
        settings = replace(run.trainer.settings, batch_size=64, learning_rate=0.01, momentum=0.9)
        indices = {**run.trainer.indices, 0: run.trainer.indices[0][:samples]}
        run.trainer = replace(run.trainer, settings=settings, indices=indices)
        result = run.fit(0)
        return sum((result.upload[k] - v).square().sum().item() for k, v in run.made.start.items()) ** 0.5

    assert moved("fedmmd", 64 + last, **options) < 1.1 * moved("fedavg", 64 + last)


def test_deviations():
    assert FedMMD(FedMMD.Params(lam=0.0)).deviations() == []
    assert FedMMD(FedMMD.Params(on="logits", bandwidths="fixed")).deviations() == []
    assert [line.partition(":")[0] for line in FedMMD().deviations()] == ["on", "bandwidths"]
