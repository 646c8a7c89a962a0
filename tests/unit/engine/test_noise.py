import math
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fl_labelskew_registry import LabelSkewError
from recipe_texts import SKEWED
from scipy import stats

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine import noise
from fl_labelskew_plugins.engine.noise import SumNoise, discrete_gaussian
from fl_labelskew_plugins.engine.ring import parts
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs.session import build


def expected(sigma, most):
    """Probabilities of -most .. most, from the definition."""
    mass = [math.exp(-(x**2) / (2 * sigma**2)) for x in range(-most, most + 1)]
    whole = math.fsum(math.exp(-(x**2) / (2 * sigma**2)) for x in range(-most * 20, most * 20 + 1))
    return np.array(mass) / whole


def p_value(draws, sigma):
    """P-value of a chi-square test of draws against the discrete Gaussian, with both tails as one class."""
    most = math.ceil(3 * sigma)
    chances = expected(sigma, most)
    counts = np.array([(draws == x).sum() for x in range(-most, most + 1)])
    chances = np.append(chances, 1 - chances.sum())
    return stats.chisquare(np.append(counts, len(draws) - counts.sum()), chances * len(draws)).pvalue


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 2.5, 10.0])
def test_draws_follow_the_discrete_gaussian_distribution(sigma):
    draws = discrete_gaussian(200_000, sigma, np.random.default_rng(3))
    assert draws.dtype == np.int64
    assert p_value(draws, sigma) > 1e-3


@pytest.mark.parametrize("sigma", [1e3, 12345.678, 2.0**31])
def test_coarse_draws_look_normal_including_their_tails(sigma):
    draws = discrete_gaussian(200_000, sigma, np.random.default_rng(4)) / sigma
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert 4 < np.abs(draws).max() < 6


def test_draws_beyond_float_precision_are_decided_with_fractions(monkeypatch):
    digits = Mock(wraps=noise.DIGITS)
    monkeypatch.setattr(noise, "UNSURE", 2.0)  # all of them
    monkeypatch.setattr(noise, "DIGITS", digits)
    monkeypatch.setattr(noise, "AT_ONCE", 256)
    draws = discrete_gaussian(1_000, 1.5, np.random.default_rng(5))
    assert digits.exp.call_count > 1_000
    assert p_value(draws, 1.5) > 1e-3


def test_a_probability_is_exact_beyond_float_precision():
    """exp(-50) is below the smallest step of a 53-bit draw, so only further digits decide."""

    class Zero(np.random.Generator):
        def random(self, size=None):
            return np.zeros(size)

        def bytes(self, length):
            return b"\0" * length

    generator = Zero(np.random.PCG64(0))
    assert noise._chance(np.array([50.0]), lambda _: Fraction(50), generator).tolist() == [True]
    assert noise._chance(np.array([150.0]), lambda _: Fraction(150), generator).tolist() == [True]
    Zero.bytes = lambda self, length: b"\xff" * length  # a draw just below 2 ** -53, which is above exp(-50)
    assert noise._chance(np.array([50.0]), lambda _: Fraction(50), generator).tolist() == [False]


def sums(**changes):
    asked_for = {"multiplier": 1.0, "clip": 0.5, "largest": 2.0, "bits": 24, "clients": 5, "least": 4, "size": 300}
    return SumNoise(**asked_for | changes)


@pytest.mark.parametrize("bits", [16, 20, 32])
@pytest.mark.parametrize("length", [0.0, 0.1, 0.5, 40.0])
def test_a_clipped_and_rounded_vector_stays_within_its_norm(bits, length):
    made = sums(bits=bits)
    values = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(bits))
    values = {"a": values[:100] / values.norm() * length, "b": values[100:].reshape(20, 10) / values.norm() * length}
    clipped = made.clipped(values)
    norm = math.sqrt(sum(float(value.square().sum()) for value in clipped.values()))
    assert norm == pytest.approx(min(length, 0.5))
    whole = torch.cat([(value / made.step).round().reshape(-1) for value in clipped.values()])
    assert float(whole.norm()) <= made.norm
    assert clipped["b"].shape == (20, 10)


def test_no_value_exceeds_the_range_of_the_ring():
    """A value out of range would be an error, and errors reveal data without noise."""
    clipped = sums(largest=0.25).clipped({"a": torch.tensor([8.0, -4.0], dtype=torch.float64)}, share=0.01)["a"]
    assert clipped.tolist() == pytest.approx([0.25, -0.125])
    assert float(clipped.max()) <= 0.25


def test_the_sum_of_the_fewest_clients_has_the_requested_noise():
    made = sums(size=20_000, clip=0.5)
    parts = [made.draw(np.random.default_rng(seed)) for seed in range(5)]
    of_least = np.sum(parts[:4], axis=0) * made.step
    assert of_least.std() == pytest.approx(made.multiplier * (0.5 + made.step * math.sqrt(20_000) / 2), rel=0.02)
    assert np.sum(parts, axis=0).std() * made.step == pytest.approx(of_least.std() * math.sqrt(5 / 4), rel=0.03)


@pytest.mark.parametrize("multiplier", [0.1, 1.0, 8.0])
def test_the_ring_holds_the_largest_sum_and_ten_standard_deviations(multiplier):
    made = sums(multiplier=multiplier)
    top = 2 ** (made.bits - 1) - 1
    noise_of_all = made.deviation * math.sqrt(made.clients)
    assert made.largest / made.step + made.clients + 10 * noise_of_all == pytest.approx(top)
    assert made.step == pytest.approx(made.largest * (1 + made.head_room) / (top - made.clients))


def test_too_few_bits_and_too_little_noise_are_errors():
    with pytest.raises(LabelSkewError, match=r"noise_multiplier: 4 is too much noise for sums of 16 bits; use more"):
        sums(bits=16, size=11_000_000, multiplier=4.0)
    with pytest.raises(
        LabelSkewError, match=r"with 0.01, the noise of one client has a std of 0.\d+ steps of the sum's"
    ):
        sums(bits=16, multiplier=0.01, clip=0.001, largest=1.0)


NOISY = [
    *("train_args.client_num_in_total=5", "comm_args.secure_aggregation=true"),
    *("privacy_args.noise_multiplier=0.5", "privacy_args.clip=0.1"),
]


@pytest.fixture(scope="module")
def session():
    return build(parse.parse(SKEWED, overrides=NOISY))


@pytest.fixture(scope="module")
def trained(session):
    return fit(session.trainer, 1, 0, session.start, times_selected=1, personalised=True)


def added(session, trained, seed):
    bare = session.sums.encode_update(1, 0, session.start, trained)
    return session.sums.noisy(bare, seeds.numpy_generator(seed, "noise"))


def differs(made, a, b):
    """The difference of two vectors' parameters, unwrapped, in units of the weights."""
    bits = made.round.bits
    whole = parts(a - b, made.round.wide)[1].astype(np.int64)
    return (whole - ((whole >> (bits - 1)) << bits)) * made.noise.step


def test_a_client_adds_its_noise_only_to_trained_parameters(session, trained):
    made = session.sums
    again, first, other = (added(session, trained, seed) for seed in (2**100, 2**100, 2**100 + 1))
    assert (first == again).all()
    noise = differs(made, first, other)
    assert len(noise) == 610
    assert noise.std() == pytest.approx(made.noise.deviation * made.noise.step * math.sqrt(2), rel=0.1)
    assert (parts(first, made.round.wide)[0] == parts(other, made.round.wide)[0]).all()
    said = made.round.decode(first)
    assert said.keys() == {f"model/{name}" for name in session.start}  # nothing that no noise is on


def test_a_clients_summand_is_clipped_weighted_and_noisy(session, trained):
    made = session.sums
    share = session.sizes[1] / sum(session.sizes)
    change = torch.cat([(trained.upload[k] - session.start[k]).double().reshape(-1) for k in session.start]) * share
    assert change.norm() > 0.1  # or there would be nothing to clip
    vectors = [added(session, trained, seed) for seed in range(60)]
    mean = np.mean([differs(made, vector, np.uint32(0)) for vector in vectors], axis=0)
    rest = torch.from_numpy(mean) - change * 0.1 / change.norm()
    assert rest.std() == pytest.approx(made.noise.deviation * made.noise.step / math.sqrt(60), rel=0.1)


def test_noise_does_not_cover_buffers():
    match = r"noise_multiplier: adds noise only to trained parameters, not to the network"
    with pytest.raises(LabelSkewError, match=match):
        build(parse.parse(SKEWED.replace("mlp, hidden: [8]", "wide_resnet, depth: 10, widen: 1"), overrides=NOISY))
