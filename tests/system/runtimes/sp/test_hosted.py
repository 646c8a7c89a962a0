"""The host's own optimisers under ``backend: sp`` beside its stock classes, our own, and what they do by hand."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from fl_labelskew_registry import RunError
from safetensors.torch import load_file

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.local import snapshot
from fl_labelskew_plugins.front import start as run
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import compatibility, parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.show.progress import progress

BASE = """\
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 3}
model_args: {model: mlp, hidden: [16]}
train_args: {client_num_in_total: 5, comm_round: 3, epochs: 2, batch_size: 48, learning_rate: 0.1}
method_args: {method: fedavg}
device_args: {threads: 1}
validation_args: {frequency_of_the_test: 0, personalised: false}
"""
ONE, THREE = (f"train_args.client_num_per_round={n}" for n in (1, 3))
MOMENTUM, DECAY = "train_args.momentum=0.9", "train_args.weight_decay=0.001"


def by(optimizer, source=None, **more):
    """Overrides for an optimiser with its parameters, and whose code is to run."""
    keys = {"federated_optimizer": optimizer, **more, **({"optimizer_source": source} if source else {})}
    return [f"train_args.{key}={json.dumps(value)}" for key, value in keys.items()]


@pytest.fixture
def go(tmp_path):
    """Run the base recipe with overrides; returns the run's folder. ``change`` may make another session of it first."""
    from fl_labelskew_plugins.runtimes.sp.runtime import SP

    count = iter(range(100))

    def go(*overrides, change=None, base=BASE):
        loaded = parse.parse(base, overrides=overrides)
        folder, show = RunFolder(tmp_path / f"run{next(count)}"), progress(True)
        folder.create()
        made = session.build(loaded)
        if change is not None:
            made = change(made)
        record = Record(made, folder, show, resume=False)
        SP(loaded, RunOptions(quiet=True), folder, show).run(made, record)
        record.finish()
        return folder.path

    return go


@pytest.fixture
def weights(go):
    return lambda *overrides, **more: load_file(go(*overrides, **more) / "model.safetensors")


def equal(a, b):
    return all(torch.equal(a[key], b[key]) for key in a)


def close(a, b, tolerance):
    return all(torch.allclose(a[key], b[key], rtol=0, atol=tolerance) for key in a)


class Loader:
    """A client's batches of two epochs, dealt as our own loop deals them."""

    def __init__(self, made, client):
        self.made, self.client, self.read = made, client, 0

    def __iter__(self):
        local, (round, number) = self.made.trainer, divmod(self.read, 2)
        self.read += 1
        if number == 0:
            self.generator = seeds.torch_generator(0, "batches", round + self.first, self.client)
        ours = local.indices[self.client]
        for index in ours[torch.randperm(len(ours), generator=self.generator)].split(48):
            yield local.train.inputs(index), local.train.y[index]

    first = 0


def stock(overrides, folder):
    """The weights that the host's own class ends with, run in one go on the same clients and batches."""
    import importlib

    from fl_labelskew_plugins.host import start as host

    loaded = parse.parse(BASE, overrides=overrides)
    made = session.build(loaded)
    name = loaded.train.federated_optimizer
    module, _, kind = compatibility.CORRECTABLE[name].rpartition(".")
    theirs = getattr(importlib.import_module(module), kind)
    nothing = {"_local_test_on_all_clients", "local_test_on_all_clients", "test"}

    def sample(self, round, *_):
        some = seeds.numpy_generator(0, "sampling", round).choice(every, args.client_num_per_round, replace=False)
        chosen = sorted(some.tolist())
        for client in chosen:  # the first time that this client is read may be in a later round
            loader = loaders[client]
            loader.first, loader.read = round, 0
        return chosen

    members = {"_client_sampling": sample, "client_sampling": sample}
    silent = type("Silent", (theirs,), members | {key: lambda *_: None for key in nothing if hasattr(theirs, key)})
    args = host.start(loaded, folder / "fedml.yaml")
    args.dampening, args.nesterov, args.mu, args.gmf, args.mimelite = 0.0, False, 0.0, 0.0, False
    every = args.client_num_in_total
    args.wd, args.ci, args.frequency_of_the_test = args.weight_decay, 0, 1
    loaders = {k: Loader(made, k) for k in range(every)}
    dataset = [0, 0, None, None, dict(enumerate(made.sizes)), loaders, dict.fromkeys(range(every)), 10]
    network = copy.deepcopy(made.trainer.model)
    first = (args, torch.device("cpu"), dataset, network)
    silent(*(first if name in ("FedAvg", "FedOpt") else (dataset, network, first[1], args))).train()
    return snapshot(network)


ROUND = ["train_args.comm_round=1", "train_args.client_num_in_total=2", "partition_args.classes_per_client=5"]
BOTH = [
    (by("FedAvg"), 1e-6),
    (by("FedProx", fedprox_mu=0.1), 1e-5),  # the host's gradient of the penalty goes through a norm and its square
    (by("FedNova"), 1e-6),
    (by("FedOpt", server_momentum=0.9), 1e-6),
    (by("FedOpt", server_optimizer="adam", server_lr=0.01), 1e-5),
]
NAMES = ["FedAvg", "FedProx", "FedNova", "FedOpt", "FedOpt-adam"]


HOW = {"some": [THREE], "fedlc": ["method_args.method=fedlc"]}  # which are all clients
HOW |= {method: [f"method_args.method={method}", THREE] for method in ("fedrs", "fedshift")}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize(("settings", "tolerance"), BOTH, ids=NAMES)
def test_corrected_equals_this_package(settings, tolerance, how, weights):
    """Up to rounding: the host multiplies and adds an upload in two steps, our mean in one."""
    ours, theirs = (
        weights(*settings, f"train_args.optimizer_source={source}", MOMENTUM, DECAY, *how)
        for source in ("own", "corrected")
    )
    assert close(ours, theirs, tolerance)


@pytest.mark.parametrize(
    ("settings", "tolerance"), [BOTH[0], BOTH[3], BOTH[4]], ids=["FedAvg", "FedOpt", "FedOpt-adam"]
)
def test_corrected_equals_this_package_bit_for_bit_without_averaging(settings, tolerance, weights):
    def dropout(made):
        made.trainer.model.body = torch.nn.Sequential(made.trainer.model.body, torch.nn.Dropout(0.3))
        return replace(made, start=snapshot(made.trainer.model))

    ours, theirs = (
        weights(*settings, f"train_args.optimizer_source={source}", MOMENTUM, DECAY, ONE, change=dropout)
        for source in ("own", "corrected")
    )
    assert equal(ours, theirs)


@pytest.mark.parametrize(
    ("settings", "correction"),
    [
        ([*by("FedAvg"), *ROUND], "in the first round, every client starts from the server"),
        ([*by("FedProx"), *ROUND], "in the first round, every client starts from the server"),
        (by("FedOpt"), "every client, and the server's step, start from"),
        ([*by("FedAvg", momentum=0.5), ONE], "momentum and weight_decay are"),
        ([*by("FedOpt", momentum=0.5), ONE], "momentum and weight_decay are"),
        ([*by("FedProx", momentum=0.5), ONE], "momentum and weight_decay are"),
        ([*by("FedAvg", weight_decay=0.1), ONE], "momentum and weight_decay are"),
        ([*by("FedAvg", client_optimizer="adam", learning_rate=0.05), ONE], "Adam is Adam"),
        ([*by("FedOpt", server_momentum=0.9), ONE], "server_momentum is the recipe"),
        ([*by("FedAvg", lr_schedule="step", lr_decay=0.5, lr_decay_every=1), ONE], "the learning rate follows"),
        ([*by("FedNova"), "method_args.method=fedrs"], "uploads have the weights that"),
        ([*by("FedNova"), "method_args.method=fedshift", THREE], "uploads have the weights that"),
        ([*by("FedAvg"), "method_args.method=fedshift", ONE], "uploads have the weights that"),
    ],
    ids=lambda value: "-".join(part.partition("=")[2].strip('"') for part in value) if isinstance(value, list) else "",
)
@pytest.mark.filterwarnings("ignore:This overload of")
def test_each_fault_exists_and_is_corrected(settings, correction, weights, tmp_path):
    assert any(line.startswith(correction) for line in compatibility.corrections(parse.parse(BASE, overrides=settings)))
    ours, corrected = (weights(*settings, f"train_args.optimizer_source={source}") for source in ("own", "corrected"))
    assert close(ours, corrected, 1e-5)
    if not any("method=" in setting for setting in settings):  # FedML's class knows no method
        assert not close(ours, stock(settings, tmp_path), 1e-4)


def test_other_optimisers_of_the_process_are_unchanged():
    from fl_labelskew_plugins.engine.local import LocalSettings
    from fl_labelskew_plugins.runtimes.sp.hosted import with_recipe_settings

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with with_recipe_settings(LocalSettings(weight_decay=1.0)):
        optimizer.step()  # to -1
        assert optimizer.param_groups[0]["weight_decay"] == 1
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer.step()
    assert weight.item() == -2


@pytest.mark.parametrize(
    ("settings", "up", "down"),
    [
        (by("FedNova"), [1, 1], [1, 1]),
        (by("Mime", "own", server_momentum=0.5), [2, 2], [1, 2]),  # in one with the momentum
        (by("FedDC", "own"), [2, 2], [1, 2]),
    ],
    ids=["FedNova", "our Mime", "FedDC"],
)
def test_bytes_and_personalised_accuracy(settings, up, down, go):
    more = ["validation_args.personalised=true", "method_args.method=fedshift", "train_args.comm_round=2"]
    folder = go(*settings, THREE, *more)
    size = sum(4 * part.numel() for part in load_file(folder / "model.safetensors").values())
    lines, tau = read_lines(folder / "metrics.jsonl"), 4 if "FedNova" in settings[0] else 0
    assert [line["bytes_up"] for line in lines] == [3 * (times * size + tau) for times in up]
    assert [line["bytes_down"] for line in lines] == [3 * (times * size + 10 * 4) for times in down]  # and the prior
    ours = 'train_args.optimizer_source="own"' in settings
    assert all(bool(line["loss_terms"]) == ours for line in lines)
    assert 0.3 < lines[-1]["personalised_accuracy"] <= 1


def test_personalised_accuracy_equals_that_of_this_package(go):
    more = [*by("FedAvg"), ONE, "validation_args.personalised=true", "validation_args.frequency_of_the_test=1"]
    ours, theirs = (
        [
            (line["accuracy"], line["personalised_accuracy"], line["clients"])
            for line in read_lines(go(*more, f"train_args.optimizer_source={source}") / "metrics.jsonl")
        ]
        for source in ("own", "corrected")
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "settings",
    [by("FedOpt", "corrected", server_optimizer="adam", server_lr=0.01), by("FedNova", "corrected")],
    ids=lambda settings: "-".join(part.partition("=")[2].strip('"') for part in settings[:2]),
)
def test_a_resumed_run_gives_the_same_bytes(settings, go, tmp_path):
    often = [*settings, THREE, "method_args.method=fedshift", "tracking_args.checkpoint_every=1"]
    whole, two_rounds = go(*often), go(*often, "train_args.comm_round=2")
    # the folder as a kill after round 2 would have left it: the checkpoint of a run of 2 rounds, nothing of the third
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    shutil.copy(two_rounds / "checkpoint" / "latest.safetensors", cut / "checkpoint" / "latest.safetensors")
    for name in ("summary.json", "model.safetensors"):
        (cut / name).unlink()
    run.start(RunOptions(resume=cut, quiet=True))
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_the_record_names_the_code_that_ran(tmp_path, capsys):
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    short = ["train_args.comm_round=1", "train_args.momentum=0.9"]
    for settings, line in (
        ([], "fedavg with FedProx (the host's, corrected), sp"),
        (["train_args.optimizer_source=own"], "fedavg with FedProx, sp"),
        (["train_args.gradient_clip_norm=9"], "fedavg with FedProx, sp"),
    ):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        run.start(RunOptions(path, [*by("FedProx"), *short, *settings], run_dir=folder))
        assert line in capsys.readouterr().out
        said = json.loads((folder / "environment.json").read_text())["optimizer"]
        if said["source"] == "own":
            assert said["why"] in ("asked for", "FedML does not clip gradients (train_args.gradient_clip_norm)")
        else:
            assert said["class"] == "fedml.simulation.sp.fedprox.fedprox_trainer.FedProxTrainer"
            assert said["fedml"] == "0.9.6"
            assert "momentum and weight_decay are the recipe's" in said["corrections"]


def test_the_record_names_the_classes_that_ran():
    from fl_labelskew_plugins.runtimes.sp.hosted import HOSTED

    for name, kind in HOSTED.items():
        theirs = {f"{part.__module__}.{part.__qualname__}" for part in kind.__mro__}
        assert compatibility.CORRECTABLE[name] in theirs


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("model", "settings", "line"),
    [
        # with a single layer, clients' changes stay finite: they are those of weight decay
        ("model: logistic", [DECAY], "is not finite after FedOpt's step on the server, training diverged"),
        # the first round's weights are finite, and too large to train on
        ("model: mlp", [], r"round 2: upload of client \d: .* is not finite, .* train_args.gradient_clip_norm, or"),
    ],
)
@pytest.mark.parametrize("source", ["own", "corrected"])
def test_a_server_that_diverges_is_one_line_with_its_keys(source, model, settings, line, go):
    base = BASE.replace("model: mlp, hidden: [16]", model)
    with pytest.raises(RunError, match=f"{line}.* another value of one of train_args.server_lr, train_args.server_mom"):
        go(*by("FedOpt", source, server_lr=1e30), *settings, base=base)


FREEZES = """\
from fl_labelskew_registry import Method
from fl_labelskew_plugins.params import Params

class A(Method):
    Params = Params

    def calibrate(self, logits, client):
        if client.id == 0:
            client.model.classifier.weight.requires_grad_(False)
        return logits
"""


def test_a_head_frozen_for_one_client_is_trained_by_the_others(weights, register):
    register("fl_labelskew.methods", FREEZES)
    own, corrected = (
        weights("method_args.method=acme", *by("FedProx", s, fedprox_mu=0.0)) for s in ("own", "corrected")
    )
    assert close(own, corrected, 1e-6)
