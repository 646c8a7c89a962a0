import json
import runpy
from pathlib import Path

from run_folders import folder, resolved

COLLECT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "published" / "collect.py"))["collect"]


def run(path, seed, accuracies, rounds=3):
    recipe = resolved(seed)
    recipe["train_args"] = recipe["train_args"] | {"comm_round": rounds}
    made = folder(path, recipe, accuracies, seconds=[1800.0] * len(accuracies))
    (made / "environment.json").write_text(json.dumps({"versions": {"torch": "2.14.1"}}))


def test_finished_runs_are_collected_once(tmp_path):
    run(tmp_path / "c2-fedavg-seed0", 0, [0.5, 0.75, 0.625])
    run(tmp_path / "c2-fedavg-seed1", 1, [0.5, 0.75])
    file = tmp_path / "table.csv"
    header = "setting,method,seed,rounds,best,last,hours,torch\n"
    file.write_text(header + "c2,fedavg,1,3,80.00,,1.00,2.15.0\n")
    lines = COLLECT(file, [tmp_path])
    assert [line["seed"] for line in lines] == ["0", "1"]
    assert list(lines[0].values()) == ["c2", "fedavg", "0", "3", "75.00", "62.50", "1.50", "2.14.1"]
    assert lines[1]["best"] == "80.00"  # the run of seed 1 is not complete; the line that was there stays
