"""What a recipe with ``backend: Flower`` cannot have, each with one line."""

import pytest
from fl_labelskew_registry import LabelSkewError
from recipe_texts import CROSS_SILO, lines_of, text_with

from fl_labelskew_plugins.recipe import compatibility, parse

FLOWER = {"backend": "Flower"}


@pytest.mark.parametrize(
    ("comm", "line"),
    [
        ({"secure_aggregation": True}, "comm_args.secure_aggregation: true cannot be used with backend Flower"),
        ({"workers": 2}, "comm_args.workers: 2 cannot be used with backend Flower"),
        ({"server_address": "a.org:1"}, "comm_args.server_address: a.org:1 cannot be used with backend Flower"),
        ({"listen_address": "0.0.0.0:1"}, "comm_args.listen_address: 0.0.0.0:1 cannot be used with backend Flower"),
    ],
)
def test_refused_keys(comm, line):
    (error,) = lines_of(text_with(comm_args=FLOWER | comm))
    assert line in error
    assert "allowed: " in error


def test_both_training_types_are_allowed():
    assert not parse.parse(text_with(comm_args=FLOWER)).common.across_silos
    assert parse.parse(text_with(**CROSS_SILO | {"comm_args": FLOWER})).common.across_silos


def test_flower_excludes_fedml_and_python_3_10(monkeypatch):
    recipe = parse.parse(text_with(comm_args=FLOWER))
    assert not compatibility.hosted(recipe, None).hosted
    with pytest.raises(LabelSkewError, match="Flower runs without FedML"):
        compatibility.hosted(recipe, "fedml")
    monkeypatch.setattr(compatibility, "find_spec", lambda name: None if name == "flwr" else name)
    with pytest.raises(LabelSkewError, match=r"flwr is not installed, and excludes FedML"):
        compatibility.check_extras(recipe)
    monkeypatch.setattr(compatibility.sys, "version_info", (3, 10))
    with pytest.raises(LabelSkewError, match=r"needs Python 3\.11 or later"):
        compatibility.check_extras(recipe)
