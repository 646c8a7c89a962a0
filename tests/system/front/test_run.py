"""Runs from Python: started, interrupted, gone on with and looked at; with names and with objects."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import errors
from error_messages import message
from fl_labelskew_registry import Arrays, Data, LabelSkewError, Method
from recipe_texts import DIGITS
from safetensors.torch import load_file
from torch import nn

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.runs.record import Record

RECIPE = DIGITS | {"method_args": {"method": "map"}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_LABELSKEW_PICTURES", "yes")
        return fl.run(fl.load(RECIPE), tmp_path_factory.mktemp("runs") / "out", quiet=True)


class Ends:
    """A callback that draws, and ends the run after its first round."""

    def __init__(self, error=KeyboardInterrupt):  # as Ctrl-C
        self.error = error

    def on_round(self, run, line):
        random.random(), np.random.rand(), torch.rand(1)
        torch.set_num_threads(torch.get_num_threads() + 1)
        self.seen = (run.folder, line["round"], len(run.metrics))
        raise self.error


@pytest.mark.parametrize("host", ["none", pytest.param("fedml", marks=pytest.mark.host)])
def test_run_restores_the_callers_generators_and_threads(tmp_path, host):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before, threads = (random.getstate(), np.random.get_state(), torch.get_rng_state()), torch.get_num_threads()
    whole, error = fl.run(RECIPE, tmp_path / "whole", quiet=True, host=host), LookupError("enough")
    with pytest.raises(LookupError) as caught:
        fl.run(RECIPE, tmp_path / "stopped", quiet=True, host=host, callbacks=[Ends(error)])
    assert caught.value is error
    assert caught.value.__context__ is None  # nothing of ours went wrong on its way
    resumed = fl.load_run(tmp_path / "stopped").resume(quiet=True)
    assert (resumed.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
    assert random.getstate() == before[0]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[1], strict=True))
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.get_num_threads() == threads


def test_simulate_sets_threads_only_within_rounds(tmp_path, monkeypatch):
    before, finish, at_the_end = torch.get_num_threads(), Record.finish, []
    monkeypatch.setattr(Record, "finish", lambda *args: at_the_end.append(torch.get_num_threads()) or finish(*args))
    loop = fl.simulate(fl.load(RECIPE, {"device_args.threads": before + 1}), tmp_path / "run")
    assert [torch.get_num_threads() for _ in loop] == [before] * 2
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["threads"] == before + 1
    assert (at_the_end, torch.get_num_threads()) == ([before + 1], before)


def test_a_recipe_from_a_mapping_with_changes():
    recipe = fl.load(
        RECIPE | {"tracking_args": {"run_dir": Path("there")}},
        {"train_args.comm_round": 7, "model_args.hidden": [4, 4], "data_args.data_cache_dir": Path("data")},
    )
    assert (recipe.train.comm_round, recipe.network.params.hidden) == (7, [4, 4])
    with pytest.raises(LabelSkewError, match=r"train_args.comm_rounds"):
        fl.load(RECIPE, {"train_args.comm_rounds": 7})


def test_attributes_of_a_finished_run(finished):
    assert finished.finished
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert finished.accuracy == lines[-1]["accuracy"] == finished.summary["final_accuracy"]
    assert finished.metrics.accuracy.tolist() == [line["accuracy"] for line in lines]
    assert "loss_terms.cross_entropy" in finished.metrics
    counts = json.loads((finished.folder / "partition.json").read_text())["counts"]
    assert finished.partition.to_numpy().tolist() == counts
    assert repr(finished).endswith(f"map on digits, 2 rounds, accuracy {100 * finished.accuracy:.2f} %")


def test_a_folder_without_a_run_is_a_one_line_error(tmp_path):
    with pytest.raises(LabelSkewError, match=r"is not the folder of a run; use one that fl.run or"):
        fl.load_run(tmp_path)
    (tmp_path / "recipe.yaml").write_text("method_args: {method: fedavg}\n")
    (tmp_path / "metrics.jsonl").write_text('{"round": 0, "accuracy": "bad"}\n')
    with pytest.raises(LabelSkewError, match=r"damaged: recipe.yaml or metrics.jsonl has unexpected content"):
        repr(fl.load_run(tmp_path))
    for text in ("[]", '{"objects": []}'):
        (tmp_path / "environment.json").write_text(text)
        with pytest.raises(LabelSkewError, match=r"environment.json: is damaged: "):
            fl.load_run(tmp_path)


def test_models_of_a_run_have_the_weights_of_its_files(finished):
    models = {"model.safetensors": finished.model, "clients/client000003.safetensors": finished.personalised(3)}
    for file, model in models.items():
        weights = load_file(finished.folder / file)
        assert not model.training
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    with pytest.raises(LabelSkewError, match=r"client000009.safetensors: no such file; map: client 9 has no own model"):
        finished.personalised(9)


def test_open_is_deprecated(finished):
    with pytest.warns(DeprecationWarning, match=r"fl\.open is now fl\.load_run"):
        assert fl.open(finished.folder).folder == finished.folder
    assert "open" not in fl.__all__
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = fl.lod


def test_a_notebook_shows_text_and_pictures_with_cleaned_names(finished):
    page = finished._repr_html_()
    assert page.count("data:image/png;base64,iVBOR") == 2
    recipe = finished.folder / "recipe.yaml"
    kept = recipe.read_text()
    recipe.write_text(kept.replace("dataset: digits", "dataset: <script>"))
    page = fl.load_run(finished.folder)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    recipe.write_text("{")
    with pytest.raises(LabelSkewError, match=r"recipe.yaml: is damaged: "):
        repr(fl.load_run(finished.folder))
    recipe.write_text(kept)


def test_a_run_interrupted_by_a_callback_resumes_with_identical_results(finished, tmp_path):
    callback = Ends()
    with pytest.raises(KeyboardInterrupt, match="interrupted after 1 of 2 rounds; to resume: labelskew run --resume"):
        fl.run(RECIPE, tmp_path / "cut", callbacks=[callback], quiet=True)
    assert callback.seen == (tmp_path / "cut", 0, 1)
    cut = fl.load_run(tmp_path / "cut")
    assert not cut.finished
    assert cut.summary == {}
    with pytest.raises(LabelSkewError, match=r"model.safetensors: no such file; it is written after the last round"):
        _ = cut.model
    whole = cut.resume(quiet=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (whole.folder / name).read_bytes() == (finished.folder / name).read_bytes()


class Louder(Method):
    """Logits times two."""

    def calibrate(self, logits, client):
        return 2 * logits


@pytest.fixture(scope="module")
def objects():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    torch.manual_seed(0)
    parts = [np.flatnonzero(y[:1500] % 5 == k) for k in range(5)]
    return {
        "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        "dataset": ((x[:1500], y[:1500]), (x[1500:], y[1500:])),
        "method": Louder(),
        "partition": parts,
    }


def test_objects_are_recorded_and_required_to_resume(finished, objects, tmp_path):
    before = objects["model"][1].weight.clone()
    run = fl.run(RECIPE, tmp_path / "out", **objects, quiet=True)
    assert torch.equal(objects["model"][1].weight, before)
    assert type(run.model) is nn.Sequential
    assert not torch.equal(run.model[1].weight, before)
    assert run.partition.to_numpy()[2].nonzero()[0].tolist() == [2, 7]
    record = json.loads((run.folder / "environment.json").read_text())["objects"]
    assert record.keys() == {"model_args", "data_args", "method_args", "partition_args"}
    with pytest.raises(LabelSkewError, match=r"model was Sequential, .* in this run, got Linear, 650 parameters"):
        fl.load_run(run.folder, model=nn.Linear(64, 10))
    assert repr(fl.load_run(run.folder, **objects)) == repr(run)
    # without the objects
    alone = fl.load_run(run.folder)
    assert alone.metrics.equals(run.metrics)
    assert (alone.accuracy, alone.summary, repr(alone)) == (run.accuracy, run.summary, repr(run))
    assert alone.partition.equals(run.partition)
    needs_model = (
        r"out: missing Python objects of this run: model \(Sequential, 650 parameters, shapes .*\); give the same "
        r"objects, in Python: fl.load_run\('.*out', model=...\){}; "
        r"to load only its weights: safetensors.torch.load_file\('.*{}'\)"
    )
    with pytest.raises(LabelSkewError, match=needs_model.format(".model", "model.safetensors")):
        _ = alone.model
    with pytest.raises(LabelSkewError, match=needs_model.format(r".predict\(...\)", "best.safetensors")):
        alone.predict(np.zeros((1, 1, 8, 8), np.float32), best=True)
    for then, use in ((".resume()", alone.resume), (".recipe", lambda: alone.recipe)):
        line = message(use)
        assert re.search(r"objects of this run: model \(Sequential.*dataset \(.*method \(.*partition", line)
        given = "model=..., dataset=..., method=..., partition=..."
        assert line.endswith(f"fl.load_run({str(run.folder)!r}, {given}){then}")
    with pytest.raises(LabelSkewError, match=r"missing .*: dataset .*, model=..., dataset=..., method=..., partition="):
        fl.load_run(run.folder, model=objects["model"]).resume()
    (line,) = errors("predict", run.folder, run.folder)
    assert "its network was an object (Sequential, 650 parameters" in line
    with_model = fl.load_run(run.folder, model=objects["model"])
    assert torch.equal(with_model.model[1].weight, run.model[1].weight)
    assert len(with_model.predict(objects["dataset"][1][0][:3])) == 3
    with pytest.raises(LabelSkewError, match="this run had no Python object for method; omit it"):
        fl.load_run(finished.folder, method=Louder())


def test_the_command_line_explains_how_to_resume_a_run_with_objects(objects, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fl.run(RECIPE, tmp_path / "cut", method=objects["method"], callbacks=[Ends()], quiet=True)
    (line,) = errors("run", "--resume", tmp_path / "cut")
    assert "missing Python objects of this run: method (Louder()); give the same objects, in Python: " in line
    assert type(fl.load_run(tmp_path / "cut").best.classifier) is nn.Linear  # its network has a name
    whole = fl.load_run(tmp_path / "cut", method=objects["method"]).resume(quiet=True)
    assert whole.finished


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"method": Louder()}, "objects of this process; use sp"),
        ({"model": nn.Linear(64, 10)}, "objects of this process; use sp, or model_args.model: FILE.py:FUNCTION"),
        ({"callbacks": [Ends()]}, "callbacks of this process; use sp"),
    ],
)
def test_objects_and_callbacks_need_one_process(more, what, tmp_path):
    recipe = fl.load(RECIPE, {"comm_args.backend": "MPI"})
    line = message(lambda: fl.run(recipe, tmp_path / "out", **more))
    assert line.endswith(f"MPI trains in other processes, which cannot use {what}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("backend", "every"), [("sp", 2), ("MPI", 1), ("GRPC", 1)])
def test_resume_with_more_rounds_equals_a_longer_run(backend, every, tmp_path, fork_children):
    recipe = DIGITS | {"validation_args": {"frequency_of_the_test": every}, "comm_args": {"backend": backend}}
    if backend == "sp":
        recipe["tracking_args"] = {"diagnostics": ["class_accuracy"], "diagnostics_every": every}
    else:  # a process each
        recipe["tracking_args"] = {"trackers": ["csv"]}
        recipe["train_args"] = recipe["train_args"] | {"client_num_in_total": 2}
        recipe["partition_args"] = {"partition_method": "iid"}
    if backend == "GRPC":
        recipe["common_args"] = {"training_type": "cross_silo"}
    long, short = (fl.load(recipe, {"train_args.comm_round": rounds}) for rounds in (5, 4))
    long = fl.run(long, tmp_path / "long", quiet=True, host="none")
    run = fl.run(short, tmp_path / "short", quiet=True, host="none").resume(comm_round=5, quiet=True)
    names = ["metrics.jsonl", "model.safetensors", "best.safetensors", "recipe.yaml", "MODEL_CARD.md", "confusion.csv"]
    names += ["diagnostics/class_accuracy.jsonl"] if backend == "sp" else []
    assert [name for name in names if (run.folder / name).read_bytes() != (long.folder / name).read_bytes()] == []
    assert run.summary | {"seconds": 0} == long.summary | {"seconds": 0}
    tables = [file.read_text().splitlines() for file in long.folder.rglob("rounds.csv")]  # only of the server
    assert [len(rows) for rows in tables] == ([] if backend == "sp" else [1 + 5])
    assert not [*tmp_path.rglob("fedml.yaml")]
    assert json.loads((run.folder / "after-4-rounds" / "summary.json").read_text())["rounds"] == 4


@pytest.mark.parametrize(
    ("overrides", "rounds", "line"),
    [
        ({}, 1, "has 2 complete rounds; use a number above 2"),
        ({"method_args.method": "fedphp"}, 3, "depend on this number (method_args.method: fedphp)"),
        ({"method_args.method": ["fedproc", "fedrs"]}, 3, "depend on this number (method_args.method: fedproc)"),
    ],
)
def test_resume_refuses_rounds_that_would_change_results(overrides, rounds, line, tmp_path):
    run = fl.run(fl.load(DIGITS, {"train_args.comm_round": 2} | overrides), tmp_path / "run", quiet=True, host="none")
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    with pytest.raises(LabelSkewError, match=f"--set train_args.comm_round={rounds}: .*{re.escape(line)}"):
        run.resume(comm_round=rounds, quiet=True)
    assert {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()} == before


def test_a_users_loop_gives_the_same_run(finished, tmp_path):
    federation = fl.simulate(RECIPE, tmp_path / "loop")
    before = federation.model
    for line in federation:
        if line["round"] == 0:
            assert federation.run.metrics.index.tolist() == [0]
            break
    for line in federation:
        assert line["round"] == 1
    assert not torch.equal(federation.model.classifier.weight, before.classifier.weight)
    assert torch.equal(federation.model.classifier.weight, finished.model.classifier.weight)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (federation.run.folder / name).read_bytes() == (finished.folder / name).read_bytes()
    assert federation.run.finished
    with pytest.raises(LabelSkewError, match=r"MPI: fl\.simulate runs in one process; use sp"):
        fl.simulate(fl.load(RECIPE, {"comm_args.backend": "MPI"}))


def test_report_of_a_run(finished, tmp_path):
    report = fl.report([finished], last=1)
    assert report.table.accuracy.tolist() == [pytest.approx(100 * finished.accuracy)]
    assert "map" in repr(report)
    assert report.save(tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_clients_that_are_groups_are_found_by_name(tmp_path, capsys):
    rng = np.random.default_rng(0)
    parts = [Arrays(rng.random((n, 64), np.float32), np.arange(n) % 10, np.arange(n) // 10 % 3) for n in (60, 30)]
    data = Data(*parts, [str(c) for c in range(10)], group_names=["coast", "north", "so\x1buth"])
    changes = {"train_args.client_num_in_total": 3, "validation_args.per_client": True}
    recipe = fl.load(RECIPE | {"partition_args": {"partition_method": "natural"}}, changes)
    run = fl.run(recipe, tmp_path / "out", dataset=data)
    assert run.partition.index.tolist() == ["coast", "north", "so?uth"]
    assert run.partition.loc["north"].tolist() == [2] * 10
    by_name, by_number = run.personalised("north"), run.personalised(1)
    assert torch.equal(by_name.classifier.weight, by_number.classifier.weight)
    line = "client nord: is not in this run; use one of coast, north, so?uth, or a number"
    with pytest.raises(LabelSkewError, match=re.escape(line)):
        run.personalised("nord")
    told = capsys.readouterr().out
    assert "(natural: coast, north, so?uth)" in told
    assert re.search(r"accuracy, each client's tests +coast [\d.]+, north [\d.]+, so\?uth [\d.]+\n", told)
