import pytest
from flower_environment import FlowerEnvironment


@pytest.fixture
def flower(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = FlowerEnvironment(home)
    yield environment
    environment.end()
