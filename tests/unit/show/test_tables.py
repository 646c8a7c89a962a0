import json
from types import SimpleNamespace

import pytest

from fl_labelskew_plugins.runs.reader import RunReader
from fl_labelskew_plugins.show.tables import table

SILOS = ["silo 1, north", "silo 2, south", "silo 3"]
RESULT = {
    "rounds": 1, "measure": "client_accuracy_mean", "final_accuracy": 0.75, "best_accuracy": 0.75, "rounds_to_best": 1,
    "last_tests": 1, "last_mean": 0.75, "last_std": 0.0, "client_accuracy": [1.0, 0.5, None],
    "client_accuracy_mean": 0.75, "client_accuracy_std": 0.25, "client_accuracy_worst": 0.5,
    "client_accuracy_worst_client": "silo 2, south", "bytes_up": 0, "bytes_down": 0, "seconds": 1,
}  # fmt: skip
EQUAL = {"client_accuracy": [1.0, 1.0, 1.0], "client_accuracy_mean": 1.0, "client_accuracy_worst": 1.0}


@pytest.mark.parametrize(
    ("changes", "clients", "over"),
    [
        ({}, "north 100.0, south 50.0, silo 3 -", "mean 75.00 % (std 25.00), worst 50.00 %: silo 2, south"),
        (EQUAL, "north 100.0, south 100.0, silo 3 100.0", "all 100.00 %"),
    ],
)
def test_table_names_silos_and_marks_no_worst_of_equals(tmp_path, changes, clients, over):
    (tmp_path / "summary.json").write_text(json.dumps(RESULT | changes))
    recipe = SimpleNamespace(train=SimpleNamespace(reference=None))
    session = SimpleNamespace(clients=None, client_names=SILOS, client_models="local models", recipe=recipe)
    lines = table(SimpleNamespace(session=session, folder=RunReader(tmp_path))).splitlines()
    rows = dict(line.strip().split("  ", 1) for line in lines)
    assert rows["tested on"].strip() == "clients' own test splits, mean over the clients"
    assert rows["accuracy, each client's tests"].strip() == clients
    assert rows["global model, over the clients"].strip() == over
