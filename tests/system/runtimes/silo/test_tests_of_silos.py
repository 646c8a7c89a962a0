"""The global model, tested by silos on their own test parts: the numbers of a simulation, of those that tell them."""

import csv
import json
import re
from types import SimpleNamespace

import pytest
from commands import call
from federations import Echo, finished
from fl_labelskew_registry import RunError
from recipe_texts import SILOS

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runtimes.silo.client import OwnFolder
from fl_labelskew_plugins.runtimes.silo.members import ExcludedSilos, Members
from fl_labelskew_plugins.runtimes.silo.server import ClientTests
from fl_labelskew_plugins.runtimes.transport import Kind, Message, measures
from fl_labelskew_plugins.studies.finished import read

PER_CLIENT = ("validation_args.per_client=true", "method_args.method=map", "train_args.client_num_per_round=2")
MEASURES = ("--set", "comm_args.send_measures=true")


def test_numbers_of_silos_equal_those_of_a_simulation(federation, sp_run):
    federation.overrides, federation.environment = list(PER_CLIENT), {"FL_LABELSKEW_PICTURES": "yes"}
    server = federation.server()
    finished(server, federation.silo(1, *MEASURES), federation.silo(2), federation.silo(3, *MEASURES))
    simulated = read_lines(sp_run(*PER_CLIENT) / "metrics.jsonl")
    for across, here in zip(federation.lines(), simulated, strict=True):
        for key in ("client_accuracy", "client_balanced_accuracy"):
            assert across[key] == [here[key][0], None, here[key][2]]
        worst = min((across["client_accuracy"][k], f"silo {k + 1}") for k in (0, 2))
        assert (across["client_accuracy_worst"], across["client_accuracy_worst_client"]) == worst
        own = here["client_personalised_accuracy"]
        assert across.get("client_personalised_accuracy", [None] * 3) == [own[0], None, own[2]]
    summary = json.loads((federation.run_dir / "summary.json").read_text())
    assert summary["client_accuracy_mean"] == sum(summary["client_accuracy"][k] for k in (0, 2)) / 2
    assert "each client's tests " in server.text
    assert "global model, over the clients" in server.text
    for rank in (1, 2, 3):
        (folder,) = (path for path in (federation.folder / f"silo-{rank}").iterdir() if path.is_dir())
        assert re.fullmatch(r"recipe-\d{8}-\d{6}-[0-9a-f]{16}", folder.name)
        assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
        kept = read_lines(folder / "metrics.jsonl")
        assert [line["accuracy"] for line in kept] == [line["client_accuracy"][rank - 1] for line in simulated]
        result = json.loads((folder / "summary.json").read_text())
        assert (result["silo"], result["final_accuracy"]) == (rank, kept[-1]["accuracy"])
        asked = [line["round"] for line in simulated if rank - 1 in line["clients"]]
        assert [line["round"] for line in kept if "loss_terms" in line] == asked
        assert result["rounds"] == len(asked)


class Boastful(Echo):
    """Has more right answers than samples."""

    def receive_message(self, kind, arrived):
        super().receive_message(kind, arrived)
        if kind == Kind.TEST:
            meta = {"accuracy": [9, 3], "balanced_accuracy": 1.0}
            self.transport.send_message(Message(Kind.TESTED, self.rank, 0, round=arrived.round, meta=meta))


def test_silos_with_invalid_or_missing_numbers_do_not_stop_the_run(federation):
    federation.overrides = ["validation_args.per_client=true", "comm_args.round_deadline_s=4"]
    federation.overrides += ["train_args.comm_round=1", "validation_args.server_test_data=false"]
    federation.overrides += ["data_args.input_shape=[1,8,8]", "data_args.classes=10"]
    server, good = federation.server(), federation.silo(1, *MEASURES)
    Echo(federation.address, 2)
    Boastful(federation.address, 3)
    finished(server, good)
    (line,) = federation.lines()
    assert line["clients"] == [0, 1, 2]
    assert line["client_accuracy"] == [line["client_accuracy_mean"], None, None]
    assert "accuracy" not in line
    result = json.loads((federation.run_dir / "summary.json").read_text())
    assert (result["measure"], result["best_accuracy"]) == ("client_accuracy_mean", line["client_accuracy_mean"])
    assert [silo["name"] for silo in result["clients"]] == ["silo 1", "silo 2", "silo 3"]
    first, *others = ([silo["test_samples"], silo["accuracy"]] for silo in result["clients"])
    assert first[0] * first[1] == pytest.approx(round(first[0] * first[1]))
    assert others == [[None, None]] * 2
    card = (federation.run_dir / "MODEL_CARD.md").read_text()
    assert f"{first[0]} test samples at the clients, 10 classes." in card
    assert "`0`, `1`, `2`" in card
    assert f"| {first[0]} | {100 * first[1]:.2f} % |" in card
    assert (federation.run_dir / "best.safetensors").exists()
    assert "tested on                         " in server.text
    (row,) = csv.DictReader(call("report", federation.run_dir, "--format", "csv").output.splitlines())
    assert (row["test"], row["accuracy"]) == ("clients' mean", f"{100 * line['client_accuracy_mean']:.2f}")
    assert [client.name for client in read(federation.run_dir).clients] == ["silo 1", "silo 2", "silo 3"]
    server.says("round 1: test of silo 3 refused: an accuracy that is out of range")
    server.says("round 1: silo 2 missed the deadline of 4 s; skipped until it sends a message")


GOOD = {"accuracy": [3, 4], "balanced_accuracy": 0.5}


def test_numbers_of_a_silo_are_checked():
    assert measures({}) == {}
    assert measures(GOOD) == {"accuracy": 0.75, "balanced_accuracy": 0.5, "samples": 4}
    for change in (
        {"accuracy": [5, 4]}, {"accuracy": [0, 0]}, {"accuracy": [-1, 4]}, {"accuracy": 0.5}, {"accuracy": None},
        {"balanced_accuracy": 1.5}, {"balanced_accuracy": None}, {"balanced_accuracy": "nan"},
    ):  # fmt: skip
        with pytest.raises(RunError):
            measures(GOOD | change)


def test_absent_silos_are_not_asked_and_old_answers_are_ignored(tmp_path):
    """One answer arrives at a time."""
    answers, asked = {1: GOOD, 2: {}, 4: {"accuracy": [1, 1], "balanced_accuracy": 1.0}}, []

    def receive(timeout=None):
        if not asked:
            return False
        kind, rank, round = asked.pop(0)
        assert kind == Kind.TEST
        tests._take(Message(Kind.TESTED, rank, 0, round=round, meta=answers[rank]))
        return True

    recipe = recipes.parse(SILOS, overrides=["train_args.client_num_in_total=5", "comm_args.reconnect_s=0.1"])
    excluded = ExcludedSilos(tmp_path, 5, print, lambda event, **facts: None)
    transport, ignored = SimpleNamespace(receive=receive), status.Silos([""] * 5)
    members = Members(recipe, transport, excluded, lambda: None, print, "", lambda **facts: None, ignored)
    members.round = 2
    for client in (0, 1, 3, 4):
        members.joined(client)
    members.skipped.add(4)
    send = lambda kind, rank, *, round, tensors: asked.append((kind, rank, round))  # noqa: E731
    tests = ClientTests(SimpleNamespace(members=members, send=send, num_silos=5))
    tests._take(Message(Kind.TESTED, 1, 0, round=2, meta=GOOD))  # without a request
    rows = tests.collect({})
    assert rows == [measures(GOOD), {}, {}, {"accuracy": 1.0, "balanced_accuracy": 1.0, "samples": 1}, {}]


def test_a_silo_finds_its_folder_again(tmp_path):
    run = "0db7231435f4cead"
    made = OwnFolder(tmp_path, "federation", run)
    made.create()
    assert re.fullmatch(rf"federation-\d{{8}}-\d{{6}}-{run}", made.path.name)
    assert OwnFolder(tmp_path, "renamed", run).path == made.path
    made.append(made.metrics, {"round": 0, "loss_terms": {}})
    made.append(made.metrics, {"round": 1, "loss_terms": {}})
    made.tested(1, {"accuracy": 0.5})
    made.tested(2, {"accuracy": 0.6})  # in which the silo did not take part
    assert read_lines(made.path / "metrics.jsonl") == [
        {"round": 0, "loss_terms": {}}, {"round": 1, "loss_terms": {}, "accuracy": 0.5}, {"round": 2, "accuracy": 0.6},
    ]  # fmt: skip
