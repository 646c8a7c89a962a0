import re
from pathlib import Path

import yaml
from fl_labelskew_registry import PluginError, catalog
from jsonschema import Draft202012Validator
from recipe_texts import OWN_FILE, cross_silo, text_with

from fl_labelskew_plugins.recipe.model import PARTS
from fl_labelskew_plugins.recipe.schema import json_schema

HOSPITALS = Path(__file__).parents[3] / "examples" / "hospitals"


def test_the_schema_knows_every_section_and_every_plugin():
    schema = json_schema()
    whole = schema["$defs"]["recipe"]
    assert tuple(whole["properties"]) == PARTS
    assert whole["additionalProperties"] is False
    method = whole["properties"]["method_args"]
    assert method["properties"]["method"]["anyOf"][0]["enum"] == [e.name for e in catalog.entries("methods")]
    fedmr = next(rule for rule in method["allOf"] if rule["if"]["properties"]["method"] == {"const": "fedmr"})
    assert fedmr["then"]["properties"]["mu1"]["minimum"] == 0
    assert whole["properties"]["comm_args"]["properties"]["backend"]["enum"] == ["Flower", "GRPC", "MPI", "sp"]
    references = set(re.findall(r"#/\$defs/([^'\"/]+)", str(schema)))
    assert references <= set(schema["$defs"])


def test_a_broken_plugin_does_not_hide_the_schema(monkeypatch):
    def load(kind, name):
        raise PluginError("broken")

    monkeypatch.setattr(catalog, "load", load)
    assert json_schema()["$defs"]["recipe"]["properties"]["data_args"]["allOf"] == []


def test_the_schema_accepts_recipes_and_silo_files_only():
    schema = Draft202012Validator(json_schema())
    good = [yaml.safe_load(text_with()), yaml.safe_load(cross_silo()), OWN_FILE, {"data_args": {"dataset": "digits"}}]
    good += [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(HOSPITALS.glob("*.yaml"))]
    assert len(good) == 8
    for content in good:
        assert schema.is_valid(content), content
    for content in (
        yaml.safe_load(text_with(model_args=None)) | {"model_args": {}},  # a recipe without a model
        {k: v for k, v in yaml.safe_load(text_with()).items() if k != "model_args"},
        OWN_FILE | {"train_args": {"epochs": 2}},
        OWN_FILE | {"comm_args": {"backend": "GRPC"}},
        OWN_FILE | {"data_args": {"dataset": "digit"}},
        OWN_FILE | {"device_args": {"using_gpu": 1}},
        OWN_FILE | {"nonsense": {}},
    ):
        assert not schema.is_valid(content), content
