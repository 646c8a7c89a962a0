"""The host's own optimisers under ``backend: sp`` beside its stock classes, our own, and what they do by hand."""

import copy
import json
import shutil
from dataclasses import replace
from functools import cache

import pytest
import torch
from fl_labelskew_registry import RunError
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine import turn
from fl_labelskew_plugins.engine.local import snapshot
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.front import start as run
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import host_faults, parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import progress
from fl_labelskew_plugins.runs.record import Record

pytestmark = pytest.mark.slow

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
    from fl_labelskew_plugins.runtimes.base import Call
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
        SP(loaded, Call(None, (), False, True), folder, show).run(made, record)
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


# the host as it is


class Loader:
    """A client's batches, dealt as our own loop deals them; every round reads them ``passes`` times."""

    def __init__(self, made, client, passes):
        self.made, self.client, self.passes, self.read = made, client, passes, 0

    def __iter__(self):
        local, (round, number) = self.made.trainer, divmod(self.read, self.passes)
        self.read += 1
        if number in (0, 2):  # Mime's third begins anew
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
    module, _, kind = host_faults.CLASSES[name].rpartition(".")
    theirs = getattr(importlib.import_module(module), kind)
    nothing = {"_local_test_on_all_clients", "local_test_on_all_clients", "test"}

    def sample(self, round, *_):
        chosen = sorted(seeds.numpy_generator(0, "sampling", round).choice(5, 3, replace=False).tolist())
        for client in chosen:  # the first time that this client is read may be in a later round
            loader = loaders[client]
            loader.first, loader.read = round, 0
        return chosen

    members = {"_client_sampling": sample, "client_sampling": sample}
    silent = type("Silent", (theirs,), members | {key: lambda *_: None for key in nothing if hasattr(theirs, key)})
    args = host.start(loaded, folder / "fedml.yaml")
    args.wd, args.ci, args.frequency_of_the_test = args.weight_decay, 0, 1
    args.dampening, args.nesterov, args.mu, args.gmf, args.mimelite = 0.0, False, 0.0, 0.0, False
    loaders = {k: Loader(made, k, 3 if name == "Mime" else 2) for k in range(5)}
    dataset = [0, 0, None, None, dict(enumerate(made.sizes)), loaders, dict.fromkeys(range(5)), 10]
    network = copy.deepcopy(made.trainer.model)
    first = (args, torch.device("cpu"), dataset, network)
    silent(*(first if name in ("FedAvg", "FedOpt") else (dataset, network, first[1], args))).train()
    return snapshot(network)


@pytest.mark.parametrize(
    "settings",
    [
        by("FedAvg", "host"),
        by("FedAvg", "host", client_optimizer="adam", learning_rate=0.01),
        by("FedProx", "host", fedprox_mu=0.1),
        by("FedOpt", "host", server_optimizer="adam", server_lr=0.01),
        by("FedNova", "host", momentum=0.9),
        by("FedDyn", "host", feddyn_alpha=0.1),
        by("FedDyn", "host", initialize_all_clients=False),
        by("Mime", "host", momentum=0.5, server_momentum=0.5),
        by("SCAFFOLD", "host", server_lr=0.9),
        by("SCAFFOLD", "host", initialize_all_clients=False),
    ],
    ids=lambda settings: "-".join(part.partition("=")[2].strip('"') for part in settings),
)
@pytest.mark.filterwarnings("ignore:This overload of")
def test_the_host_as_it_is_does_what_its_class_does_in_one_go(settings, weights, tmp_path):
    assert equal(weights(*settings, THREE), stock([*settings, THREE], tmp_path))


def after_one_step(made, client):
    """The start, and the start after a client's first step of plain SGD."""
    local = made.trainer
    model = copy.deepcopy(local.model)
    batches, _ = Turn(local, client).batches()
    inputs, labels = next(batches)
    cross_entropy(model(inputs), labels).backward()
    return {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters()}


def fit(made, client, start):
    return turn.fit(made.trainer, client, 0, start, times_selected=1).upload


ROUND = ["train_args.comm_round=1", "train_args.client_num_in_total=2", "partition_args.classes_per_client=5"]


@cache
def two():
    return session.build(parse.parse(BASE, overrides=ROUND))


def test_its_scaffold_is_its_last_clients_model_and_no_scaffold(go):
    folder = go(*by("SCAFFOLD", "host"), *ROUND, "tracking_args.checkpoint_every=1")
    moved = after_one_step(two(), 0)  # live weights: where client 1 starts
    last = fit(two(), 1, moved)
    assert close(load_file(folder / "model.safetensors"), last, 1e-6)
    _, steps = Turn(two().trainer, 1).batches()
    kept = load_file(folder / "checkpoint" / "latest.safetensors")
    c = {key: kept[f"shared/optimizer/{key}"] for key in last}  # of the last client alone, over all clients
    assert close(c, {key: (moved[key] - last[key]) / (steps * 0.1) / 2 for key in last}, 1e-5)
    said = json.loads((folder / "environment.json").read_text())["optimizer"]
    assert said["faults"][0].startswith("this is the host's SCAFFOLD, which is not SCAFFOLD: ")


def test_its_feddyn_penalises_nothing_and_measures_from_the_last_client(weights):
    plain = weights(*by("FedAvg", "host"), ONE)
    assert all(equal(plain, weights(*by("FedDyn", "host", feddyn_alpha=alpha), ONE)) for alpha in (0.01, 10.0))
    assert not close(plain, weights(*by("FedDyn", "own", feddyn_alpha=10.0), ONE), 1e-3)


def test_live_weights_of_the_first_round(weights):
    live = weights(*by("FedAvg", "host"), *ROUND)
    sizes = two().sizes
    chained = [fit(two(), 0, two().start)]
    chained.append(fit(two(), 1, chained[0]))
    mean = {key: sum(n * part[key] for n, part in zip(sizes, chained, strict=True)) / sum(sizes) for key in live}
    assert close(live, mean, 1e-6)


# without its faults

BOTH = [
    (by("FedAvg"), 1e-6),
    (by("FedProx", fedprox_mu=0.1), 1e-5),  # the host's gradient of the penalty goes through a norm and its square
    (by("FedNova"), 1e-6),
    (by("FedOpt", server_momentum=0.9), 1e-6),
    (by("FedOpt", server_optimizer="adam", server_lr=0.01), 1e-5),
]
NAMES = ["FedAvg", "FedProx", "FedNova", "FedOpt", "FedOpt-adam"]


@pytest.mark.parametrize("how", [[], [THREE], ["method_args.method=fedrs", THREE], ["method_args.method=fedlc"],
                                 ["method_args.method=fedshift", THREE]], ids=["all", "some", "fedrs", "fedlc",
                                                                              "fedshift"])  # fmt: skip
@pytest.mark.parametrize(("settings", "tolerance"), BOTH, ids=NAMES)
def test_corrected_equals_our_own(settings, tolerance, how, weights):
    """Up to rounding: the host multiplies and adds an upload in two steps, our mean in one."""
    ours, theirs = (
        weights(*settings, f"train_args.optimizer_source={source}", MOMENTUM, DECAY, *how)
        for source in ("own", "corrected")
    )
    assert close(ours, theirs, tolerance)


@pytest.mark.parametrize(
    ("settings", "tolerance"), [BOTH[0], BOTH[3], BOTH[4]], ids=["FedAvg", "FedOpt", "FedOpt-adam"]
)
def test_corrected_equals_our_own_bit_for_bit_where_nothing_is_averaged(settings, tolerance, weights):
    def dropout(made):
        made.trainer.model.body = torch.nn.Sequential(made.trainer.model.body, torch.nn.Dropout(0.3))
        return replace(made, start=snapshot(made.trainer.model))

    ours, theirs = (
        weights(*settings, f"train_args.optimizer_source={source}", MOMENTUM, DECAY, ONE, change=dropout)
        for source in ("own", "corrected")
    )
    assert equal(ours, theirs)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ([*by("FedAvg"), *ROUND], "in the first round, every client starts from the weights"),
        ([*by("FedProx"), *ROUND], "in the first round, every client starts from the weights"),
        (by("FedOpt"), "in every round, each client starts from the weights"),
        *[([*by(name, momentum=0.5), ONE], "momentum and weight_decay") for name in ("FedAvg", "FedOpt", "FedProx")],
        ([*by("FedAvg", weight_decay=0.1), ONE], "momentum and weight_decay"),
        ([*by("FedAvg", client_optimizer="adam", learning_rate=0.05), ONE], "Adam is AMSGrad"),
        ([*by("FedOpt", server_momentum=0.9), ONE], "server_momentum is ignored"),
        ([*by("FedAvg", lr_schedule="step", lr_decay=0.5, lr_decay_every=1), ONE], "the learning rate stays"),
        ([*by("FedNova"), "method_args.method=fedrs"], "uploads are weighed by"),
        ([*by("FedNova"), "method_args.method=fedshift", THREE], "uploads are weighed by"),
        ([*by("FedAvg"), "method_args.method=fedshift", ONE], "uploads are weighed by"),
    ],
    ids=lambda value: "-".join(part.partition("=")[2].strip('"') for part in value) if isinstance(value, list) else "",
)
def test_each_fault_is_there_and_corrected(settings, fault, weights):
    faults = host_faults.faults(parse.parse(BASE, overrides=settings))
    assert fault in [part.wrong[: len(fault)] for part in faults if part.right]
    ours, host, corrected = (
        weights(*settings, f"train_args.optimizer_source={source}") for source in ("own", "host", "corrected")
    )
    assert close(ours, corrected, 1e-5)
    assert not close(ours, host, 1e-4)


def test_other_optimisers_of_the_process_are_left_alone():
    from fl_labelskew_plugins.engine.local import LocalSettings
    from fl_labelskew_plugins.runtimes.sp.hosted import asked_for

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with asked_for(LocalSettings(weight_decay=1.0)):
        optimizer.step()  # to -1
        assert optimizer.param_groups[0]["weight_decay"] == 1
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer.step()
    assert weight.item() == -2


# what is recorded


@pytest.mark.parametrize(
    ("settings", "up", "down"),
    [
        (by("FedAvg", "host"), [1, 1], [1, 1]),
        (by("FedNova"), [1, 1], [1, 1]),
        (by("SCAFFOLD", "host"), [2, 2], [2, 2]),  # with the control variates
        (by("Mime", "host", server_momentum=0.9), [2, 2], [2, 3]),  # gradients; after a round the momentum, too
        (by("Mime", "own", server_momentum=0.5), [2, 2], [1, 2]),  # in one with the momentum
        (by("FedDC", "own"), [2, 2], [1, 2]),
    ],
    ids=["FedAvg", "FedNova", "SCAFFOLD", "Mime", "our Mime", "FedDC"],
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


def test_personalised_accuracy_is_that_of_our_own_loop(go):
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
    [
        by("FedOpt", "corrected", server_optimizer="adam", server_lr=0.01),
        by("FedNova", "corrected"),
        by("FedAvg", "host"),
        by("FedDyn", "host", feddyn_alpha=0.5),
        by("Mime", "host", momentum=0.5, server_momentum=0.5),
        by("SCAFFOLD", "host"),
    ],
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
    run.start(None, resume=cut, quiet=True)
    for name in ("metrics.jsonl", "model.safetensors", "checkpoint/latest.safetensors"):
        if not name.startswith("checkpoint"):  # which also holds seconds
            assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_the_record_and_the_first_lines_say_whose_code_ran(tmp_path, capsys):
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    short = ["train_args.comm_round=1", "train_args.momentum=0.9"]
    for settings, line in (
        ([], "fedavg with FedProx (the host's, corrected), sp"),
        (["train_args.optimizer_source=host"], "fedavg with FedProx (the host's as it is), sp"),
        (["train_args.optimizer_source=own"], "fedavg with FedProx, sp"),
        (["train_args.gradient_clip_norm=9"], "fedavg with FedProx, sp"),
    ):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        run.start(path, [*by("FedProx"), *short, *settings], run_dir=folder)
        out, err = capsys.readouterr()
        assert line in out
        said = json.loads((folder / "environment.json").read_text())["optimizer"]
        ignored = "momentum and weight_decay are"
        if said["source"] == "own":
            assert said["why"] in ("asked for", "the host clips no gradients (train_args.gradient_clip_norm)")
        else:
            assert said["class"] == "fedml.simulation.sp.fedprox.fedprox_trainer.FedProxTrainer"
            assert said["fedml"] == "0.9.6"
            assert f"{ignored} the recipe's" in said.get("corrections", [f"{ignored} the recipe's"])
            assert f"{ignored} ignored" in said.get("faults", [f"{ignored} ignored"])
        assert (f"warning: train_args.optimizer_source: host: {ignored} ignored" in err) == (said["source"] == "host")


def test_the_classes_of_the_record_are_those_that_run():
    from fl_labelskew_plugins.runtimes.sp.host_optimizers import AS_THEY_ARE, CORRECTED

    for kinds in (AS_THEY_ARE, CORRECTED):
        for name, kind in kinds.items():
            theirs = {f"{part.__module__}.{part.__qualname__}" for part in kind.__mro__}
            assert host_faults.CLASSES[name] in theirs


@pytest.mark.filterwarnings("ignore:invalid value")
def test_training_that_diverges_is_one_line(go):
    with pytest.raises(RunError, match=r"round \d: upload of client \d: .* is not finite, training diverged"):
        go(*by("FedProx", "host", learning_rate=1e30))


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
