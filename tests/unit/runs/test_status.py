import json
import re

import pytest
from commands import call
from fl_labelskew_registry import RunError
from recipe_texts import text_with

from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.runtimes.options import RunOptions


def shown(folder, *more, code=0):
    return call("status", folder, *more, code=code).output


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.hold()
    made.set_status(rounds=9, resume="labelskew run --resume run", state=status.RUNNING)
    made.write_text("recipe.yaml", "")
    for round in range(3):
        made.append(made.metrics, {"round": round} | ({"accuracy": 0.5} if round == 1 else {}))
    yield made
    made.release()


def test_a_running_run(folder):
    first, second = shown(folder.path).splitlines()
    assert re.fullmatch(rf"{folder.path}: running, process \d+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d", first)
    assert second == "rounds done: 3 of 9; accuracy 50.00 % after round 2"
    with folder.metrics.open("a") as file:
        file.write('{"round": 3, "acc')  # cut in half
    known = json.loads(shown(folder.path, "--json"))
    assert (known["state"], known["rounds_done"], known["accuracy_round"]) == ("running", 3, 2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", known["time"])


@pytest.mark.parametrize(
    ("key", "name", "samples"),
    [
        ("client_accuracy_mean", "clients' mean", "clients' own test splits, mean over the clients"),
        ("client_accuracy_pooled", "clients pooled", "clients' own test splits, all samples together"),
    ],
)
def test_accuracy_without_a_global_test_is_that_of_the_clients(folder, key, name, samples):
    folder.metrics.write_text(json.dumps({"round": 0, key: 0.25}) + "\n")
    lines = ["rounds done: 1 of 9; accuracy 25.00 % after round 1", f"tested on: {samples}"]
    assert shown(folder.path).splitlines()[1:] == lines
    assert json.loads(shown(folder.path, "--json"))["measure"] == key
    assert f"25.00 % ({name})" in shown(folder.path.parent)


def test_status_of_a_killed_process(folder):
    number = status.read(folder.path)["process"]
    folder.release()
    assert shown(folder.path).splitlines() == [
        f"{folder.path}: stopped",
        "rounds done: 3 of 9; accuracy 50.00 % after round 2",
        f"reason: process {number} ended without a message",
        "to resume: labelskew run --resume run",
    ]
    folder.recipe.unlink()
    assert "to resume: start it again; no round is lost" in shown(folder.path)


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (KeyboardInterrupt(), "stopped", "interrupted"),
        (RunError("round 3: training diverged; use a smaller x"), "diverged", "round 3: training diverged; use a "),
        (RunError("round 3: 0 of at least 2 uploads arrived"), "failed", "round 3: 0 of at least 2 uploads arrived"),
        (ZeroDivisionError(), "failed", "ZeroDivisionError"),
    ],
)
def test_reason_of_an_interrupted_run(error, state, reason, folder):
    with pytest.raises(type(error)), status.ending(folder.set_status):
        raise error
    folder.release()
    known = status.read(folder.path)
    assert (known["state"], known["reason"][: len(reason)]) == (state, reason)
    assert known["resume"] == "labelskew run --resume run"
    folder.hold()  # resumed: facts of an earlier process are replaced
    assert status.read(folder.path)["state"] == "running"
    assert status.read(folder.path)["reason"] is None


def test_status_is_not_written_without_the_lock_or_on_a_full_disk(folder):
    before = (folder.path / status.NAME).read_bytes()
    RunFolder(folder.path).set_status(state=status.FAILED)
    (folder.path / f"{status.NAME}.part").mkdir()
    folder.set_status(state=status.FINISHED)
    assert (folder.path / status.NAME).read_bytes() == before


def test_a_folder_that_is_not_a_run(tmp_path):
    assert shown(tmp_path / "x", code=2) == f"error: {tmp_path}/x: no such folder; use the folder of a run or a sweep\n"
    assert shown("x" * 300, code=2) == f"error: {'x' * 300}: cannot be read: File name too long\n"
    (tmp_path / "odd" / "status.json").mkdir(parents=True)
    assert shown(tmp_path / "odd", code=2) == f"error: {tmp_path}/odd/status.json: cannot be read: Is a directory\n"
    line = f"error: {tmp_path}: contains neither status.json nor recipe.yaml; use the folder of a run or a sweep\n"
    assert shown(tmp_path, code=2) == line


def test_runs_of_a_sweep(folder, tmp_path):
    long = "p10c2-" + "x" * 90 + "-seed7"
    (tmp_path / "sweep.json").write_text(json.dumps({"later": {}, "run": {"label": "a"}, long: {}}))
    done, broken, damaged = (RunFolder(tmp_path / name) for name in (long, "broken", "damaged"))
    for made in (done, broken, damaged):
        made.hold()
        made.write_text("recipe.yaml", "")
        made.append(made.metrics, {"round": 0, "accuracy": 0.123})
        made.set_status(rounds=1, state=status.RUNNING)
        made.release()
    done.write_json("summary.json", {})
    broken.set_status()
    broken.hold()
    broken.set_status(state=status.FAILED, reason="\x1b[2Jout of memory in round 2, client 3; use a smaller batch_size")
    broken.release()
    (damaged.path / status.NAME).write_text("{")
    output = call("status", tmp_path, COLUMNS="80").output
    assert max(map(len, output.splitlines())) <= 80
    cells = [re.split("  +", line) for line in output.splitlines()]
    assert cells[0] == ["run", "state", "rounds", "accuracy", "process or reason"]
    assert cells[1] == ["later", "not begun"]
    assert cells[2][:4] == ["run", "running", "3/9", "50.00 %"]
    assert cells[2][4].startswith("process ")
    assert re.match(r"p10c2-x+\.\.\.x+-seed7  finished +1/1 +12.30 %$", output.splitlines()[3])
    assert cells[4][:3] == ["broken", "failed", "1/1"]
    assert "?[2Jout of memory" in output
    assert any(row[:2] == ["damaged", "unreadable"] for row in cells)
    assert output.endswith("\n5 runs: 1 finished, 1 running, 1 failed, 1 unreadable, 1 not begun\n")
    known = json.loads(shown(tmp_path, "--json"))
    assert [run["state"] for run in known["runs"]] == ["not begun", "running", "finished", "failed", "unreadable"]
    assert known["runs"][1]["rounds_done"] == 3


def test_a_damaged_run_hides_no_other_run_of_a_sweep(folder, tmp_path):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    odd = ("x" * 400, "ä" * 200, "\ud800", "a\0b", "../run", str(folder.path), "..", ".", "")
    (sweep / "sweep.json").write_text(json.dumps({name: {} for name in ("text", "huge", "later", *odd)}))
    for name, accuracy in (("text", '"bad"'), ("huge", "1" * 5000)):
        (sweep / name).mkdir()
        (sweep / name / "recipe.yaml").touch()
        (sweep / name / "metrics.jsonl").write_text(f'{{"round": 0, "accuracy": {accuracy}}}\n')
    output = shown(sweep)
    assert re.search(r"(?m)^text +unreadable ", output)
    assert re.search(r"(?m)^huge +stopped ", output)  # a line that no JSON reader accepts counts as missing
    assert re.search(r"(?m)^later +not begun", output)
    assert "metrics.jsonl was changed" in " ".join(output.split())
    assert output.endswith("\n4 runs: 1 stopped, 2 unreadable, 1 not begun\n")
    assert str(folder.path) not in output


@pytest.mark.parametrize("text", ["", "[]", "{", '{"silos": 3}', '{"silos": [{"rank": 1}]}', "[" * 100_000, "\udcff"])
def test_a_damaged_status_file(text, folder):
    (folder.path / status.NAME).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert shown(folder.path, code=2).startswith(f"error: {folder.path}/status.json: was changed or damaged; ")


def test_values_of_wrong_types_are_damage_and_control_characters_are_removed(folder):
    silo = {"rank": 1, "name": "a\x1b[31m\nround 9/9", "since": "yesterday"}
    folder.set_status(silos=[silo], address="x")
    assert shown(folder.path, code=2).startswith(f"error: {folder.path}/status.json: was changed or damaged; ")
    folder.set_status(silos=[silo | {"since": None}], reason="\x1b[2J")
    assert "a?[31m?round 9/9" in shown(folder.path)
    folder.release()
    folder.set_status()
    assert "\x1b" not in shown(folder.path)


def test_status_of_silos():
    silos = status.Silos(status.names(["a/north.yaml", "south.yaml"], 2))
    for line in (
        {"event": "refused", "time": "0"},
        {"event": "received", "rank": 1, "time": "1", "kind": "HELLO", "bytes": 10, "round": None},
        {"event": "connected", "rank": 1, "time": "2", "peer": "192.0.2.1:4711"},
        {"event": "received", "rank": 1, "time": "3", "kind": "UPLOAD", "bytes": 1000, "round": 4},
        {"event": "sent", "rank": 1, "time": "4", "kind": "TRAIN", "bytes": 500},
        {"event": "received", "rank": 2, "time": "5", "kind": "UPLOAD", "bytes": 7},
        {"event": "sent in part", "rank": 2, "time": "5", "kind": "TRAIN", "bytes": 3},
        {"event": "connected", "rank": 2, "time": "6"},
        {"event": "left", "rank": 2, "time": "7"},
        {"event": "refused", "rank": 3, "time": "8"},
    ):
        silos.hear(line)
    north, south = silos.rows({0}, {1}, {1: "b\na"}, {1})
    assert north == {
        "rank": 1, "name": "north", "connected": True, "since": "2", "left_out": False, "turned_away": None,
        "excluded": False, "peer": "192.0.2.1:4711", "upload": {"time": "3", "round": 5, "bytes": 1000},
        "bytes_in": 1010, "bytes_out": 500,
    }  # fmt: skip
    assert south["upload"] == {"time": "5", "round": 0, "bytes": 7}
    assert (south["connected"], south["since"], south["turned_away"], south["bytes_out"]) == (False, "7", "b?a", 3)
    assert south["excluded"] is True


def test_a_file_is_written_once_a_second_at_most(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    silos = status.Silos([""])
    assert [silos.due(), silos.due()] == [True, False]
    now[0] += 1
    assert silos.due()


def test_runs_of_one_process(tmp_path):
    out, recipe = tmp_path / "run", tmp_path / "recipe.yaml"
    few = {"client_num_in_total": 2, "comm_round": 3, "learning_rate": 0.1}
    recipe.write_text(text_with(partition_args={"classes_per_client": 5}, train_args=few))
    quick = {"quiet": True, "host": "none"}
    start.start(RunOptions(recipe, (), run_dir=out, pause=Pause(1, float("inf")), **quick))
    known = status.read(out)
    assert (known["state"], known["rounds_done"], known["rounds"]) == ("paused", 1, 3)
    assert f"--resume {out} " in known["resume"]
    start.start(RunOptions(resume=out, **quick))
    known = status.read(out)
    assert (known["state"], known["resume"], known["silos"]) == ("finished", None, [])
    with pytest.raises(RunError):
        start.start(RunOptions(recipe, ["train_args.learning_rate=1e30"], run_dir=tmp_path / "odd", **quick))
    assert status.read(tmp_path / "odd")["state"] == "diverged"
