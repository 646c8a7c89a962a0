"""JSON Schema: what it takes, a recipe takes."""

import re
from pathlib import Path

import yaml
from fl_labelskew_registry import PluginError, catalog
from recipe_texts import OWN_FILE, cross_silo, text_with

from fl_labelskew_plugins.recipe.model import PARTS
from fl_labelskew_plugins.recipe.schema import json_schema

HOSPITALS = Path(__file__).parents[2] / "examples" / "hospitals"


def test_the_schema_knows_every_section_and_every_plugin():
    schema = json_schema()
    whole = schema["$defs"]["recipe"]
    assert tuple(whole["properties"]) == PARTS
    assert whole["additionalProperties"] is False
    method = whole["properties"]["method_args"]
    assert method["properties"]["method"]["anyOf"][0]["enum"] == [e.name for e in catalog.entries("methods")]
    fedmr = next(rule for rule in method["allOf"] if rule["if"]["properties"]["method"] == {"const": "fedmr"})
    assert fedmr["then"]["properties"]["mu1"]["minimum"] == 0
    assert whole["properties"]["comm_args"]["properties"]["backend"]["enum"] == ["GRPC", "MPI", "sp"]
    references = set(re.findall(r"#/\$defs/([^'\"/]+)", str(schema)))
    assert references <= set(schema["$defs"])


def test_a_broken_plugin_does_not_hide_the_schema(monkeypatch):
    def load(kind, name):
        raise PluginError("broken")

    monkeypatch.setattr(catalog, "load", load)
    assert json_schema()["$defs"]["recipe"]["properties"]["model_args"]["allOf"] == []


KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int}


KINDS["number"] = (int, float)


def admits(schema, value, root):
    """Whether a schema takes a value: the few keywords that ours have, read as JSON Schema 2020-12 has them."""
    return all(rules(schema, value, root))


def rules(schema, value, root):
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        yield admits(target, value, root)
    if kind := schema.get("type"):
        yield isinstance(value, KINDS[kind]) and (kind == "boolean") == isinstance(value, bool)
    yield value in schema.get("enum", [value])
    yield value == schema.get("const", value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield set(schema.get("required", ())) <= value.keys()
        yield schema.get("additionalProperties") is not False or value.keys() <= known.keys()
        yield all(admits(part, value[key], root) for key, part in known.items() if key in value)
    yield "anyOf" not in schema or any(admits(part, value, root) for part in schema["anyOf"])
    yield all(admits(part, value, root) for part in schema.get("allOf", ()))
    if "if" in schema:
        yield admits(schema.get("then" if admits(schema["if"], value, root) else "else", {}), value, root)


def test_the_schema_takes_recipes_and_silos_own_files_and_nothing_between():
    schema = json_schema()
    good = [yaml.safe_load(text_with()), yaml.safe_load(cross_silo()), OWN_FILE, {"data_args": {"dataset": "digits"}}]
    good += [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(HOSPITALS.glob("*.yaml"))]
    assert len(good) == 8
    for content in good:
        assert admits(schema, content, schema), content
    for content in (
        yaml.safe_load(text_with(model_args=None)) | {"model_args": {}},  # a recipe without a model
        {k: v for k, v in yaml.safe_load(text_with()).items() if k != "model_args"},
        OWN_FILE | {"train_args": {"epochs": 2}},
        OWN_FILE | {"comm_args": {"backend": "GRPC"}},
        OWN_FILE | {"data_args": {"dataset": "digit"}},
        OWN_FILE | {"device_args": {"using_gpu": 1}},
        OWN_FILE | {"nonsense": {}},
    ):
        assert not admits(schema, content, schema), content
