import json

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.engine.client_state import StateStore
from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.runs.checkpoint import Checkpoint
from fl_labelskew_plugins.runs.folder import RunFolder, summary
from fl_labelskew_plugins.tensors import save_atomic


def test_truncate_drops_later_rounds_and_a_line_cut_in_half(tmp_path):
    folder = RunFolder(tmp_path)
    folder.diagnostics.mkdir()
    file = folder.diagnostics / "tsne.jsonl"
    for line in ({"round": 0, "client": 1}, {"round": 0, "client": 2}, {"round": 3, "client": 1}):
        folder.append(file, line)
    for round in range(4):
        folder.append(folder.metrics, {"round": round, "accuracy": 0.1 * round})
    with folder.metrics.open("a") as stream:
        stream.write('{"round": 4, "accu')
    assert len(read_lines(folder.metrics)) == 4
    before = folder.metrics.read_text().splitlines(keepends=True)
    folder.truncate(3)
    assert folder.metrics.read_text() == "".join(before[:3])
    assert read_lines(file) == [{"round": 0, "client": 1}, {"round": 0, "client": 2}]
    assert [path.name for path in folder.diagnostics.iterdir()] == ["tsne.jsonl"]


def test_non_finite_numbers_are_null_in_a_line(tmp_path):
    """Finite weights may have a loss that is not; NaN and Infinity are no JSON."""
    folder, inf = RunFolder(tmp_path), float("inf")
    folder.append(folder.metrics, {"round": 0, "loss": inf - inf, "loss_terms": {"a": inf, "b": 2.5}, "recall": [-inf]})
    line = '{"round": 0, "loss": null, "loss_terms": {"a": null, "b": 2.5}, "recall": [null]}\n'
    assert folder.metrics.read_text() == line


def test_a_checkpoint_is_restored(tmp_path):
    folder = RunFolder(tmp_path)
    states = StateStore(folder.states)
    states.put(2, 0, {"hpm.w": torch.ones(2)})
    states.select(2)
    states.commit()
    weights = {"a.b": torch.randn(3), "steps": torch.tensor(7)}
    tensors = {"shared": {"prior": torch.rand(4)}, "memory": {"h/a.b": torch.zeros(3)}}
    folder.save_checkpoint(Checkpoint(5, weights, **tensors, sizes=[7, 9], opened=[1], seconds=1.5), states)
    back = folder.load_checkpoint(torch.device("cpu"))
    assert (back.round, back.seconds, back.states, back.selections) == (5, 1.5, {2: 0}, {2: 1})
    assert (back.sizes, back.opened) == ([7, 9], [1])
    assert all(torch.equal(back.weights[k], weights[k]) for k in weights)
    assert back.shared["prior"].shape == (4,)
    assert back.memory["h/a.b"].tolist() == [0, 0, 0]
    assert StateStore(folder.states, back.states).get(2)["hpm.w"].tolist() == [1, 1]
    back = folder.load_checkpoint(tensors=False)
    assert (back.round, back.sizes, back.weights, back.memory) == (5, [7, 9], {}, {})


def saved(folder, states, round, keep):
    states.put(1, round - 1, {"hpm.w": torch.full((2,), float(round))})
    states.commit()
    state = Checkpoint(round, {"w": torch.full((2,), float(round))}, sizes=[7], medians={"w": 0.5}, seconds=1.0)
    folder.save_checkpoint(state, states, keep=keep)
    folder.append(folder.metrics, {"round": round - 1})


def test_the_last_checkpoints_are_kept_with_the_states_that_they_refer_to(tmp_path):
    folder = RunFolder(tmp_path)
    states = StateStore(folder.states)
    for round in (2, 4, 5, 8):
        saved(folder, states, round, keep=3)
    assert list(folder.earlier()) == [4, 5]
    assert states.kept(1) == [3, 4, 7]
    assert len(list(folder.states.iterdir())) == 3
    again = StateStore(folder.states, folder.load_checkpoint().states, None, folder.indices(8))
    saved(folder, again, 9, keep=2)  # fewer than before
    assert (list(folder.earlier()), again.kept(1)) == ([8], [7, 8])
    assert len(list(folder.states.iterdir())) == 2
    assert folder.load_checkpoint().weights["w"].tolist() == [9, 9]


def test_going_back_restores_a_checkpoint_and_moves_later_files(tmp_path):
    folder = RunFolder(tmp_path)
    states = StateStore(folder.states)
    line = f"--from-round 2: {tmp_path} has no checkpoint yet; use only --resume"
    assert message(lambda: folder.go_back(2)).startswith(line)
    for round in (1, 2, 3, 4):
        saved(folder, states, round, keep=3)
    (tmp_path / "summary.json").write_text("{}")
    assert "no checkpoint of the end of round 1; existing ones: 2, 3 and 4 " in message(lambda: folder.go_back(1))
    assert folder.go_back(4) == ""
    assert (tmp_path / "summary.json").exists()
    said = folder.go_back(2)
    assert said == f"back at the end of round 2; data of later rounds were moved to {tmp_path}/abandoned-1"
    back = folder.load_checkpoint()
    assert (back.round, back.weights["w"].tolist(), back.states) == (2, [2, 2], {1: 1})
    assert back.medians == {"w": 0.5}
    assert folder.earlier() == {}
    assert [line["round"] for line in read_lines(folder.metrics)] == [0, 1]
    assert [line["round"] for line in read_lines(tmp_path / "abandoned-1" / "metrics.jsonl")] == [2, 3]
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "abandoned-1" / "summary.json").exists()
    assert StateStore(folder.states, back.states, None, folder.indices(2)).get(1)["hpm.w"].tolist() == [2, 2]
    assert "existing ones: only 2" in message(lambda: folder.go_back(9))
    saved(folder, StateStore(folder.states, back.states, None, folder.indices(2)), 3, keep=3)
    folder.checkpoint.write_bytes(b"broken")
    assert folder.go_back(2).startswith("back at the end of round 2; ")
    assert folder.load_checkpoint().round == 2
    assert (tmp_path / "abandoned-2" / "metrics.jsonl").exists()


def test_no_checkpoint_yet_and_a_broken_one(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.load_checkpoint(torch.device("cpu")) is None
    folder.checkpoint.parent.mkdir()
    folder.checkpoint.write_bytes(b"\x80\x04\x95 not a checkpoint")
    assert "is not a checkpoint" in message(lambda: folder.load_checkpoint(torch.device("cpu")))


@pytest.mark.parametrize(
    "meta",
    [
        [1], {"round": "x"}, {}, {"round": 1, "medians": [1]}, {"round": 1, "of_a_later_version": 1},
        {"round": 1, "clients": {}}, {"round": 1, "states": [1]},
    ],
)  # fmt: skip
def test_a_damaged_or_newer_header_is_a_line(tmp_path, meta):
    folder = RunFolder(tmp_path)
    folder.checkpoint.parent.mkdir()
    header = {"seconds": 1.0} | meta if isinstance(meta, dict) else meta
    save_atomic({}, folder.checkpoint, {"labelskew": json.dumps(header)})
    assert "latest.safetensors is not a checkpoint of a run: " in message(folder.load_checkpoint)


def test_summary_by_hand():
    tests = [0.2, 0.5, 0.9, 0.7]
    lines = [
        {
            "round": i, "accuracy": a, "balanced_accuracy": a / 2, "bytes_up": 1, "bytes_down": 2,
            "personalised_accuracy": None if i < 3 else 0.8, "client_accuracy": [a, None],
        }
        for i, a in enumerate(tests)
    ]  # fmt: skip
    result = summary([*lines, {"round": 4, "bytes_up": 1, "bytes_down": 2}], 2)
    assert result == {
        "rounds": 5, "measure": "accuracy", "final_accuracy": 0.7, "best_accuracy": 0.9, "rounds_to_best": 3,
        "last_tests": 2,
        "last_mean": pytest.approx(0.8), "last_std": pytest.approx(0.1), "bytes_up": 5, "bytes_down": 10,
        "personalised_last_mean": 0.8, "balanced_last_mean": pytest.approx(0.4), "client_accuracy": [0.7, None],
    }  # fmt: skip
    told = {"client_accuracy": [0.5, None], "client_accuracy_worst": 0.5, "client_accuracy_worst_client": "silo 1"}
    alone = summary([{"round": 0} | told, {"round": 1}], 2)  # the server has no test data
    assert alone == {"rounds": 2, "bytes_up": 0, "bytes_down": 0} | told
    for key in ("client_accuracy_mean", "client_accuracy_pooled"):  # no global test set
        by_clients = summary([{"round": r, "personalised_accuracy": 0.25, key: a} for r, a in enumerate(tests)], 2)
        assert (by_clients["measure"], by_clients["final_accuracy"], by_clients[key]) == (key, 0.7, 0.7)
        assert (by_clients["best_accuracy"], by_clients["rounds_to_best"]) == (0.9, 3)
        assert by_clients["last_mean"] == pytest.approx(0.8)
        assert by_clients["personalised_last_mean"] == 0.25
    late = [{"bytes_up": 0, "bytes_down": 0, "opening_left_out": clients} for clients in ([3, 1], [1])]
    assert summary([*late, {"bytes_up": 0, "bytes_down": 0}], 5)["opening_left_out"] == [1, 3]
    assert summary([{"round": 0, "bytes_up": 1, "bytes_down": 2}], 5) == {"rounds": 1, "bytes_up": 1, "bytes_down": 2}


def test_a_process_that_lost_its_lock_stops_writing(tmp_path):
    folder = RunFolder(tmp_path)
    folder.hold()
    folder.append(folder.metrics, {"round": 0})
    theirs = '{"pid": 7, "machine": "north"}'
    (tmp_path / locks.NAME).write_text(theirs)  # which has waited long enough
    for write in (lambda: folder.append(folder.metrics, {"round": 1}), lambda: folder.write_text("summary.json", "{}")):
        assert f"{tmp_path}: process 7 on north has taken over this run" in message(write, kind=RunError)
    folder.set_status(state="failed")
    folder.release()
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert texts == {locks.NAME: theirs, "metrics.jsonl": '{"round": 0}\n'}


@pytest.mark.parametrize(
    "target", ["../secret", "../elsewhere", "../missing", "../run2", "link", "checkpoint/../../secret"]
)
def test_check_resumable_rejects_links_that_lead_out_of_the_folder(tmp_path, target):
    (tmp_path / "secret").write_text("secret")
    for name in ("elsewhere", "run2", "run/checkpoint"):
        (tmp_path / name).mkdir(parents=True)
    run = tmp_path / "run"
    (run / "recipe.yaml").write_text("{}")
    (run / "latest-run").symlink_to("checkpoint")
    (run / "checkpoint" / "log").symlink_to(run / "recipe.yaml")
    (run / "checkpoint" / "empty").symlink_to("not-there-yet")
    RunFolder(run).check_resumable()  # W&B makes such links
    link = run / "checkpoint" / "metrics.jsonl"
    link.symlink_to("../link" if target == "link" else f"../{target}")
    if target == "link":
        (run / "link").symlink_to(tmp_path / "secret")
    assert message(RunFolder(run).check_resumable) in {
        f"--resume {run}: {file} is a link to a path outside of the folder; remove it" for file in (link, run / "link")
    }
    assert (tmp_path / "secret").read_text() == "secret"
