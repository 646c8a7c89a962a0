import hashlib
import itertools
import random
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fl_labelskew_plugins import seeds


def test_streams_are_fixed_and_distinct():
    # the same on every machine: results of a recipe can be remade
    assert seeds.torch_seed(0, "batches", 3, 5) == 4774640304652707098
    keys = itertools.product((0, 1), ("batches", "method"), (0, 1), (0, 1))
    assert len({seeds.torch_seed(*key) for key in keys}) == 16


def test_streams_of_data_and_partitions_are_unchanged():
    for purpose, number in seeds.NUMBERED.items():
        theirs = np.random.default_rng(np.random.SeedSequence([3, number]))
        assert seeds.numpy_generator(3, purpose).integers(2**62) == theirs.integers(2**62)
    assert seeds.numpy_generator(0, "partition").integers(1000, size=4).tolist() == [522, 889, 992, 557]
    assert seeds.python_random(0, "fedmr/share").random() == random.Random("0/fedmr/share").random()


def test_no_generator_is_created_from_a_number():
    package = Path(seeds.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "seeds.py":
            assert not re.search(r"default_rng\(|SeedSequence\(|RandomState\(|random\.Random\(", path.read_text()), path


def test_a_noise_generator_is_chacha20_with_a_separate_key():
    """The key stream that `cryptography` computes, for the key of this secret, purpose, round and client."""
    key = hashlib.sha256(f"{2**127 + 5} noise 3 4".encode()).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8000))
    ours = seeds.noise_generator(2**127 + 5, "noise", 3, 4)
    assert ours.bit_generator.random_raw(1000).tolist() == np.frombuffer(stream, "<u8").tolist()


def following(words):
    """The next 32 bits of a Mersenne twister, from 624 draws: the tempering of each is inverted."""

    def undone(word, shift, mask, *, left):
        result = word
        for _ in range(32 // shift + 1):
            result = word ^ ((result << shift if left else result >> shift) & mask)
        return result & 0xFFFFFFFF

    state = []
    for drawn in words:
        word = undone(drawn, 18, 0xFFFFFFFF, left=False)
        word = undone(word, 15, 0xEFC60000, left=True)
        word = undone(word, 7, 0x9D2C5680, left=True)
        state.append(undone(word, 11, 0xFFFFFFFF, left=False))
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": np.array(state, np.uint32), "pos": 624}}
    return twister.random_raw(20).tolist()


def test_known_noise_does_not_reveal_the_rest():
    """As with the Mersenne twister that noise was drawn from before."""
    secret = np.random.MT19937(seeds.sequence(2**127 + 5, "noise"))
    known, rest = secret.random_raw(624).tolist(), secret.random_raw(20).tolist()
    assert following(known) == rest
    ours = seeds.noise_generator(2**127 + 5, "noise").bit_generator
    known, rest = ((ours.random_raw(count) & 0xFFFFFFFF).tolist() for count in (624, 20))
    assert not set(following(known)) & set(rest)


@pytest.mark.parametrize("other", [6, 5 + 2**32, 5 + 2**64, 5 + 2**127])
def test_every_bit_of_a_secret_changes_the_stream(other):
    one, two, again = (seeds.noise_generator(secret, "noise").bytes(16) for secret in (5, other, 5))
    assert one == again != two
    others = [("another", 0, 0), ("noise", 1, 0), ("noise", 0, 1)]
    assert one not in {seeds.noise_generator(5, *of).bytes(16) for of in others}

    def drawn(secret):
        seeds.seed_globals(secret, "host", 1, 2)
        return random.random(), np.random.rand(), float(torch.rand(())), float(torch.randn(20)[-1])

    first = drawn(5)
    assert first == drawn(5)
    assert all(a != b for a, b in zip(first, drawn(other), strict=True))
    with patch("torch.cuda.manual_seed_all", side_effect=RuntimeError("CUDA error: device-side assert triggered")):
        assert first == drawn(5)  # a silo hides that its GPU has failed
