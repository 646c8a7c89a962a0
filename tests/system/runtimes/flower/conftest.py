"""The environment with Flower; without it, these tests are skipped."""

import pytest
from flower_environment import INSTALLED, FlowerEnvironment


@pytest.fixture
def flower(tmp_path):
    if not INSTALLED:
        pytest.skip("needs make test-flower")
    home = tmp_path / "home"
    home.mkdir()
    environment = FlowerEnvironment(home)
    yield environment
    environment.end()
