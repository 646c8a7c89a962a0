"""The single-process runtime compared with independent loops and with FedML's code."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from federations import cached_runs
from fl_labelskew_registry import RunError
from recipe_texts import SILOS, simulation
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import client_weights, weighted_mean
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.front import start as run
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runtimes.options import RunOptions

BASE = simulation(SILOS).replace("classes_per_client: 4", "classes_per_client: 3")
BASE = BASE.replace("client_num_in_total: 3", "client_num_in_total: 6")


@pytest.fixture(scope="module")
def go(tmp_path_factory):
    """Run the base recipe with overrides, once; returns the run's folder."""
    return cached_runs(tmp_path_factory.mktemp("runs"), BASE)


def built(*overrides):
    return session.build(parse.parse(BASE, overrides=overrides))


@pytest.mark.parametrize(
    ("overrides", "aggregation"),
    [([], "samples"), (["method_args.method=fedrs", "method_args.alpha=1.0"], "uniform")],
)
def test_fedavg_equals_a_plain_loop(go, overrides, aggregation):
    extra = ["train_args.client_num_per_round=4", "train_args.momentum=0.9", "train_args.weight_decay=0.001"]
    folder = go(*extra, *overrides)
    made = built(*extra)
    local = made.trainer
    weights, used = made.start, []
    for round in range(3):
        chosen = sorted(seeds.numpy_generator(0, "sampling", round).choice(6, 4, replace=False).tolist())
        used.append(chosen)
        uploads = []
        for client in chosen:
            model = copy.deepcopy(local.model)
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
            generator = seeds.torch_generator(0, "batches", round, client)
            held = local.indices[client]
            for _ in range(2):
                for index in held[torch.randperm(len(held), generator=generator)].split(32):
                    loss = cross_entropy(model(local.train.inputs(index)), local.train.y[index])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            uploads.append(model.state_dict())
        shares = client_weights([len(local.indices[k]) for k in chosen], aggregation, 0)
        weights = {k: sum(w * u[k] for w, u in zip(shares, uploads, strict=True)) for k in weights}
    saved = load_file(folder / "model.safetensors")
    for key, value in weights.items():
        torch.testing.assert_close(saved[key], value, atol=1e-5, rtol=1e-4)
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["clients"] for line in lines] == used
    local.model.load_state_dict(saved)
    right = (local.model(local.test.inputs(slice(None))).argmax(1) == local.test.y).float().mean()
    assert lines[-1]["accuracy"] == pytest.approx(right.item())


METHODS = ["fedavg", "fedrs", "map", "fedphp", "fedlc", "fedshift", "fedmr"]
BASELINES = ["fedproc", "moon", "fedmmd", "reweighting", "fedrod", "fedntd", "fedlmd", "feddecorr", "fedvls"]


@pytest.mark.parametrize("method", METHODS + BASELINES)
def test_every_method_learns_with_partial_participation(go, method):
    overrides = [f"method_args.method={method}", "train_args.client_num_per_round=4", "train_args.comm_round=10"]
    folder = go(*overrides, "train_args.momentum=0.9")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best_accuracy"] > 0.4  # chance is 0.1
    lines = read_lines(folder / "metrics.jsonl")
    size = sum(t.numel() * 4 for t in load_file(folder / "model.safetensors").values())
    # prototypes and counts of four clients
    extra = 4 * 10 * 16 * 4 + 4 * 10 * 8 if method in ("fedmr", "fedproc") else 0
    assert lines[0]["bytes_up"] == 4 * size + extra
    prior = 4 * 10 * 4 if method in ("fedshift", "reweighting") else 0
    assert lines[0]["bytes_down"] == 4 * size + prior
    personal = json.loads((folder / "environment.json").read_text())["personal_models"]
    assert (folder / "clients").exists() == personal == (method in ("map", "fedphp", "fedrod"))


def test_personalised_accuracy_may_be_switched_off(go):
    quiet = go("validation_args.personalised=false")
    assert all(line["personalised_accuracy"] is None for line in read_lines(quiet / "metrics.jsonl"))


def test_missing_classes_are_reported_separately(go):
    folder = go("train_args.client_num_per_round=1")
    line = read_lines(folder / "metrics.jsonl")[0]
    counts = np.array(json.loads((folder / "partition.json").read_text())["counts"])
    assert (counts[line["clients"][0]] > 0).sum() == 3
    assert line["observed_accuracy"] > line["missing_accuracy"]


DP = ["dp_args.enable_dp=true", "dp_args.mechanism_type=gaussian", "dp_args.delta=0.01", "dp_args.sensitivity=1.0e-4"]


def test_the_hosts_defence_drops_an_attackers_upload(go):
    security = [f"security_args.{key}" for key in ("enable_attack=true", "attack_type=byzantine", "attack_mode=random")]
    attack = [*security, "security_args.byzantine_client_num=1"]
    defence = [f"security_args.{key}" for key in ("enable_defense=true", "defense_type=krum", "krum_param_m=1")]
    rounds = "train_args.comm_round=1"
    attacked, defended, plain = (
        load_file(go(*switches, rounds) / "model.safetensors") for switches in (attack, [*attack, *defence], [])
    )
    made = built(rounds)
    honest = [fit(made.trainer, k, 0, made.start, times_selected=1).upload for k in range(6)]

    def close(a, b):
        return all(torch.allclose(a[key], b[key], atol=1e-5) for key in a)

    mean = weighted_mean(
        zip(client_weights([int(n) for n in made.clients.counts.sum(1)], "samples", 0), honest, strict=True), made.start
    )
    assert close(plain, mean)
    assert not close(attacked, mean)
    assert sum(close(defended, upload) for upload in honest) == 1  # Krum keeps one upload, and an honest one


def test_private_upload_is_reported_and_bounds_the_update(go):
    clip = ["method_args.method=fedrs", "method_args.upload_clip=0.01", "train_args.comm_round=1"]
    folder = go(*clip)
    start = built().start
    end = load_file(folder / "model.safetensors")
    assert torch.cat([(end[k] - start[k]).flatten() for k in end]).norm() <= 0.0101
    noisy = go(*clip, "method_args.upload_sigma=0.1")
    report = json.loads((noisy / "environment.json").read_text())["report"]
    assert report["privacy"]["delta"] == 0.01
    assert report["privacy"]["epsilon"] > 0


def test_the_hosts_noise_repeats_after_resuming(go, tmp_path, capsys):
    noise = [*DP, "dp_args.dp_solution_type=ldp", "dp_args.epsilon=0.5", "tracking_args.checkpoint_every=1"]
    whole, cut = go(*noise), tmp_path / "cut"
    shutil.copytree(whole, cut)
    # the folder as a kill after round 2 would have left it: the checkpoint of a run of 2 rounds, nothing of the third
    two = go(*noise, "train_args.comm_round=2")
    shutil.copy(two / "checkpoint" / "latest.safetensors", cut / "checkpoint")
    for name in ("summary.json", "model.safetensors"):
        (cut / name).unlink()
    torch.rand(5)
    run.start(RunOptions(resume=cut, quiet=True))
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert "FedML's state of earlier rounds" in capsys.readouterr().err


@pytest.mark.parametrize("optimizer", [["Mime", "train_args.server_momentum=0.5"], ["FedDC"]])  # Mime's in one tensor
def test_the_bytes_of_an_optimisers_tensors(optimizer, go):
    few = ["train_args.client_num_per_round=3", "train_args.comm_round=2", "method_args.method=fedshift"]
    folder = go(f"train_args.federated_optimizer={optimizer[0]}", *optimizer[1:], *few)
    size = sum(4 * part.numel() for part in load_file(folder / "model.safetensors").values())
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["bytes_up"] for line in lines] == [3 * 2 * size] * 2
    assert [line["bytes_down"] for line in lines] == [3 * (times * size + 10 * 4) for times in (1, 2)]  # and the prior


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("model", "settings", "line"),
    [
        # with a single layer, clients' changes stay finite: they are those of weight decay
        (
            "logistic",
            ["train_args.weight_decay=0.001"],
            "is not finite after FedOpt's step on the server, training div",
        ),
        # the first round's weights are finite, and too large to train on
        ("mlp", [], r"round 2: upload of client \d: .* is not finite, .* train_args.gradient_clip_norm, or"),
    ],
)
def test_a_server_that_diverges_is_one_line_with_its_keys(model, settings, line, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(BASE.replace("model: mlp, hidden: [16]", f"model: {model}"))
    overrides = ["train_args.federated_optimizer=FedOpt", "train_args.server_lr=1e30", *settings]
    with pytest.raises(RunError, match=f"{line}.* another value of one of train_args.server_lr, train_args.server_mom"):
        run.start(RunOptions(path, overrides, run_dir=tmp_path / "run", quiet=True))
