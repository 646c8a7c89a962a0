import json
import re
import runpy
from pathlib import Path

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Aggregated, LabelSkewError

from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.methods.fedlc import FedLC
from fl_labelskew_plugins.recipe import compatibility, parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation

DOCS = Path(__file__).parents[3] / "docs" / "mixing.md"
GENERATE = runpy.run_path(str(DOCS.parents[1] / "tools" / "generate.py"))
TEXT, cell, names = GENERATE["GRID"], GENERATE["cell"], GENERATE["names"]


@pytest.mark.parametrize("optimizer", names("optimizers"))
@pytest.mark.parametrize("method", names("methods"))
def test_two_rounds_of_every_pair(method, optimizer, tmp_path):
    """Through our own loop, which every runtime has; refused pairs say why in one line."""
    said = cell(method, optimizer)
    if said.startswith("no:"):
        assert re.search(r"; (allowed|use) ", said)
        assert "\n" not in said
        return
    recipe = parse.parse(TEXT.format(method=method, optimizer=optimizer))
    made = session.build(compatibility.without_host(recipe, ""))
    record = Record(made, RunFolder(tmp_path), Progress(), resume=False)
    before = record.weights
    for line in Simulation(record):  # of three clients two a round, so that one at least comes twice
        assert len(line["clients"]) == 2
        assert record.weights.keys() == before.keys()
        assert all(value.isfinite().all() for value in record.weights.values())
        assert any(not torch.equal(record.weights[key], before[key]) for key in before)
        before = record.weights
    assert record.next_round == 2
    record.finish()  # the method's private models are whole ones, whatever else a client keeps


def test_the_optimiser_of_the_docs_goes_halfway():
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    namespace = {}
    exec(code, namespace)
    halfway = namespace["Halfway"]()
    old, mean = (
        {"w": torch.tensor([1.0]), "steps": torch.tensor(3)},
        {"w": torch.tensor([3.0]), "steps": torch.tensor(9)},
    )
    new = halfway.step(Aggregated(old, mean, {}, 2, ["w"], {}, {}, None))
    assert (new["w"].item(), new["steps"].item()) == (2, 9)


BASE = TEXT.format(method="fedlc", optimizer="FedProx")


@pytest.mark.parametrize(
    ("overrides", "source"),
    [
        ([], "corrected"),
        (["train_args.federated_optimizer=FedAvg"], "own"),
        (["train_args.federated_optimizer=SCAFFOLD"], "own"),
        (["train_args.federated_optimizer=SCAFFOLD", "train_args.optimizer_source=corrected"], "own"),
        (["train_args.optimizer_source=own"], "own"),
        (["train_args.optimizer_source=corrected"], "corrected"),
        (["train_args.gradient_clip_norm=1.0"], "own"),
        (["train_args.client_optimizer=adam"], "own"),
        (["method_args.denominator=others"], "own"),
        (["method_args.method=fedmr"], "own"),
        (["method_args.method=fedrs+fedlc"], "corrected"),
        (["comm_args.backend=MPI"], "own"),
        (["model_args.model=resnet18"], "own"),
    ],
)
def test_origin_of_the_code_that_runs(overrides, source):
    loaded = parse.parse(BASE, overrides=overrides)
    assert compatibility.choice(loaded, loaded.network.build((1, 8, 8), 10))[0] == source


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["method_args.method=fedmr"], "FedML's training supports only methods that change logits"),
        (["comm_args.backend=MPI"], "FedML's code needs backend sp, not MPI"),
        (["train_args.gradient_clip_norm=1.0"], "FedML does not clip gradients (train_args.gradient_clip_norm)"),
        (["train_args.proxy_aggregation=class"], "FedML does not weight rows by class (train_args.proxy_aggregation)"),
        (["device_args.precision=bf16"], "FedML trains only with fp32 (device_args.precision)"),
    ],
)
def test_the_hosts_code_is_refused_with_the_reason(overrides, line):
    told = message(lambda: parse.parse(BASE, overrides=["train_args.optimizer_source=corrected", *overrides]))
    assert told == f"--set train_args.optimizer_source: corrected: {line}; allowed: own, or null"


def test_a_network_with_buffers_is_refused_with_code_of_the_host():
    loaded = parse.parse(BASE, overrides=["train_args.optimizer_source=corrected", "model_args.model=resnet18"])
    with pytest.raises(LabelSkewError, match="FedML cannot train resnet18, which has batch normalisation"):
        compatibility.choice(loaded, loaded.network.build((1, 8, 8), 10))


@pytest.mark.parametrize(
    ("method", "optimizer", "more", "line"),
    [
        ("fedshift", "SCAFFOLD", [], "SCAFFOLD (uniform), not as in fedshift (population)"),
        ("fedlc+fedmr", "Mime", [], "Mime (uniform), not as in fedlc+fedmr (samples)"),
        ("fedavg", "FedDyn", [], "FedDyn (uniform), not as in fedavg (samples)"),
        ("fedlc", "FedDC", [], None),
        ("fedrs", "SCAFFOLD", [], None),
        pytest.param("fedshift", "FedOpt", [], None, marks=pytest.mark.host),
    ],
)
def test_the_origin_of_upload_weights_is_reported(method, optimizer, more, line, tmp_path):
    overrides = [f"train_args.{option}" for option in more]
    made = session.build(parse.parse(TEXT.format(method=method, optimizer=optimizer), overrides=overrides))
    Record(made, RunFolder(tmp_path), Progress(), resume=False)
    recorded = json.loads((tmp_path / "environment.json").read_text())["deviations"]
    for lines in (start.describe(made).splitlines(), recorded):
        expected = [f"uploads are weighted as in {line}"] if line else []
        assert [found for found in lines if found.startswith("uploads are weighted as in ")] == expected


def test_changes_are_not_weights_to_protect():
    optimizer = session.build(parse.parse(TEXT.format(method="fedavg", optimizer="FedProx"))).recipe.optimizer
    assert not compatibility.sends_more(optimizer)
    optimizer.sends_change = True
    assert compatibility.sends_more(optimizer)


def test_an_optimiser_that_needs_withheld_contributions_is_refused():
    silos = ["common_args.training_type=cross_silo", "comm_args.backend=GRPC", "comm_args.send_contributions=false"]
    match = r"send_contributions: false cannot be used with federated_optimizer SCAFFOLD"
    with pytest.raises(LabelSkewError, match=match):
        parse.parse(BASE, overrides=["train_args.federated_optimizer=SCAFFOLD", *silos])
    parse.parse(BASE, overrides=silos)
    drift = ["train_args.federated_optimizer=FedDC", *silos]
    with pytest.raises(LabelSkewError, match="FedDC, which sends more than weights"):
        parse.parse(BASE, overrides=drift)


def test_a_method_that_needs_single_contributions_excludes_sums(monkeypatch):
    sums = ["comm_args.secure_aggregation=true", "train_args.client_num_per_round=3"]
    parse.parse(BASE, overrides=sums)
    monkeypatch.setattr(FedLC, "individual", True)
    with pytest.raises(LabelSkewError, match="a method that needs what each client sends, not their sum; allowed: fal"):
        parse.parse(BASE, overrides=sums)


@pytest.mark.parametrize("wanted", ["corrected", "null"])
def test_code_of_the_host_receives_single_uploads(wanted):
    overrides = ["train_args.federated_optimizer=FedProx", f"train_args.optimizer_source={wanted}"]
    overrides += ["comm_args.secure_aggregation=true", "train_args.client_num_per_round=3"]
    if wanted == "null":
        loaded = parse.parse(BASE, overrides=overrides)
        assert compatibility.choice(loaded, loaded.network.build((1, 8, 8), 10))[0] == "own"
    else:
        with pytest.raises(LabelSkewError, match=f"optimizer_source: {wanted}: FedML's server sees single uploads"):
            parse.parse(BASE, overrides=overrides)
