"""Models of a federation on tables: further rows are encoded as in training, by the server's model and by a silo's."""

import json

import numpy as np
import pandas as pd
import pytest
from commands import call

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.trained.network import file_of, load

RECIPE = """
common_args: {training_type: cross_silo}
data_args:
  input_shape: [3]
  dataset: table
  label: kind
  features: [age, sex]
  categorical: {sex: [f, m]}
  missing: mean
  class_names: [a, b]
model_args: {model: logistic}
train_args: {client_num_in_total: 2, comm_round: 1}
method_args: {method: fedavg}
validation_args: {server_test_data: false, per_client: true}
comm_args: {backend: GRPC}
"""
OWN = "data_args:\n  dataset" + RECIPE.partition("dataset")[2].partition("model_args")[0]


def test_additional_tables_of_a_federation(make_federation):
    federation, tables = make_federation("tables", RECIPE), {}
    for silo, name in enumerate(("north", "south")):
        rng, y = np.random.default_rng(silo), np.arange(40) % 2
        age = np.where(np.arange(40) % 9 == 0, np.nan, 40 + 20 * silo + 10 * y + rng.normal(0, 3, 40))
        tables[name] = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], 40), "kind": np.array(["a", "b"])[y]})
        tables[name].to_csv(federation.folder / f"{name}.csv", index=False)
    federation.give_files(**{name: f"{OWN}  data_cache_dir: {federation.folder / name}.csv\n" for name in tables})
    argv = ["run", federation.recipe, "--run-dir", federation.run_dir, "--host", "none"]
    process = federation.forker.start(argv, federation.folder / "log", fork_children=True)
    assert process.wait() == 0, process.text
    silo = federation.run_dir / "silos" / "silo-1"
    of_server, of_silo = (load(file_of(place)).about for place in (federation.run_dir, silo))
    assert of_server.table.means == pytest.approx(of_server.mean)  # of both silos' samples
    assert of_silo.mean == of_server.mean
    assert of_silo.table.means[0] == pytest.approx(tables["north"].age.mean(), rel=0.05)  # its training part's
    assert of_server.table.model_copy(update={"means": []}) == of_silo.table.model_copy(update={"means": []})
    row = pd.DataFrame({"sex": ["m"], "age": [np.nan]})
    given = np.array([[of_server.mean[0], 0, 1]], np.float32)
    run = fl.load_run(federation.run_dir)
    pd.testing.assert_frame_equal(run.predict(row), run.predict(given))
    north = federation.folder / "north.csv"
    result = json.loads(call("evaluate", silo, north, "--part", "test", "--json").output)
    (metrics,) = silo.glob("*/metrics.jsonl")
    assert result["accuracy"] == json.loads(metrics.read_text().splitlines()[-1])["accuracy"]
    assert "\ntested on all 40 samples of " in (told := call("evaluate", silo, north).output)
    assert "\nnote: " in told
    (silo / "later").mkdir()
    (silo / "later" / "model.safetensors").touch()
    assert (
        "has no model.safetensors, but 2 folders in it have one; use one of them"
        in call("evaluate", silo, north, code=2).stderr
    )
