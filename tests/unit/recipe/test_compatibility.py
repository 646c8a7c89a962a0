import json
import re
from pathlib import Path

import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Aggregated, catalog
from recipe_texts import SKEWED

from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.methods.fedlc import FedLC
from fl_labelskew_plugins.recipe import compatibility, parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation

DOCS = Path(__file__).parents[3] / "docs" / "mixing.md"
FEW = ["train_args.client_num_in_total=3", "train_args.client_num_per_round=2", "train_args.comm_round=2"]
FEW += ["model_args.hidden=[16]", "train_args.batch_size=64", "data_args.test_fraction=0.8"]
FEW += ["tracking_args.keep_best=false", "validation_args.frequency_of_the_test=0"]


def parsed(method, optimizer, *more):
    plugins = [f"method_args.method={method}", f"train_args.federated_optimizer={optimizer}"]
    return parse.parse(SKEWED, overrides=[*FEW, *plugins, *more])


def names(kind):
    return [entry.name for entry in catalog.entries(kind) if entry.distribution == extras.PACKAGE]


@pytest.mark.parametrize("optimizer", names("optimizers"))
@pytest.mark.parametrize("method", names("methods"))
def test_two_rounds_of_every_pair(method, optimizer, tmp_path):
    """Through our own loop, which every runtime has."""
    few = ["method_args.virtual=20"] if method == "ccvr" else []
    made = session.build(compatibility.without_host(parsed(method, optimizer, *few), ""))
    record = Record(made, RunFolder(tmp_path), Progress(), resume=False)
    before = record.weights
    for line in Simulation(record):  # of three clients two a round, so that one at least comes twice
        assert len(line["clients"]) == (3 if method == "ccvr" and line["round"] == 1 else 2)  # its closing exchange
        assert record.weights.keys() == before.keys()
        assert all(value.isfinite().all() for value in record.weights.values())
        assert any(not torch.equal(record.weights[key], before[key]) for key in before)
        before = record.weights
    assert record.next_round == 2
    record.finish()  # the method's private models are complete, in addition to other private tensors


def test_the_optimiser_of_the_docs_goes_halfway():
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    namespace = {}
    exec(code, namespace)
    halfway = namespace["Halfway"]()
    old = {"w": torch.tensor([1.0]), "steps": torch.tensor(3)}
    mean = {"w": torch.tensor([3.0]), "steps": torch.tensor(9)}
    new = halfway.step(Aggregated(old, mean, {}, 2, ["w"], {}, {}, None))
    assert (new["w"].item(), new["steps"].item()) == (2, 9)


@pytest.mark.parametrize(
    ("method", "optimizer", "line"),
    [
        ("fedshift", "SCAFFOLD", "SCAFFOLD (uniform), not as in fedshift (population)"),
        ("fedlc+fedmr", "Mime", "Mime (uniform), not as in fedlc+fedmr (samples)"),
        ("fedavg", "FedDyn", "FedDyn (uniform), not as in fedavg (samples)"),
        ("fedlc", "FedDC", None),
        ("fedrs", "SCAFFOLD", None),
        pytest.param("fedshift", "FedOpt", None, marks=pytest.mark.host),
    ],
)
def test_the_origin_of_upload_weights_is_reported(method, optimizer, line, tmp_path):
    made = session.build(parsed(method, optimizer))
    Record(made, RunFolder(tmp_path), Progress(), resume=False)
    recorded = json.loads((tmp_path / "environment.json").read_text())["deviations"]
    for lines in (start.describe(made).splitlines(), recorded):
        expected = [f"uploads are weighted as in {line}"] if line else []
        assert [found for found in lines if found.startswith("uploads are weighted as in ")] == expected


def test_changes_are_not_weights_to_protect():
    optimizer = session.build(parsed("fedavg", "FedProx")).recipe.optimizer
    assert not compatibility.sends_more(optimizer)
    optimizer.sends_change = True
    assert compatibility.sends_more(optimizer)


def test_an_optimiser_that_needs_withheld_contributions_is_refused():
    silos = ["common_args.training_type=cross_silo", "comm_args.backend=GRPC", "comm_args.send_contributions=false"]
    line = message(lambda: parsed("fedlc", "SCAFFOLD", *silos))
    assert "send_contributions: false cannot be used with federated_optimizer SCAFFOLD" in line
    parsed("fedlc", "FedProx", *silos)
    assert "FedDC, which sends more than weights" in message(lambda: parsed("fedlc", "FedDC", *silos))


def test_a_method_that_needs_single_contributions_excludes_sums(monkeypatch):
    sums = ["comm_args.secure_aggregation=true", "train_args.client_num_per_round=3"]
    parsed("fedlc", "FedProx", *sums)
    monkeypatch.setattr(FedLC, "individual", True)
    line = message(lambda: parsed("fedlc", "FedProx", *sums))
    assert "a method that needs what each client sends, not their sum; allowed: false" in line
