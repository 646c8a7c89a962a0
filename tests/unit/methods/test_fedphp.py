"""The inherited private model is tested in test_map.py."""

import pytest

from fl_labelskew_plugins.methods.fedphp import FedPHP


@pytest.mark.parametrize("epochs", [1, 5])
def test_one_stage_that_is_uploaded(epochs):
    (stage,) = FedPHP().stages(epochs)
    assert (stage.name, stage.epochs, stage.upload) == ("personalise", epochs, True)
