import numpy as np


def made(kind, **params):
    return kind(kind.Params(**params))


def load(kind, folder=None, seed=0, **params):
    """Check the data set, then read it without a download."""
    dataset = made(kind, **params)
    dataset.check(folder, download=False)
    return dataset.load(folder, download=False, seed=seed)


def load_test(kind, folder=None, **params):
    """Only the test part, as a server reads it."""
    dataset = made(kind, **params)
    dataset.check_test(folder, download=False)
    return dataset.load_test(folder, download=False, seed=0)


def assert_alone(alone, whole):
    """The test part equals that of the whole data set, and the training part is empty."""
    np.testing.assert_array_equal(alone.test.x, whole.test.x)
    assert alone.test.y.tolist() == whole.test.y.tolist()
    assert (alone.mean, alone.std, alone.class_names) == (whole.mean, whole.std, whole.class_names)
    assert (alone.train.x.shape, alone.train.x.dtype) == ((0, *whole.train.x.shape[1:]), whole.train.x.dtype)
    assert alone.train.y.shape == (0,)
