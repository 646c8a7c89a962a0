"""Mean and standard deviation in the place of a data set's own."""

from dataclasses import replace

import numpy as np
import pytest
from fl_labelskew_registry import Arrays, Data, Images
from mistakes import message

from fl_labelskew_plugins.data.stats import moments, normalised

X = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), np.uint8)
DATA = Data(Arrays(X, np.zeros(30, np.int64)), Arrays(X[:5] // 2, np.zeros(5, np.int64)), ["a"], (0.5,) * 3, (0.1,) * 3)


def test_what_a_recipe_says_counts():
    assert normalised(DATA, None, None) is DATA
    given = normalised(DATA, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert given.train is DATA.train
    own = normalised(DATA, "data", None)
    np.testing.assert_allclose(own.mean, (X / 255).mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(own.std, (X / 255).std(axis=(0, 2, 3)))
    assert normalised(DATA, "imagenet", "imagenet").mean == (0.485, 0.456, 0.406)
    alone = replace(DATA, train=Arrays(X[:0], np.zeros(0, np.int64)))  # a server's
    assert (normalised(alone, "data", "data").mean) == moments(X[:5] // 2)[0]


def test_features_count_one_by_one():
    x = np.random.default_rng(1).normal(5, 3, (50, 7)).astype(np.float32)
    part = Arrays(x, np.zeros(50, np.int64))
    own = normalised(Data(part, part, ["a"]), "data", None)
    np.testing.assert_allclose(own.mean, x.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(own.std, x.std(axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "mean", "text"),
    [
        (DATA, [0.5], "[0.5]: 1 number for samples of 3 channels; use one for each, or data"),
        (
            replace(DATA, train=Arrays(X[:, :1], DATA.train.y)),
            "imagenet",
            "imagenet: 3 numbers for samples of 1 channel; use one for each, or data",
        ),
        (replace(DATA, mean=(), std=()), "data", "these samples are no measurements and stay as they are; use null"),
        (
            replace(DATA, train=Arrays(Images(["a.jpg"], (3, 4, 4), len), np.zeros(1, np.int64))),
            "data",
            "data: these pictures stay in files; use imagenet, or a list of numbers",
        ),
    ],
)
def test_what_does_not_go_with_the_samples(data, mean, text):
    assert message(lambda: normalised(data, mean, [1.0])) == f"data_args.mean: {text}"
