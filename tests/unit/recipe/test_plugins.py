import pytest
import yaml
from jsonschema import Draft202012Validator
from recipe_texts import lines_of, only_line, text_with

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.schema import json_schema


def trackers(*items, **more):
    return text_with(tracking_args={"trackers": [*items], **more})


def test_names_and_names_with_parameters():
    recipe = parse.parse(trackers("csv", {"wandb": {"project": "skew"}}))
    csv, wandb = recipe.tracking.trackers
    assert csv == {"csv": {}}
    assert wandb["wandb"] == {"project": "skew", "entity": None, "name": None, "group": None, "mode": "offline"}
    assert parse.parse(recipe.dump()).tracking == recipe.tracking
    assert parse.parse(text_with(), overrides=["tracking_args.trackers=[csv]"]).tracking.trackers == [{"csv": {}}]


@pytest.mark.parametrize(
    ("item", "line"),
    [
        ("tensorbord", "trackers: 'tensorbord' is unknown; allowed: csv, mlflow, tensorboard, wandb; did you mean"),
        (7, "trackers: item 2 is of the wrong form; allowed: a name, or a name and its parameters, such as {wandb: {"),
        ({"wandb": {}, "mlflow": {}}, "trackers: item 2 is of the wrong form"),
        ({"wandb": "offline"}, "trackers: item 2 is of the wrong form"),
        ("csv", "trackers: 'csv' occurs twice; allowed: each tracker once"),
        ({"wandb": {"mod": "online"}}, "trackers.wandb.mod: unknown key; allowed: project, entity, name, group"),
        ({"wandb": {"mode": "onlin"}}, "trackers.wandb.mode: 'onlin' is unknown; allowed: offline, online; did"),
        ({"wandb": {"api_key": "s3cr3t"}}, "trackers.wandb.api_key: unknown key; allowed: project"),
        ({"mlflow": {"uri": 5}}, "trackers.mlflow.uri: 5 is of the wrong type; allowed: text, or null"),
        ({"mlflow": {"uri": "https://me:s3cr3t@host:5000"}}, "mlflow.uri: must not contain a name or password"),
        ({"mlflow": {"uri": "https://s3cr3t@host"}}, "variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_shows_no_secret(item, line):
    said = only_line(trackers("csv", item))
    assert said.startswith("r.yaml: tracking_args.trackers")
    assert line in said
    assert "s3cr3t" not in said
    override = f"tracking_args.trackers={yaml.safe_dump(['csv', item], default_flow_style=True).strip()}"
    assert only_line(text_with(), override).startswith("--set tracking_args.trackers")


@pytest.mark.parametrize("value", ["csv", {"mlflow": {"uri": "http://me:s3cr3t@host"}}, None])
def test_values_that_are_not_lists_are_not_shown(value):
    said = only_line(text_with(tracking_args={"trackers": value}))
    assert said == "r.yaml: tracking_args.trackers: must be a list; allowed: a list of names, such as [csv]"


def test_each_mistake_has_a_separate_line():
    content = trackers("nobody", {"mlflow": {"uri": 5, "experiment": ""}}, wandb_key="s3cr3t", run_dirs="x")
    assert len(lines_of(content)) == 5


def test_a_misspelt_hook_is_reported(register):
    source = "from fl_labelskew_registry import Tracker\nclass A(Tracker):\n    class Params: model_validate = None\n"
    register("fl_labelskew.trackers", f"{source}    def on_rounds(self, run, line): pass\n")
    assert "Tracker has no hook on_rounds; did you mean on_round?" in only_line(trackers("acme"))


def test_the_schema_knows_them_and_their_parameters():
    schema = Draft202012Validator(json_schema())
    good = ["csv", {"wandb": {"mode": "online"}}, {"mlflow": {"uri": None}}]
    assert schema.is_valid(yaml.safe_load(trackers(*good)))
    for wrong in ("cvs", {"wandb": {"mode": "on"}}, {"wandb": {"key": ""}}, {"wandb": {}, "csv": {}}, {}, 3):
        assert not schema.is_valid(yaml.safe_load(trackers(wrong))), wrong
