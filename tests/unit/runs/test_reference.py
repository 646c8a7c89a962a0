import itertools
import math

import numpy as np
import pytest
import torch
from error_messages import message
from recipe_texts import cross_silo, text_with

from fl_labelskew_plugins.engine.local import snapshot
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.reference import LocalTraining
from fl_labelskew_plugins.runs.session import build
from fl_labelskew_plugins.runs.simulation import Simulation

SMALL = [
    "method_args.method=fedmr", "train_args.federated_optimizer=SCAFFOLD", "train_args.client_num_in_total=5",
    "train_args.comm_round=4", "train_args.epochs=2", "model_args.hidden=[8]", "validation_args.per_client=true",
]  # fmt: skip


def recipe(kind, *more):
    return parse.parse(text_with(), overrides=[*SMALL, f"train_args.reference={kind}", *more])


def run(made, folder, simulation, resume=False, rounds=None):
    folder.mkdir(exist_ok=True)
    record = Record(made, RunFolder(folder), Progress(), resume=resume)
    return record, list(itertools.islice(simulation(record), rounds))


def test_a_reference_has_neither_method_nor_optimiser_nor_processes():
    made = recipe("local", "comm_args.backend=MPI", "tracking_args.diagnostics=[class_accuracy]")
    assert (made.method_name, made.train.federated_optimizer, made.comm.backend) == ("fedavg", "FedAvg", "sp")
    assert made.tracking.diagnostics == []
    assert made.train.reference == "local"
    assert parse.parse(made.dump()).resolved() == made.resolved()
    assert "method_args.mu9: unknown" in message(lambda: recipe("local", "method_args.mu9=1"))
    own = ["client_specific_args.data_silo_config=[a.yaml, b.yaml]", "train_args.reference=local"]
    line = message(lambda: parse.parse(cross_silo(), overrides=own))
    assert "train_args.reference: local needs all data in one place" in line


@pytest.mark.parametrize(("selected", "share"), [(5, 1.0), (2, 0.4)])
def test_centralised_training_has_all_samples_and_as_many_steps(selected, share, tmp_path):
    chosen = f"train_args.client_num_per_round={selected}"
    apart, made = build(parse.parse(text_with(), overrides=[*SMALL, chosen])), build(recipe("centralised", chosen))
    assert made.sizes == [sum(apart.sizes)]
    together = np.sort(np.concatenate([np.asarray(apart.clients.train[k]) for k in range(5)]))
    assert np.array_equal(np.asarray(made.clients.train[0]), together)
    size = made.recipe.train.batch_size
    assert made.trainer.settings.steps == round(share * sum(2 * math.ceil(n / size) for n in apart.sizes))
    seen = []
    forward = made.trainer.model.forward
    made.trainer.model.forward = lambda x: (seen.append(len(x)), forward(x))[1]
    start = {name: value.clone() for name, value in made.start.items()}
    _, (first, *_) = run(made, tmp_path, Simulation, rounds=1)
    assert first["clients"] == [0]
    assert (first["bytes_up"], first["bytes_down"]) == (0, 0)
    assert any(not torch.equal(start[name], value) for name, value in snapshot(made.trainer.model).items())


def test_local_training_is_a_loop_per_client_that_goes_on_from_its_own_weights(tmp_path):
    made = build(recipe("local", "train_args.client_num_per_round=3"))
    record, lines = run(made, tmp_path, LocalTraining)
    assert all(torch.equal(record.weights[name], value) for name, value in build(made.recipe).start.items())
    states = {k: made.own_model(record.states.get(k)) for k in range(5)}
    trainer = made.trainer
    accuracies, own = [], []
    for client in range(5):
        weights = states[client] or record.weights
        naive = {name: value.clone() for name, value in build(made.recipe).start.items()}
        for round in [line["round"] for line in lines if client in line["clients"]]:
            naive = fit(trainer, client, round, naive, times_selected=1).upload
        assert all(torch.equal(weights[name], value) for name, value in naive.items())
        logits, labels = trainer.predict(weights=weights)
        right = logits.argmax(1) == labels
        accuracies.append(float(right.double().mean()))
        own.append(float(right[trainer.test_indices[client]].double().mean()))
    assert lines[-1]["accuracy"] == pytest.approx(sum(accuracies) / 5)
    assert lines[-1]["client_accuracy"] == pytest.approx(own)


def test_local_training_resumes_with_identical_results(tmp_path):
    _, whole = run(build(recipe("local")), tmp_path / "whole", LocalTraining)
    _, first = run(build(recipe("local")), tmp_path / "parts", LocalTraining, rounds=2)
    record, rest = run(build(recipe("local")), tmp_path / "parts", LocalTraining, resume=True)
    assert [*first, *rest] == whole
    record.finish()
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    assert len(list((tmp_path / "parts" / "clients").iterdir())) == 5
