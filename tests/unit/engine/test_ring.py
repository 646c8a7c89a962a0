import math

import numpy as np
import pytest
import torch
from error_messages import message
from fl_labelskew_registry import RunError
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_labelskew_plugins.engine.ring import Narrow, Ring, Wide, parts

BITS = st.sampled_from([16, 17, 24, 31, 32])
CLIENTS = st.integers(1, 20)


def encoded(ring, tensors, share=1.0):
    return ring.encode(tensors, share=share, where="round 1: client 0", words={"x": ("your x", "use less")})


def summed(ring, vectors):
    total = ring.zeros()
    for vector in vectors:
        ring.add(total, vector)
    return total


def test_hand_numbers_of_a_narrow_tensor():
    ring = Ring({"x": Narrow((3,), 1.0)}, 16, 2)
    # half of the ring, 2 ** 15 - 1, less half a step for each of two clients, on both sides
    assert ring.steps(ring.entries["x"]) == 32765
    vector = encoded(ring, {"x": torch.tensor([1.0, -1.0, 0.5])})
    assert vector.tolist() == [32765, 65536 - 32765, 16382]  # 16382.5 rounds to the even one
    half = encoded(ring, {"x": torch.tensor([1.0, -1.0, 0.5])}, share=0.5)
    assert half.tolist() == [16382, 65536 - 16382, 8191]
    assert ring.decode(summed(ring, [half, half]))["x"].tolist() == [32764 / 32765, -32764 / 32765, 16382 / 32765]


def test_hand_numbers_of_a_wide_tensor():
    ring = Ring({"x": Wide((2,), 1)}, 16, 4)
    assert (ring.wide, ring.size, ring.value) == (2, 8, 62)  # of 16 bits; 2 of 64 bits are for the sum of 4 clients
    vector = encoded(ring, {"x": torch.tensor([8192.5, -0.5])})
    assert vector.tolist() == [16385, 0, 0, 0, 65535, 65535, 65535, 65535]
    assert ring.decode(summed(ring, [vector] * 4))["x"].tolist() == [32770.0, -2.0]


@pytest.mark.parametrize("bits", [16, 20, 32])
def test_the_sum_of_wide_values_reveals_only_the_sum(bits):
    """The signs of three clients' values at 9,610 coordinates: other values with the same sums give the same vector."""
    ring = Ring({"x": Wide((9610,), 30)}, bits, 3)
    values = np.round(np.random.default_rng(0).normal(size=(3, 9610)) * 2**28)
    others = np.abs(values[:2])
    others = np.stack([*others, values.sum(0) - others.sum(0)])
    assert np.mean((values < 0).sum(0) == (others < 0).sum(0)) < 0.5
    vectors = [
        summed(ring, [encoded(ring, {"x": torch.from_numpy(row / 2**30)}) for row in rows]) for rows in (values, others)
    ]
    assert np.array_equal(*vectors)


@settings(max_examples=80, deadline=None)
@given(BITS, CLIENTS, st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_sums_equal_loops_to_half_a_step_for_each_client(bits, clients, bound, seed):
    generator = np.random.default_rng(seed)
    entries = {"wide": Wide((2,), 20), "narrow": Narrow((2, 3), bound), "one": Wide((), 30)}
    ring = Ring(entries, bits, clients)
    shares = generator.dirichlet([0.3] * clients)
    tensors = [
        {
            "wide": torch.from_numpy(generator.normal(size=2) * 10 ** generator.uniform(-3, 6)),
            "narrow": torch.from_numpy(generator.choice([-1, 0.3, 1], (2, 3)) * bound),
            "one": torch.tensor(float(generator.normal())),
        }
        for _ in range(clients)
    ]
    vectors = [encoded(ring, one, share) for one, share in zip(tensors, shares, strict=True)]
    for vector in vectors:
        assert (vector.dtype, vector.shape) == (np.uint16 if bits == 16 else np.uint32, (ring.size,))
        assert int(parts(vector, ring.wide)[1].max()) < 2**bits
    total = summed(ring, vectors)
    assert np.array_equal(total, summed(ring, reversed(vectors)))  # in whatever order
    sums = ring.decode(total)
    for name, entry in entries.items():
        for index in np.ndindex(entry.shape):
            weights = shares if name == "narrow" else [1.0] * clients
            expected = math.fsum(w * float(one[name][index]) for w, one in zip(weights, tensors, strict=True))
            error = clients / ring.steps(entry) / 2 * (1 + 1e-6) + 1e-12 * abs(expected)
            assert float(sums[name][index]) == pytest.approx(expected, abs=error)


@settings(max_examples=80, deadline=None)
@given(BITS, CLIENTS, st.data())
def test_whole_numbers_are_exact(bits, clients, data):
    ring = Ring({"n": Wide((), 20)}, bits, clients)
    most = 2 ** (ring.value - 1 - 20) - 2
    numbers = [data.draw(st.integers(-most, most)) for _ in range(clients)]
    vectors = [encoded(ring, {"n": torch.tensor(number)}) for number in numbers]
    whole = ring.decode(summed(ring, vectors))["n"]
    assert float(whole) == float(sum(numbers))  # to the 53 bits of a double


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("clients", [1, 3, 100])
def test_the_largest_sums_do_not_wrap(bits, clients):
    ring = Ring({"x": Narrow((2,), 4.0), "y": Wide((2,), 20)}, bits, clients)
    most = 2.0 ** (ring.value - 1 - 20) - 2
    tensors = {"x": torch.tensor([4.0, -4.0]), "y": torch.tensor([most, -most], dtype=torch.float64)}
    sums = ring.decode(summed(ring, [encoded(ring, tensors, 1 / clients) for _ in range(clients)]))
    assert sums["x"].tolist() == pytest.approx([4.0, -4.0], abs=clients / ring.steps(ring.entries["x"]))
    assert sums["y"].tolist() == pytest.approx([clients * most, -clients * most], rel=1e-12)


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        ({"x": [0.0, 1.5]}, "your x reaches 1.5, but the maximum is 1; use less"),
        ({"x": [0.0, -1.5]}, "your x reaches 1.5, but the maximum is 1; use less"),
        ({"x": [0.0, math.nan]}, "your x reaches nan, but the maximum is 1; use less"),
        ({"y": 1e12}, "y reaches 1e+12, but the maximum is 5.498e+11; training diverged; use a smaller train_args.le"),
    ],
)
def test_values_out_of_range_are_a_one_line_error(tensors, line):
    ring = Ring({"x": Narrow((2,), 1.0), "y": Wide((), 20)}, 32, 9)
    values = {"x": [0.0, 0.0], "y": 0.0} | tensors
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    told = message(lambda: encoded(ring, tensors, 0.1), kind=RunError)
    assert told.startswith(f"round 1: client 0: {line}")


def test_the_ring_has_a_margin_for_noise():
    ring = Ring({"x": Narrow((1,), 1.0)}, 16, 2, head_room=3.0)
    vector = encoded(ring, {"x": torch.ones(1)})
    noise = round(3.0 * ring.steps(ring.entries["x"]))  # as large as there is room for, and in the same direction
    ring.add(vector, np.array([noise], np.uint16))
    assert ring.decode(vector)["x"].item() == pytest.approx(4.0, abs=1e-3)
