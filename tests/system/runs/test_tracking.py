"""Runs that are shown to trackers: TensorBoard, MLflow, W&B offline, a table, and those that fail. No host."""

import csv
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from recipe_texts import DIGITS

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runs import tracking
from fl_labelskew_plugins.runtimes.options import RunOptions

RECIPE = DIGITS | {
    "method_args": {"method": "map"},
    "train_args": {"client_num_in_total": 5, "comm_round": 4, "batch_size": 32, "learning_rate": 0.1},
    "validation_args": {"frequency_of_the_test": 2},
    "tracking_args": {"checkpoint_every": 1, "keep_checkpoints": 9},
}
ALL = ["csv", "tensorboard", {"mlflow": {"experiment": "skew"}}, {"wandb": {"project": "skew"}}]
LOOP = """\
import json, sys
import fl_labelskew_plugins as fl
loop = fl.simulate(json.loads(sys.argv[1]), sys.argv[2])
print(len(list(loop)))
"""
UP = """\
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14s", b"lo", 0x49, b""))  # loopback, and nothing else
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def with_trackers(*names):
    return RECIPE | {"tracking_args": RECIPE["tracking_args"] | {"trackers": [*names]}}


def lines_of(folder):
    return read_lines(folder / "metrics.jsonl")


def same_results(folder, other):
    names = ("metrics.jsonl", "model.safetensors", "partition.json")
    return all((folder / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without trackers."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    assert len(list(fl.simulate(RECIPE, folder))) == 4
    names = {file.name for file in folder.iterdir()}
    assert not {"trackers.log", "rounds.csv", "tensorboard", "wandb", "mlflow.json"} & names
    return folder


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A run with all trackers, if possible in a namespace without a network; and its output."""
    folder = tmp_path_factory.mktemp("shown") / "runs" / "first"
    command = [sys.executable, "-c", LOOP, json.dumps(with_trackers(*ALL)), folder]
    apart = ["unshare", "--map-root-user", "--net", sys.executable, "-c", UP]
    try:
        alone = subprocess.run([*apart, "-c", ""], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        alone = False
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "MLFLOW"))}
    env = kept | {"HOME": str(folder.parents[1]), "WANDB_MODE": "online", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    env["FL_LABELSKEW_PICTURES"] = "yes"
    command = [*apart, *command[1:]] if alone else command
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done, alone


def test_trackers_run_without_a_network(shown, plain):
    folder, done, alone = shown
    assert done.stdout == "4\n"
    assert "tracker" not in done.stderr
    assert same_results(folder, plain)
    if not alone:
        pytest.skip("no network namespaces here: trackers were tried where there is a network")


def rows_of(folder):
    with (folder / "rounds.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_table_has_one_row_per_round(shown):
    rows, lines = rows_of(shown[0]), lines_of(shown[0])
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    for row, line in zip(rows, lines, strict=True):
        assert row["accuracy"] == str(line.get("accuracy", ""))
        assert float(row["loss_terms.cross_entropy"]) == line["loss_terms"]["cross_entropy"]
        assert int(row["clients"]) == 5
        assert float(row["seconds"]) > 0
        assert [row[f"recall.{c}"] for c in range(10)] == [str(r) for r in line.get("recall", [""] * 10)]


def scalars(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events, [(event.step, pytest.approx(event.value, abs=1e-6)) for event in events.Scalars(tag)]


def test_tensorboard_reads_the_events(shown):
    folder, lines = shown[0], lines_of(shown[0])
    events, accuracy = scalars(folder, "accuracy")
    assert [(line["round"] + 1, line["accuracy"]) for line in lines if "accuracy" in line] == accuracy
    assert {"recall/9", "loss_terms/cross_entropy", "seconds", "summary/final_accuracy"} <= {*events.Tags()["scalars"]}
    assert {*events.Tags()["images"]} == {"curves", "partition", "confusion"}
    image = events.Images("curves")[0]
    png = (folder / "curves.png").read_bytes()
    assert (image.width, image.step) == (int.from_bytes(png[16:20], "big"), 4)
    (text,) = events.Tensors("parameters/text_summary")
    assert "| train_args.learning_rate | 0.1 |" in text.tensor_proto.string_val[0].decode()
    assert str(folder / "model.safetensors") in str(events.Tensors("model/text_summary")[0].tensor_proto)
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"method_args.method" in hparams


MLFLOW = """\
import json, os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
(run,) = client.search_runs([client.get_experiment_by_name("skew").experiment_id])
number = run.info.run_id
told = {key: [(m.step, m.value) for m in client.get_metric_history(number, key)] for key in ("accuracy", "seconds")}
files = [file.path for kind in ("", "pictures") for file in client.list_artifacts(number, kind)]
facts = {"id": number, "status": run.info.status, "name": run.info.run_name, "told": told, "files": files}
print(json.dumps(facts | {"params": run.data.params, "metrics": run.data.metrics}))
"""
"""In a separate process: MLflow installs an importlib_metadata that breaks Python's own."""


def mlflow_run(folder):
    """What MLflow says of the one run of its experiment."""
    command = [sys.executable, "-W", "ignore", "-c", MLFLOW, (folder.parent / "mlruns").as_uri()]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_mlflow_reads_the_run(shown):
    folder, lines, run = shown[0], lines_of(shown[0]), mlflow_run(shown[0])
    assert (run["status"], run["name"]) == ("FINISHED", "first")
    assert run["params"]["train_args.comm_round"] == "4"
    assert run["params"]["common_args.training_type"] == "simulation"
    assert run["metrics"]["summary/final_accuracy"] == lines[-1]["accuracy"]
    assert run["told"]["accuracy"] == [[line["round"] + 1, line["accuracy"]] for line in lines if "accuracy" in line]
    assert {"model.safetensors", "pictures/curves.png", "pictures/partition.png"} <= {*run["files"]}
    model = next((folder.parent / "mlruns").glob("*/*/artifacts/model.safetensors"))
    assert model.read_bytes() == (folder / "model.safetensors").read_bytes()


def wandb_runs(folder):
    """For each offline run, oldest first: its config, history, summary and the kinds of its records."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    def named(items):
        return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}

    runs = []
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        config, history, summary, kinds = {}, [], {}, set()
        records = DataStore()
        records.open_for_scan(str(file))
        for record in map(Record.FromString, iter(records.scan_data, None)):
            kinds.add(record.WhichOneof("record_type"))
            config |= named(record.run.config.update)
            if record.history.item:
                history.append(named(record.history.item))
            summary |= named(record.summary.update)
        runs.append((config, history, summary, kinds))
    return runs


def test_wandb_reads_the_run(shown):
    folder, lines = shown[0], lines_of(shown[0])
    ((config, history, summary, kinds),) = wandb_runs(folder)
    assert config["train_args.comm_round"] == 4
    rounds = [point for point in history if "seconds" in point]
    assert [point["round"] for point in rounds] == [1, 2, 3, 4]
    assert [point.get("accuracy") for point in rounds] == [line.get("accuracy") for line in lines]
    assert summary["final_accuracy"] == lines[-1]["accuracy"]
    assert any("curves" in point for point in history)
    assert "artifact" in kinds
    run = json.loads((folder / "environment.json").read_text())["run"]
    assert next((folder / "wandb").glob("offline-run-*")).name.endswith(run)


def test_a_run_that_goes_back_continues_its_tracker_runs(tmp_path, plain, monkeypatch, capsys):
    """Three rounds of four, back to the end of the second, and on to the last, with the clients' private models."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "runs" / "first"
    assert len(list(islice(fl.simulate(with_trackers(*ALL), folder), 3))) == 3
    (meta,) = (folder.parent / "mlruns").glob("*/*/meta.yaml")
    before = dict(line.split(": ", 1) for line in meta.read_text().splitlines())
    assert before["status"] == "5"  # MLflow's RunStatus.KILLED
    seconds = [row["seconds"] for row in rows_of(folder)]
    start(RunOptions(resume=folder, from_round=2))
    line = f"back at the end of round 2; data of later rounds were moved to {folder}/abandoned-1\n"
    assert line in capsys.readouterr().out
    assert same_results(folder, plain)
    rows = rows_of(folder)
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    assert [row["seconds"] for row in rows][:2] == seconds[:2]
    _, accuracy = scalars(folder, "accuracy")
    assert [step for step, _ in accuracy] == [1, 3, 4]  # each once
    assert [step for step, _ in scalars(folder, "seconds")[1]] == [1, 2, 3, 4]
    run = mlflow_run(folder)
    assert (run["id"], run["status"]) == (before["run_id"], "FINISHED")
    assert sorted(step for step, _ in run["told"]["seconds"]) == [1, 2, 3, 3, 4]  # the third one, computed anew
    *_, (_, history, _, kinds) = wandb_runs(folder)
    assert [point["round"] for point in history if "seconds" in point] == [1, 2, 3, 4]
    assert "artifact" in kinds
    assert len({file.name[-16:] for file in (folder / "wandb").glob("offline-run-*")}) == 1


def test_a_tracker_added_in_round_three_gets_all_rounds(tmp_path, plain, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, elsewhere = tmp_path / "runs" / "first", tmp_path / "elsewhere" / "mlruns"
    assert len(list(islice(fl.simulate(with_trackers({"mlflow": {"uri": str(elsewhere)}}), folder), 2))) == 2
    now = "tracking_args.trackers=[tensorboard, {mlflow: {experiment: skew}}]"
    start(RunOptions(overrides=[now], resume=folder, quiet=True))
    assert [step for step, _ in scalars(folder, "seconds")[1]] == [1, 2, 3, 4]
    run = mlflow_run(folder)
    assert sorted(step for step, _ in run["told"]["seconds"]) == [1, 2, 3, 4]


FAILS = """\
import sys, time
import numpy as np
from fl_labelskew_registry import Tracker
from pydantic import BaseModel

class A(Tracker):
    class Params(BaseModel):
        hook: str
        how: str = "raise"

    def fail(self, hook):
        if hook != self.params.hook:
            return
        if self.params.how == "hang":
            time.sleep(3600)
        if self.params.how == "leave":
            sys.exit("enough")
        raise ValueError("so it" + " is\\n" * 3)

    def begin(self, run):
        np.random.seed(1)
        self.fail("begin")

    def on_round(self, run, line):
        self.fail("on_round")

    def finish(self, run, summary, pictures, model):
        self.fail("finish")

    def close(self, run, state):
        self.fail("close")
"""


@pytest.mark.parametrize(
    ("hook", "how", "why"),
    [
        *(
            (hook, "raise", r"ValueError: so it is is is \(acme\d+\.py, line 18\)")
            for hook in ("begin", "on_round", "finish", "close")
        ),
        ("on_round", "leave", r"SystemExit: enough \(acme\d+\.py, line 17\)"),
        ("on_round", "hang", "it takes longer than 1 s"),
    ],
)
def test_a_tracker_that_fails_is_one_warning(hook, how, why, register, tmp_path, plain, monkeypatch, capsys):
    register("fl_labelskew.trackers", FAILS)
    monkeypatch.setitem(tracking.PATIENCE_S, "on_round", 1.0)
    folder = tmp_path / "run"
    assert len(list(fl.simulate(with_trackers({"acme": {"hook": hook, "how": how}}, "csv"), folder))) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f"warning: tracker acme is switched off: {why}", line), line
    assert same_results(folder, plain)
    assert len(rows_of(folder)) == 4  # others go on
    assert (folder / tracking.LOG).exists() == (how != "hang")


def test_a_tracker_that_cannot_be_imported_is_one_warning(register, tmp_path, capsys):
    register("fl_labelskew.trackers", "raise OSError('gone')\n")
    assert len(list(fl.simulate(with_trackers({"acme": {"hook": ""}}), tmp_path / "run"))) == 4
    (line,) = capsys.readouterr().err.splitlines()
    why = "tracker 'acme' of distribution acme .* does not import: OSError: gone"
    assert re.fullmatch(f"warning: tracker acme is switched off: {why}", line), line


def test_a_missing_tracking_server_is_one_warning(tmp_path, capsys, monkeypatch):
    mlflow = {"mlflow": {"uri": "http://127.0.0.1:9"}}
    wandb = {"wandb": {"mode": "online"}}  # which would ask for a key, if it could
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert len(list(fl.simulate(with_trackers(mlflow, wandb), tmp_path / "run"))) == 4
    first, second = capsys.readouterr().err.splitlines()
    off = "warning: tracker {} is switched off: {}"
    assert first.startswith(off.format("mlflow", "MlflowException: API request to http://127.0.0.1:9"))
    assert second.startswith(off.format("wandb", "mode: online needs a key; use the environment var"))


def test_the_documented_tracker_is_closed(tmp_path, register):
    """The tracker is the document's, with a close."""
    text = (Path(__file__).parents[3] / "docs" / "trackers.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", text, re.S)
    source = source.replace("class Note", "class A")
    source += "\n    def close(self, run, state):\n        (run.folder / state).touch()\n"
    register("fl_labelskew.trackers", source)
    folder = tmp_path / "run"
    assert len(list(islice(fl.simulate(with_trackers("acme"), folder), 2))) == 2
    accuracies = [line["accuracy"] for line in lines_of(folder) if "accuracy" in line]
    assert (folder / "notes.txt").read_text().splitlines() == [f"run: {accuracies[0]:.1%} after 1 rounds"]
    assert (folder / "stopped").exists()
