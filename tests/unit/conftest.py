import functools

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("unit", max_examples=40, deadline=None)
settings.load_profile("unit")


@pytest.fixture(scope="session", autouse=True)
def _digits_are_unpacked_once():
    """Most unit tests train on digits, which ``np.loadtxt`` takes 30 ms to read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "loadtxt", functools.cache(np.loadtxt))
        yield
