"""Diagnostics of real runs: identical results, continuation after a kill, and refusals."""

import json
import shutil
from typing import get_args
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from error_messages import message
from federations import cached_runs
from PIL import Image
from safetensors.torch import load_file

from fl_labelskew_plugins.diagnostics import uploads
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.recipe.mistakes import RecipeError
from fl_labelskew_plugins.recipe.sections import IN_TRAINING, DiagnosticName
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runtimes.options import RunOptions

BASE = """\
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 3}
model_args: {model: mlp, hidden: [16, 2], relu_features: false}
train_args: {client_num_in_total: 6, client_num_per_round: 4, comm_round: 4, epochs: 2, batch_size: 32,
             learning_rate: 0.1}
method_args: {method: fedrs}
device_args: {threads: 1}
tracking_args: {checkpoint_every: 1}
"""
FLAT = [name for name in get_args(DiagnosticName) if name != "feature_sphere"]


def load(*overrides):
    return parse.parse(BASE, overrides=overrides)


def diagnostics(*names):
    return f"tracking_args.diagnostics=[{', '.join(names)}]"


@pytest.fixture(scope="module")
def go(tmp_path_factory):
    return cached_runs(tmp_path_factory.mktemp("runs"), BASE)


@pytest.fixture(scope="module")
def watched(go):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_LABELSKEW_PICTURES", "yes")
        return go("tracking_args.diagnostics_every=2", diagnostics(*FLAT))


def lines(folder, name):
    return read_lines(folder / "diagnostics" / f"{name}.jsonl")


@pytest.mark.parametrize("method", ["fedrs", "map", "fedmr"])
def test_diagnostics_do_not_change_a_run(go, watched, method):
    # MAP trains on after its upload, and FedMR draws which samples it compares
    extra = [f"method_args.method={method}", *([] if method == "fedrs" else ["train_args.comm_round=2"])]
    extra += ["method_args.lite=3"] if method == "fedmr" else []
    with_them = watched if method == "fedrs" else go(*extra, diagnostics(*IN_TRAINING))
    without = go(*extra)
    assert (without / "metrics.jsonl").read_bytes() == (with_them / "metrics.jsonl").read_bytes()
    assert (without / "model.safetensors").read_bytes() == (with_them / "model.safetensors").read_bytes()
    assert not (without / "diagnostics").exists()


def test_rounds_with_diagnostics_and_their_pictures(watched):
    for name in FLAT:
        image = Image.open(watched / "diagnostics" / f"{name}.png").convert("RGB")
        assert min(image.size) > 200
        assert len(image.getcolors(2**24)) > 20
        if name != "tsne":  # only of the last round, and has no lines
            assert sorted({line["round"] for line in lines(watched, name)}) == [0, 2, 3]
    assert {file.suffix for file in (watched / "diagnostics").iterdir()} == {".jsonl", ".png", ".safetensors"}
    for file in (watched / "diagnostics").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)  # no NaN, no Infinity


def test_class_accuracy_after_aggregation_is_the_recall_of_the_metrics(watched):
    recall = {line["round"]: line["recall"] for line in read_lines(watched / "metrics.jsonl")}
    tested = lines(watched, "class_accuracy")
    for line in tested:
        if line["client"] is None:
            assert line["recall"] == recall[line["round"]]
    clients = [line["client"] for line in tested if line["round"] == 3]
    assert clients == [*read_lines(watched / "metrics.jsonl")[3]["clients"], None]
    held = [np.mean([line["recall"][c] for c in line["held"]]) for line in tested if line["client"] is not None]
    lacked = [np.mean(np.delete(line["recall"], line["held"])) for line in tested if "held" in line]
    assert np.mean(held) > np.mean(lacked) + 0.2  # a client forgets what it does not hold


def test_client_drift_adds_up_to_the_global_update(watched):
    """FedRS averages uniformly: the mean of the updates' parts along the global update is that update."""
    for round in (0, 2, 3):
        *clients, whole = [line for line in lines(watched, "client_drift") if line["round"] == round]
        assert [line["client"] for line in clients] == read_lines(watched / "metrics.jsonl")[round]["clients"]
        assert whole["client"] is None
        assert np.mean([line["norm"] * line["cosine"] for line in clients]) == pytest.approx(whole["norm"], rel=1e-4)
        assert all(line["norm"] > whole["norm"] > 0 for line in clients)


def test_client_drift_is_the_same_from_a_file(watched, go, monkeypatch):
    monkeypatch.setattr(uploads, "IN_MEMORY", 1000)  # bytes: one update is more
    folder = go("train_args.comm_round=1", diagnostics("client_drift"))
    count = len(lines(folder, "client_drift"))
    assert lines(folder, "client_drift") == lines(watched, "client_drift")[:count]


def test_a_client_of_a_diagnosed_round_has_its_own_numbers(watched):
    made = session.build(load())
    held = {line["client"]: line["counts"] for line in lines(watched, "label_heatmap")}
    for client, counts in held.items():
        assert counts == made.counts[client].tolist()
    for name in ("proxy_gradients", "observed_probability", "intra_loss", "deviation_bound"):
        clients = [(line["round"], line["client"]) for line in lines(watched, name)]
        assert clients == [(line["round"], line["client"]) for line in lines(watched, "label_heatmap")]
    assert all(0 < line["missing"] < 100 and line["observed"] > 0 for line in lines(watched, "proxy_gradients"))
    assert all(0 < line["own"] <= line["observed"] <= 1 for line in lines(watched, "observed_probability"))
    assert all(line["pairs"] >= 3 for line in lines(watched, "deviation_bound"))


def test_training_numbers_equal_a_plain_loop(watched):
    """Round 0 of its first client again, with the losses written out."""
    made = session.build(load())
    local = made.trainer
    client = lines(watched, "proxy_gradients")[0]["client"]
    note, seen = Mock(), []
    note.step = lambda batch, view: seen.append((batch, local.model.classifier.weight.grad.clone()))
    fit(local, client, 0, made.start, times_selected=1, observer=note)
    missing = note.before.call_args.args[0].counts == 0
    norms, targets = [], []
    for batch, gradient in seen:
        norms.append(torch.stack([row.norm() for row in gradient[missing]]).mean())
        scaled = torch.where(missing, 0.5, 1.0) * batch.logits.detach()  # FedRS, eq. 8
        targets += [torch.stack([z.softmax(0)[y] for z, y in zip(scaled, batch.labels, strict=True)]).mean()]
    first = lines(watched, "proxy_gradients")[0], lines(watched, "observed_probability")[0]
    assert first[0]["missing"] == pytest.approx(float(torch.stack(norms).mean()), rel=1e-5)
    assert first[1]["own"] == pytest.approx(float(torch.stack(targets).mean()), rel=1e-5)


def test_features_equal_those_of_the_saved_model(watched):
    made = session.build(load())
    made.trainer.model.load_state_dict(load_file(watched / "model.safetensors"))
    made.trainer.model.eval()
    kept = load_file(watched / "diagnostics" / "features_2d.safetensors")
    with torch.no_grad():
        every = made.trainer.model.features(made.trainer.test.inputs(slice(None)))
    assert len(kept["labels"]) == len(every)  # 360 samples, so all of them
    order = torch.cdist(kept["global.points"], every).argmin(1)
    assert torch.allclose(every[order], kept["global.points"], atol=1e-5)
    last = [line for line in lines(watched, "features_2d") if line["round"] == 3]
    assert [line["stage"] for line in last] == ["start", "local", "global"]
    assert last[2]["proxies"] == made.trainer.model.classifier.weight.tolist()
    assert last[1]["client"] == int(kept["client"])


def test_a_resumed_run_appends_to_its_files(go, watched, tmp_path, pictures):
    cut = shutil.copytree(watched, tmp_path / "cut")
    two = go("train_args.comm_round=2")
    (cut / "checkpoint" / "latest.safetensors").write_bytes((two / "checkpoint" / "latest.safetensors").read_bytes())
    for name in ("summary.json", "model.safetensors"):
        (cut / name).unlink()
    names = ["class_accuracy", "deviation_bound", "features_2d", "intra_loss"]
    for name in names:
        with (cut / "diagnostics" / f"{name}.jsonl").open("a") as file:
            file.write('{"round": 4, "cli')  # as a kill may leave it
        (cut / "diagnostics" / f"{name}.safetensors").unlink(missing_ok=True)
    start.start(RunOptions(overrides=[diagnostics(*names)], resume=cut, quiet=True))
    for name in names:
        for file in (watched / "diagnostics").glob(f"{name}.*"):
            assert (cut / "diagnostics" / file.name).read_bytes() == file.read_bytes()


def test_the_sphere_of_a_network_of_three_features(go, pictures):
    folder = go(
        "data_args.dataset=circles", "data_args.per_class=100", "model_args.model=mlp", "model_args.hidden=[8, 3]",
        "train_args.client_num_in_total=2", "train_args.client_num_per_round=2", "train_args.comm_round=1",
        "partition_args.classes_per_client=2", diagnostics("feature_sphere"),
    )  # fmt: skip
    kept = load_file(folder / "diagnostics" / "feature_sphere.safetensors")
    norms = kept["local.points"].norm(dim=1)
    assert ((norms - 1).abs().minimum(norms.abs()) < 1e-5).all()  # on the sphere, or a feature of 0
    stages = lines(folder, "feature_sphere")
    assert [line["stage"] for line in stages] == ["local", "global"]
    assert all(sum(line["principal_shares"]) == pytest.approx(1) for line in stages)
    assert (folder / "diagnostics" / "feature_sphere.png").exists()


def test_a_network_of_other_features_is_refused_before_anything_is_written(go, watched):
    before = [*watched.parent.iterdir()]
    line = message(lambda: go("model_args.hidden=[5]", diagnostics("feature_sphere")))
    assert line.startswith("tracking_args.diagnostics: feature_sphere needs a network of 3 features, this one has 5; ")
    assert [*watched.parent.iterdir()] == before


def test_training_in_other_processes_cannot_be_diagnosed():
    mpi = "comm_args.backend=MPI"
    load(mpi, diagnostics("class_accuracy", "tsne"))
    what = r"intra_loss, proxy_gradients: cannot observe training in other processes \(backend MPI\); allowed: class_"
    with pytest.raises(RecipeError, match=what):
        load(mpi, diagnostics("class_accuracy", "intra_loss", "proxy_gradients"))
    silos = ["common_args.training_type=cross_silo", "comm_args.backend=GRPC"]
    with pytest.raises(RecipeError, match="no process of a cross_silo run has the data for diagnostics; allowed: none"):
        load(*silos, diagnostics("tsne"))


@pytest.mark.gpu
def test_numbers_on_a_gpu_equal_those_on_a_cpu(go, watched, pictures):
    folder = go("device_args.using_gpu=true", "tracking_args.diagnostics_every=2", diagnostics(*FLAT))
    for name in ("class_accuracy", "deviation_bound", "proxy_gradients"):
        first, here = lines(watched, name)[0], lines(folder, name)[0]
        assert first.keys() == here.keys()
        for key, value in first.items():
            assert here[key] == pytest.approx(value, rel=0.05, abs=0.05), (name, key)
    here, there = ({file.name for file in (run / "diagnostics").iterdir()} for run in (folder, watched))
    assert here == there
