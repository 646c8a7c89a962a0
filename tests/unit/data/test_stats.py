from dataclasses import replace

import numpy as np
import pytest
from error_messages import message
from fl_labelskew_registry import Arrays, Data, Images

from fl_labelskew_plugins.data.stats import moments, normalised, pooled, sums


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (300, 3, 4, 4)).astype(np.uint8)


def apart(x):
    return [sums(x[rows]) for rows in (slice(0, 1), slice(1, 120), slice(120, None))]


def test_moments_of_uint8_parts_equal_those_of_the_whole_exactly(pixels):
    assert pooled(apart(pixels)) == pooled(apart(pixels)[::-1]) == moments(pixels)
    np.testing.assert_allclose(moments(pixels)[0], (pixels / 255).mean((0, 2, 3)), rtol=1e-14)
    np.testing.assert_allclose(moments(pixels)[1], (pixels / 255).std((0, 2, 3)), rtol=1e-14)


def test_moments_of_float_parts_are_accurate():
    x = np.random.default_rng(0).normal(1000, 0.1, (300, 4)).astype(np.float32)
    x[:, 1] = 0.1  # in float64 no float32 is 0.1
    mean, std = pooled(apart(x))
    np.testing.assert_allclose(mean, x.mean(0, dtype=float), rtol=1e-14)
    np.testing.assert_allclose(np.delete(std, 1), np.delete(x.std(0, dtype=float), 1), rtol=1e-10)
    assert std[1] == 1.0
    assert moments(x)[0] == tuple((x.sum(0, dtype=float) / 300).tolist())


def test_pixels_and_pixels_divided_by_255_have_one_scale(pixels):
    mixed = pooled([sums(pixels[:100]), sums((pixels[100:] / 255).astype(np.float32))])
    np.testing.assert_allclose(mixed, moments(pixels), rtol=1e-6)


def test_no_sum_is_too_large():
    part = sums(np.full((2, 1, 2, 2), 255, np.uint8))
    large = type(part)(2**52, np.array([255 * 2**46]), np.array([255**2 * 2**46]))  # one value in 64 is 255
    assert pooled([large] * 3) == ((2**-6,), ((2**-6 - 2**-12) ** 0.5,))  # together more than an int64 holds


@pytest.fixture
def data(pixels):
    parts = (Arrays(pixels[rows], np.zeros(len(pixels[rows]), np.int64)) for rows in (slice(100), slice(100, None)))
    return Data(*parts, ["a"], (0.5,), (0.25,))


def test_a_recipe_replaces_the_statistics_of_the_data_set(data):
    def both(mean, std):
        made = normalised(data, mean, std)
        assert made.train is data.train
        return made.mean, made.std

    own = moments(data.train.x)
    assert both(None, None) == ((0.5,), (0.25,))
    assert both("data", "data") == own
    assert both("data", None) == (own[0], (0.25,))
    assert both([1], "imagenet") == ((1.0,), (0.229, 0.224, 0.225))
    line = message(lambda: both([1, 2], None))
    assert line.startswith("data_args.mean: [1, 2]: 2 numbers for samples of 3 channels; use a number")


def test_files_and_samples_that_are_not_measurements_are_not_measured(data):
    line = message(lambda: normalised(replace(data, mean=(), std=()), "data", "data"))
    assert line.startswith("data_args.mean: samples of this kind ")
    assert line.endswith(" cannot be normalised; use null")
    data.train.x = Images(["a.png"], (3, 4, 4), None)
    line = "data: not supported for images in files; use numbers, or imagenet"
    assert line in message(lambda: normalised(data, "data", "data"))
