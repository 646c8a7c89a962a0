import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_labelskew_plugins import seeds


def test_streams_are_fixed_and_apart():
    # the same on every machine: results of a recipe can be remade
    assert seeds.torch_seed(0, "batches", 3, 5) == 4774640304652707098
    draws = {
        seeds.torch_seed(seed, purpose, round, client)
        for seed in (0, 1)
        for purpose in ("batches", "method")
        for round in (0, 1)
        for client in (0, 1)
    }
    assert len(draws) == 16


def test_the_streams_of_data_and_partitions_are_those_of_every_result_so_far():
    for purpose, number in seeds.NUMBERED.items():
        theirs = np.random.default_rng(np.random.SeedSequence([3, number]))
        assert seeds.numpy_generator(3, purpose).integers(2**62) == theirs.integers(2**62)
    assert seeds.numpy_generator(0, "partition").integers(1000, size=4).tolist() == [522, 889, 992, 557]
    assert seeds.python_random(0, "fedmr/share").random() == random.Random("0/fedmr/share").random()


def test_no_generator_is_made_of_a_bare_number():
    package = Path(seeds.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "seeds.py":
            assert not re.search(r"default_rng\(|SeedSequence\(|RandomState\(|random\.Random\(", path.read_text()), path


def test_generators_repeat():
    a, b = (seeds.torch_generator(1, "x", 2, 3) for _ in range(2))
    assert a.initial_seed() == b.initial_seed()
    assert seeds.numpy_generator(1, "x").integers(1000) == seeds.numpy_generator(1, "x").integers(1000)


def test_a_noise_generator_is_seeded_with_more_than_the_32_bits_of_manual_seed():
    # an independent Mersenne twister that starts from the same 624 words
    words = seeds.sequence(2**127 + 5, "noise", 3, 4).generate_state(624)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    ours = seeds.noise_generator(2**127 + 5, "noise", 3, 4)
    draws = torch.randint(2**16, (2000,), generator=ours)
    assert draws.tolist() == [raw % 2**16 for raw in twister.random_raw(2000).tolist()]


@pytest.mark.parametrize("other", [6, 5 + 2**32, 5 + 2**64, 5 + 2**127])
def test_every_bit_of_a_secret_counts(other):
    one, two = (torch.rand(4, generator=seeds.noise_generator(secret, "noise")) for secret in (5, other))
    assert not torch.equal(one, two)
    assert torch.equal(one, torch.rand(4, generator=seeds.noise_generator(5, "noise")))

    def drawn(secret):
        seeds.seed_globals(secret, "host", 1, 2)
        return random.random(), np.random.rand(), float(torch.rand(())), float(torch.randn(20)[-1])

    first = drawn(5)
    assert first == drawn(5)
    assert all(a != b for a, b in zip(first, drawn(other), strict=True))
