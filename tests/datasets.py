"""How tests read data sets."""


def made(kind, **params):
    """A data set with these options."""
    return kind(kind.Params(**params))


def load(kind, folder=None, seed=0, **params):
    """Checked, then read; nothing is downloaded."""
    dataset = made(kind, **params)
    dataset.check(folder, download=False)
    return dataset.load(folder, download=False, seed=seed)


def load_test(kind, folder=None, **params):
    """The test part alone, as a server reads it."""
    dataset = made(kind, **params)
    dataset.check_test(folder, download=False)
    return dataset.load_test(folder, download=False, seed=0)
