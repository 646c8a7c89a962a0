"""The table of all rounds."""

import csv
from types import SimpleNamespace

from fl_labelskew_plugins.trackers.csv import CSV


def test_new_names_in_each_round_do_not_add_columns_forever(tmp_path):
    """A silo chooses the names of its loss terms."""
    tracker, run = CSV(), SimpleNamespace(folder=tmp_path, earlier=[])
    tracker.begin(run)
    for round in range(12):
        tracker.on_round(run, {"round": round, "accuracy": 0.5, **{f"loss_terms.{round}.{k}": 1.0 for k in range(100)}})
    with (tmp_path / "rounds.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["round"] for row in rows] == [str(k) for k in range(1, 13)]
    assert len(rows[0]) == 1000
    assert rows[-1]["accuracy"] == "0.5"
