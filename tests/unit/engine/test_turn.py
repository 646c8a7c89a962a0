import gc
import math
import weakref
from collections import UserList
from dataclasses import replace

import numpy as np
import pytest
import torch
from fl_labelskew_registry import Arrays, Data, Federation, RunError, Stage
from torch import nn
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.engine import turn
from fl_labelskew_plugins.engine.local import LocalSettings, LocalTrainer, learning_rate, snapshot
from fl_labelskew_plugins.engine.samples import ClientBatches, Samples, samples
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.methods.fedavg import FedAvg
from fl_labelskew_plugins.methods.fedrs import FedRS
from fl_labelskew_plugins.methods.flda import FLDA
from fl_labelskew_plugins.models.base import FeatureNet
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.optimizers.mime import Mime

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
"""Run a test on the CPU and on a GPU."""


class Plain(FedAvg):
    def __init__(self):
        super().__init__()
        self.batches = UserList()  # which a run does not look into

    def loss(self, batch, client):
        self.batches.append((batch.inputs, batch.labels))
        return super().loss(batch, client)


def network(norm=False, dropout=0.0):
    normalisation = nn.BatchNorm1d(8) if norm else nn.Identity()
    return FeatureNet(nn.Sequential(nn.Linear(6, 8), normalisation, nn.ReLU(), nn.Dropout(dropout)), 8, 3)


def make(sizes=(10, 7), *, norm=False, dropout=0.0, method=None, device="cpu", **settings):
    rng = np.random.default_rng(0)
    n = sum(sizes)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    data = Data(Arrays(x, rng.integers(0, 3, n)), Arrays(x, rng.integers(0, 3, n)), ["a", "b", "c"])
    torch.manual_seed(0)
    cuts = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    settings = LocalSettings(**({"batch_size": 4, "learning_rate": 0.1} | settings))
    federation = Federation(len(sizes), len(sizes), 5, settings.epochs, 3, 8, n, min(sizes), 0)
    indices = {k: torch.from_numpy(c).to(device) for k, c in enumerate(cuts)}
    train, test = samples(data, torch.device(device))
    net = network(norm, dropout).to(device)
    return LocalTrainer(net, method or Plain(), settings, federation, train, indices, test, indices)


def fit(trainer, client=0, round=0, weights=None, **extra):
    weights = snapshot(trainer.model) if weights is None else weights
    arguments = {"times_selected": 1} | extra
    return turn.fit(trainer, client, round, weights, **arguments)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 1e-2},
        {"momentum": 0.9, "epochs": 3},
        {"client_optimizer": "adam", "learning_rate": 1e-2, "weight_decay": 1e-2},
        {"gradient_clip_norm": 0.05},
    ],
)
def test_training_equals_a_plain_loop(settings):
    trainer = make(**settings)
    start = snapshot(trainer.model)
    result = fit(trainer, weights=start)

    naive = network()
    naive.load_state_dict(start)
    s = trainer.settings
    common = {"lr": s.learning_rate, "weight_decay": s.weight_decay}
    if s.client_optimizer == "adam":
        optimizer = torch.optim.Adam(naive.parameters(), **common)
    else:
        optimizer = torch.optim.SGD(naive.parameters(), momentum=s.momentum, **common)
    losses = []
    for inputs, labels in trainer.method.batches:
        loss = cross_entropy(naive(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if s.gradient_clip_norm is not None:
            nn.utils.clip_grad_norm_(naive.parameters(), s.gradient_clip_norm)
        optimizer.step()
        losses.append(loss.item())
    for key, value in naive.state_dict().items():
        torch.testing.assert_close(result.upload[key], value)
    assert result.loss_terms["cross_entropy"] == pytest.approx(sum(losses) / len(losses))


def test_start_weights_are_not_changed_and_the_same_call_gives_the_same_bits():
    trainer = make(dropout=0.3, epochs=2)
    start = snapshot(trainer.model)
    kept = {k: v.clone() for k, v in start.items()}
    drawn = torch.get_rng_state()
    one = fit(trainer, weights=start).upload
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.rand(7)  # a global generator elsewhere must not matter
    two = fit(trainer, weights=start).upload
    for key in start:
        assert torch.equal(start[key], kept[key])
        assert torch.equal(one[key], two[key])
    other = fit(trainer, round=1, weights=start).upload
    assert any(not torch.equal(one[key], other[key]) for key in start)


@pytest.mark.parametrize(("size", "batches"), [(9, [4, 5]), (10, [4, 4, 2]), (5, [5]), (1, [1]), (3, [3])])
def test_batch_norm_never_trains_on_one_sample(size, batches):
    trainer = make((size, 7), norm=True)
    result = fit(trainer)
    assert [len(labels) for _, labels in trainer.method.batches] == batches
    assert all(torch.isfinite(v).all() for v in result.upload.values())
    assert result.upload["body.1.num_batches_tracked"].dtype == torch.int64
    if size == 1:  # running statistics are used, not changed
        assert result.upload["body.1.num_batches_tracked"] == 0


class TwoStages(Plain):
    """The first stage is uploaded."""

    def __init__(self, shares):
        super().__init__()
        self.shares, self.seen = shares, UserList()

    def stages(self, epochs):
        return [Stage(f"s{i}", share, i == 0) for i, share in enumerate(self.shares)]

    def loss(self, batch, client):
        self.seen.append((client.stage, batch.last_epoch))
        return super().loss(batch, client)

    def after_round(self, client):
        client.state["final"] = client.model.classifier.weight.detach().clone()


@pytest.mark.parametrize(
    ("size", "epochs", "shares", "steps"),
    [(10, 1, (0.5, 0.5), (2, 1)), (10, 3, (2, 1), (6, 3)), (3, 1, (0.5, 0.5), (1, 0))],  # the last: a single batch
)
def test_stages_split_epochs_and_batches(size, epochs, shares, steps):
    method = TwoStages(shares)
    result = fit(make((size, 7), method=method, epochs=epochs))
    assert [s for s, _ in method.seen] == ["s0"] * steps[0] + ["s1"] * steps[1]
    assert [last for _, last in method.seen].count(True) == math.ceil(size / 4)
    # the upload is the end of the first stage, the private state that of the second
    assert torch.equal(result.upload["classifier.weight"], result.state["final"]) == (steps[1] == 0)
    whole = fit(make((size, 7), epochs=epochs)).upload["classifier.weight"]
    torch.testing.assert_close(result.state["final"], whole)


class Private(Plain):
    def protect(self, update, client):
        return {k: torch.zeros_like(v) - (1e3 if k.endswith("running_var") else 0) for k, v in update.items()}


def test_protect_gets_the_update_and_variances_stay_positive():
    trainer = make(norm=True, method=Private())
    start = snapshot(trainer.model)
    upload = fit(trainer, weights=start).upload
    assert torch.equal(upload["classifier.weight"], start["classifier.weight"])
    assert (upload["body.1.running_var"] == 0).all()
    assert upload["body.1.num_batches_tracked"] == start["body.1.num_batches_tracked"]  # counters are not sent


def test_a_turn_without_training_has_the_noise_of_one_with_training():
    """As if training had changed nothing: same tensors, same noise, and the same private state."""
    method = FedRS(FedRS.Params(upload_clip=1.0, upload_sigma=0.5))
    trainer = make(norm=True, method=method, learning_rate=0.0)
    start, state = snapshot(trainer.model), {"kept": torch.ones(2)}
    trained = fit(trainer, weights=start, state=state)
    unchanged = fit(trainer, weights=start, state=state, trains=False)
    assert list(unchanged.upload) == list(trained.upload)
    parameters = [name for name, _ in trainer.model.named_parameters()]
    for name in parameters:
        torch.testing.assert_close(unchanged.upload[name], trained.upload[name])
        assert not torch.equal(unchanged.upload[name], start[name])
    assert torch.equal(unchanged.upload["body.1.num_batches_tracked"], trained.upload["body.1.num_batches_tracked"])
    assert (unchanged.contributions, unchanged.state, unchanged.noise_seed) == ({}, state, trained.noise_seed)


def test_personalised_and_predict():
    trainer = make()
    result = fit(trainer, client=1, personalised=True)
    logits = trainer.model(trainer.test.x[trainer.test_indices[1]])
    right = int((logits.argmax(1) == trainer.test.y[trainer.test_indices[1]]).sum())
    assert result.personalised == (right, 7)
    untested = replace(trainer, test_indices={**trainer.test_indices, 1: torch.tensor([], dtype=torch.int64)})
    assert fit(untested, client=1, personalised=True).personalised is None
    predicted, labels = trainer.predict(weights=snapshot(trainer.model))
    assert predicted.shape == (17, 3)
    assert torch.equal(labels, trainer.test.y)


def test_features_pass_is_in_eval_mode_and_restores_it():
    trainer = make(norm=True, dropout=0.5)
    view = Turn(trainer, 1).view
    trainer.model.train()
    features, labels = view.features()
    assert trainer.model.training
    trainer.model.eval()
    torch.testing.assert_close(features, trainer.model.features(trainer.train.x[10:]).detach())
    assert torch.equal(labels, trainer.train.y[10:])
    assert view.counts.tolist() == torch.bincount(labels, minlength=3).tolist()


def test_replaced_samples_are_used_instead_of_the_clients_samples():
    trainer = make()
    x, y = trainer.train.x[:4], torch.full((4,), 2)
    others = Samples(x, y, (0.0,), (1.0,))
    assert Turn(trainer, 0, samples=others).view.counts.tolist() == [0, 0, 4]
    fit(trainer, samples=others)
    assert torch.equal(torch.cat([labels for _, labels in trainer.method.batches]), y)


def test_schedules():
    step = LocalSettings(learning_rate=1.0, lr_schedule="step", lr_decay=0.5, lr_decay_every=10)
    assert [learning_rate(step, r) for r in (0, 9, 10, 25)] == [1, 1, 0.5, 0.25]
    assert learning_rate(LocalSettings(learning_rate=0.3), 7) == 0.3


def test_inputs_are_normalised():
    x = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = (x / 255 - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
    torch.testing.assert_close(Samples(x, torch.zeros(5), mean, std).inputs(slice(1, 4)), expected[1:4])
    grey = Samples(x[:, :1], torch.zeros(5), (0.5,), (0.25,)).inputs(torch.tensor([2]))
    torch.testing.assert_close(grey, (x[2:3, :1] / 255 - 0.5) / 0.25)


def test_client_batches_contain_the_clients_samples():
    trainer = make()
    batches = ClientBatches(trainer.train, trainer.indices[1], 3)
    assert len(batches) == 3
    assert torch.equal(torch.cat([y for _, y in batches]), trainer.train.y[10:])
    assert torch.equal(torch.cat([x for x, _ in batches]), trainer.train.x[10:])


def test_bf16_stays_close_to_fp32_and_keeps_weights_fp32():
    trainer = make(precision="bf16")
    features, logits = trainer.forward(trainer.model, trainer.train.inputs(torch.arange(4)))
    assert (features.dtype, logits.dtype) == (torch.float32, torch.float32)
    full, half = fit(make(epochs=2)).upload, fit(make(epochs=2, precision="bf16")).upload
    for key, value in full.items():
        assert half[key].dtype == torch.float32
        torch.testing.assert_close(half[key], value, atol=0.05, rtol=0.1)


class Greedy(Plain):
    def loss(self, batch, client):
        return {"much": torch.empty(2**50, dtype=torch.uint8, device=batch.logits.device)}


@on_devices
def test_out_of_memory_names_the_batch_size(device):
    with pytest.raises(RunError) as error:
        fit(make(method=Greedy(), device=device), 1, 2)
    line = "round 3: client 1: out of memory (cpu); use a train_args.batch_size below 4, or a smaller network"
    assert str(error.value).replace("cuda:0", "cpu") == line


class Keeps(Plain):
    def __init__(self):
        super().__init__()
        self.views = UserList()

    def before_round(self, client):
        client.scratch["frozen"] = client.frozen(client.model.state_dict())
        self.views.append(weakref.ref(client))


@pytest.mark.parametrize(
    "optimizer", [FedAvgOptimizer(), Mime(Mime.Params(server_momentum=0.0))], ids=["FedAvg", "Mime"]
)
def test_nothing_of_a_turn_outlives_it(optimizer):
    """Without waiting for the garbage collector: a client's private tensors may be a whole network."""
    trainer = replace(make(method=Keeps()), optimizer=optimizer)
    sent = {f"optimizer/{name}": torch.zeros_like(p) for name, p in trainer.model.named_parameters()}
    gc.disable()
    try:
        fit(trainer, shared=sent)
        assert trainer.method.views[0]() is None
    finally:
        gc.enable()


def test_privacy_noise_has_separate_streams():
    trainer = make()

    def draw(client=0, round=0, selected=1, **more):
        view = Turn(more.pop("trainer", trainer), client, round, times_selected=selected, **more).view
        return tuple(view.noise.random(3)), tuple(torch.rand(3, generator=view.generator).tolist())

    public = draw()
    assert public == draw()
    noises = {draw(*which)[0] for which in [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 0)]}
    assert len(noises) == 4  # none is used twice, the opening's least of all
    secret = draw(trainer=replace(trainer, secret=2**100))
    assert secret[0] not in noises
    assert secret[1] == public[1]  # what is no privacy noise stays on the recipe's seed
    assert draw(noise_seed=2**100) == secret  # that of a round stands in for the silo's


class Watcher:
    def __init__(self):
        self.seen = []

    def before(self, view):
        features, labels = view.features()
        self.seen.append((view.id, len(features), len(labels)))

    def step(self, batch, view):
        gradient = view.model.classifier.weight.grad
        # before clipping and before the step: the gradient is that of the weights that made the logits
        expected = (batch.logits.softmax(1) - torch.eye(3)[batch.labels]).T @ batch.features / len(batch.labels)
        torch.testing.assert_close(gradient, expected)
        self.seen.append((view.stage, len(batch.labels)))


def test_an_observer_receives_the_upload_and_changes_no_bit():
    arguments = {"norm": True, "dropout": 0.3, "epochs": 3, "gradient_clip_norm": 0.05, "momentum": 0.9}
    trainer, watched = (make(method=TwoStages((2, 1)), **arguments) for _ in range(2))
    watcher, start = Watcher(), snapshot(trainer.model)
    one, two = fit(trainer, weights=start), fit(watched, weights=start, observer=watcher)
    assert all(torch.equal(one.upload[key], two.upload[key]) for key in start)
    assert one.loss_terms == two.loss_terms
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), watched.model.parameters(), strict=True))
    assert watcher.seen == [(0, 10, 10), *[("s0", 4), ("s0", 4), ("s0", 2)] * 2]


class PrivateParameter(Plain):
    """Train a private parameter of the client with the network, with a steep loss."""

    def before_round(self, client):
        client.scratch["own"] = nn.Parameter(torch.zeros(3))

    def private_parameters(self, client):
        return [client.scratch["own"]]

    def loss(self, batch, client):
        return {**super().loss(batch, client), "steep": 1e3 * (client.scratch["own"] - 1).square().sum()}

    def after_round(self, client):
        client.state["own"] = client.scratch["own"].detach().clone()


def test_private_parameters_are_clipped_by_their_own_norm():
    clipped, plain, free = (
        fit(make(method=method, gradient_clip_norm=norm))
        for method, norm in ((PrivateParameter(), 0.05), (Plain(), 0.05), (PrivateParameter(), None))
    )
    assert all(torch.equal(clipped.upload[k], v) for k, v in plain.upload.items())
    # 3 steps of learning rate 0.1, all in the same direction
    assert clipped.state["own"].norm().item() == pytest.approx(3 * 0.1 * 0.05, rel=1e-4)
    assert free.state["own"].norm() > 1e6


class Draws(Plain):
    def loss(self, batch, client):
        scale = 1 + torch.rand((), device=batch.logits.device) + torch.rand((), generator=client.generator)
        return {"scaled": scale * super().loss(batch, client)["cross_entropy"]}


class Compares(FedAvgOptimizer):
    """Compare each step's gradient with that of a copy with the same weights."""

    def __init__(self):
        super().__init__()
        self.steps = UserList()

    def correct(self, work):
        there = work.client.frozen(work.client.model.state_dict()).requires_grad_()
        found = torch.autograd.grad(work.loss(there), list(there.parameters()))
        for gradient, other in zip(work.gradients().values(), found, strict=True):
            torch.testing.assert_close(gradient, other)
        self.steps.append(work.steps)


@on_devices
@pytest.mark.parametrize("sizes", [(10, 7), (1, 7)])
@pytest.mark.parametrize("norm", [True, False])
def test_a_copy_with_the_same_weights_has_the_same_gradient(sizes, norm, device):
    """Batch norm's mode, dropout and the method's own draws are those of the step, and are drawn once."""
    common = {"norm": norm, "dropout": 0.4, "epochs": 2, "device": device}
    plain = fit(make(sizes, method=Draws(), **common)).upload
    trainer = replace(make(sizes, method=Draws(), **common), optimizer=Compares())
    watched = fit(trainer).upload
    assert len(trainer.optimizer.steps) == (2 if sizes[0] == 1 else 6)
    for key in plain:
        assert torch.equal(plain[key], watched[key])


def test_a_repeated_loss_leaves_a_private_network_unchanged():
    """Its running statistics are those of a loss that is run once a step; without a step, weights cannot differ."""
    kept = []
    for optimizer in (FedAvgOptimizer(), Mime(Mime.Params())):
        method = FLDA(FLDA.Params(private_start="general"))
        trainer = replace(make(norm=True, dropout=0.4, method=method, learning_rate=0.0), optimizer=optimizer)
        sent = {f"optimizer/{name}": torch.zeros_like(p) for name, p in trainer.model.named_parameters()}
        kept.append(fit(trainer, shared=sent).state)
    once, again = kept
    assert once["private.body.1.num_batches_tracked"] == 3
    assert once["private.body.1.running_mean"].any()
    assert all(torch.equal(again[name], tensor) for name, tensor in once.items())


class Asks(FedAvgOptimizer):
    def __init__(self):
        super().__init__()
        self.found = UserList()

    def before_round(self, work):
        self.found.append(work.gradient())


def test_the_whole_gradient_is_the_mean_over_all_samples_in_eval_mode():
    trainer = make((300, 7), norm=True, dropout=0.4, batch_size=128)  # three batches of 128, 128 and 44
    fit(trainer)  # its own running statistics
    start = snapshot(trainer.model)
    trainer = replace(trainer, optimizer=Asks())
    fit(trainer, weights=start)
    naive = network(norm=True, dropout=0.4).eval()
    naive.load_state_dict(start)
    loss = cross_entropy(naive(trainer.train.x[:300]), trainer.train.y[:300])
    expected = torch.autograd.grad(loss, list(naive.parameters()))
    for found, gradient in zip(trainer.optimizer.found[-1].values(), expected, strict=True):
        torch.testing.assert_close(found, gradient)


def test_a_worker_without_clients_tests_with_the_given_weights():
    trainer, tester = make(norm=True), replace(make(norm=True), indices={})
    weights = {name: value + value.is_floating_point() for name, value in snapshot(trainer.model).items()}
    start = tester.take_weights()
    assert all(torch.equal(value, start[name]) for name, value in snapshot(trainer.model).items())
    copies = {name: value.clone() for name, value in weights.items()}
    for _ in range(2):
        for expected, got in zip(trainer.predict(weights=copies), tester.predict(weights=weights), strict=True):
            assert torch.equal(expected, got)
        assert all(value.is_meta for value in tester.model.state_dict().values())
    assert all(torch.equal(value, weights[name]) for name, value in copies.items())
    assert all(parameter.requires_grad for parameter in tester.model.parameters())
    assert not any(value.requires_grad for value in weights.values())


def test_gradients_are_freed_before_the_upload(monkeypatch):
    trainer, seen = make(), []

    def watched(model):
        seen.append([parameter.grad for parameter in model.parameters()])
        return snapshot(model)

    monkeypatch.setattr(turn, "snapshot", watched)
    fit(trainer)
    assert seen == [[None] * 4]


@pytest.mark.parametrize(("exact", "norm"), [(False, 1.87), (True, 1.0)])
def test_rounding_does_not_increase_a_clipped_change_before_noise(exact, norm):
    """Near 3e6, float32 has steps of 0.25: each of 56 changes of 0.134 is rounded up."""
    trainer = make(method=FedRS(FedRS.Params(upload_clip=1.0)))
    start = {name: torch.full_like(value, 3e6) for name, value in snapshot(trainer.model).items()}
    upload = {name: value + 0.25 * name.startswith("body") for name, value in start.items()}
    Turn(trainer, 0, exact=exact)._protect(upload, start)
    squares = [(upload[name].double() - value.double()).square().sum() for name, value in start.items()]
    assert math.sqrt(sum(squares)) == pytest.approx(norm, abs=0.01)
