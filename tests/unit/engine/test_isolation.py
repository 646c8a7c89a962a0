import itertools
import random
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import torch
from error_messages import message
from recipe_texts import DIGITS
from torch import nn
from torch.nn.utils import parametrize

from fl_labelskew_plugins.checked import HookError
from fl_labelskew_plugins.engine import turn
from fl_labelskew_plugins.engine.aggregate import origin
from fl_labelskew_plugins.engine.isolation import Baseline
from fl_labelskew_plugins.engine.local import load, snapshot
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.methods.fedavg import FedAvg
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.recipe import parse, yaml
from fl_labelskew_plugins.runs import session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.classifier = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(2), persistent=False)
        self.cache = {}

    def forward(self, x):
        return self.classifier(self.body(x)) * self.scale


def freeze(net):
    net.classifier.weight.requires_grad_(False)


def hooks(net):
    net.classifier.register_forward_hook(lambda *_: torch.zeros(5, 2))
    net.body.register_forward_pre_hook(lambda *_: 1 / 0)
    net.body.register_full_backward_hook(lambda *_: 1 / 0)


def hooks_of_parameters(net):
    net.classifier.bias.register_hook(lambda gradient: gradient * 1000)
    net.body[0].bias.register_post_accumulate_grad_hook(lambda p: 1 / 0)


def structure(net):
    net.classifier = nn.Linear(3, 7)
    net.extra = nn.Linear(2, 2)
    del net.body[2]


def buffers(net):
    net.scale.mul_(9)
    net.register_buffer("more", torch.ones(1))
    net.body[1].running_mean = None


def attributes(net):
    net.body[2].p, net.note = 0.0, 1
    net.cache["x"] = 1
    net.classifier.weight.mask = 1
    net.forward = lambda x: x


def forms(net):
    net.classifier.weight.data = torch.zeros(4, 5)
    net.body[0].bias.data = net.body[0].bias.data.double()
    net.scale.data = torch.zeros(7)
    net.body[1].running_mean.data = torch.zeros(7)


def mode(net):
    net.body[1].train()


def parametrisation(net):
    parametrize.register_parametrization(net.classifier, "weight", nn.Softplus())


CHANGES = [freeze, hooks, hooks_of_parameters, structure, buffers, attributes, forms, mode, parametrisation]


def described(net):
    """The structure of a network without the values of its tensors, and its output."""
    modules = [(name, type(module), module.training, sorted(vars(module))) for name, module in net.named_modules()]
    parameters = [(name, id(p), p.requires_grad, vars(p)) for name, p in net.named_parameters()]
    loss = net(torch.arange(20.0).reshape(5, 4)).sum()
    gradients = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad])
    loss = net(torch.arange(20.0).reshape(5, 4)).sum()
    loss.backward()
    kept = [p.grad.tolist() for p in net.parameters()]
    net.zero_grad()
    return modules, parameters, float(loss), [g.tolist() for g in gradients], kept, dict(net.cache), net.scale.tolist()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_baseline_restores_the_network(change):
    net = Net().eval()
    weights, before, baseline = snapshot(net), described(net), Baseline(net)
    change(net)
    baseline.restore()
    load(net, weights)  # as the next turn does
    assert described(net) == before


def make(method=None, optimizer=None, *overrides):
    objects = {} if method is None else {"method_args": method}
    made = session.build(parse.parse(yaml.write(DIGITS), overrides=overrides, objects=objects))
    return made if optimizer is None else replace(made, trainer=replace(made.trainer, optimizer=optimizer))


def fit(made, client=1, round=0, **more):
    return turn.fit(made.trainer, client, round, made.start, **{"times_selected": 1} | more)


class Changes(FedAvg):
    """Change for client 0 everything that a method may change in one turn."""

    def before_round(self, client):
        if client.id == 0:
            client.model.classifier.weight.requires_grad_(False)
            client.model.classifier.register_forward_hook(lambda module, given, logits: logits * 0.5)
            teacher = client.frozen(client.model.state_dict())
            teacher.classifier.register_forward_hook(lambda module, given, logits: logits * 0)
            client.shared["centre"].add_(1)

    def loss(self, batch, client):
        teacher = client.frozen(client.model.state_dict())
        return {**super().loss(batch, client), "distance": (teacher(batch.inputs) - batch.logits).pow(2).mean()}

    def after_round(self, client):
        client.state["centre"] = client.shared["centre"]
        client.model.train()
        client.model.extra = nn.Linear(1, 1)
        if client.id == 0:
            raise ValueError("after all")


def test_a_client_s_turn_does_not_change_the_next_one_s():
    shared = {"centre": torch.zeros(2)}
    separate, made = fit(make(Changes()), shared=shared), make(Changes())
    with pytest.raises(ValueError, match="after all"):
        fit(made, 0, shared=shared)
    after = fit(made, shared=shared)
    assert all(torch.equal(value, after.upload[name]) for name, value in separate.upload.items())
    assert separate.loss_terms == after.loss_terms
    assert after.state["centre"].tolist() == shared["centre"].tolist() == [0, 0]


class Opens(FedAvg):
    """Sends a number of the network before round 0, with dropout's draws, after a change of the weights."""

    def opening_shapes(self, federation):
        return {"sum": (), "drawn": (1,)}

    def opening(self, client):
        with torch.no_grad():
            client.model.classifier.weight.mul_(client.id + 2)
        return {"sum": client.model.classifier.weight.sum().detach(), "drawn": torch.rand(1)}


def test_an_opening_does_not_change_the_next_one():
    made, other = make(Opens()), make(Opens())
    before, drawn = snapshot(made.trainer.model), torch.get_rng_state()
    made.opening(0)
    after, separate = made.opening(1).tensors, other.opening(1).tensors
    assert all(torch.equal(after[name], separate[name]) for name in ("sum", "drawn"))
    assert all(torch.equal(value, before[name]) for name, value in made.trainer.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


class FreezesHead(FedAvg):
    def before_round(self, client):
        client.model.classifier.weight.requires_grad_(False)


@pytest.mark.parametrize("optimizer", ["FedAvg", "FedProx", "FedDyn", "FedDC", "SCAFFOLD", "Mime", "FedNova"])
def test_a_frozen_parameter_stays_frozen_for_its_turn_only(optimizer):
    made = make(FreezesHead(), None, f"train_args.federated_optimizer={optimizer}", "train_args.weight_decay=0.01")
    old = origin(made.start, made.recipe.optimizer, list(made.start))
    results = [fit(made, client) for client in (0, 1)]
    for result in results:
        change = {name: not torch.equal(value, old[name]) for name, value in result.upload.items()}
        assert not change.pop("classifier.weight")
        assert all(change.values())
        server = Server(made.trainer.model, method=made.method, federation=made.federation, weights=made.start)
        server.optimizer = made.recipe.optimizer
        server.check(1, 0, result)
    assert all(p.requires_grad for p in made.trainer.model.parameters())


class Helper:
    calls = 0


class Keeps(FedAvg):
    """A method with attributes of many kinds; ``change``: the change by each hook."""

    names = []  # noqa: RUF012  # a mistake that people make

    def __init__(self, change=lambda self: None):
        super().__init__()
        self.n, self.seen, self.t, self.array = 0, {"a": [1]}, torch.zeros(2), np.zeros(2)
        self.head, self.helper, self.numbers = nn.Linear(2, 2), Helper(), itertools.count()
        self.random, self.rng, self.generator = random.Random(0), np.random.default_rng(0), torch.Generator()
        self.nan, self._change = float("nan"), change

    @cached_property
    def table(self):
        return torch.ones(3)


ATTRIBUTES = {
    "n": lambda self: setattr(self, "n", self.n + 1),
    "new": lambda self: setattr(self, "new", 1),
    "seen": lambda self: self.seen["a"].append(2),
    "names": lambda self: self.names.append(1),
    "t": lambda self: self.t.add_(1),
    "array": lambda self: self.array.__iadd__(1),
    "head": lambda self: nn.init.zeros_(self.head.weight),
    "helper": lambda self: setattr(self.helper, "calls", 1),
    "numbers": lambda self: next(self.numbers),
    "random": lambda self: self.random.random(),
    "rng": lambda self: self.rng.random(),
    "generator": lambda self: torch.rand(1, generator=self.generator),
}


class BeforeRound(Keeps):
    def before_round(self, client):
        self._change(self)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_changed_attribute_ends_the_turn(name, monkeypatch):
    monkeypatch.setattr(Keeps, "names", [])
    made = make(BeforeRound(ATTRIBUTES[name]))
    line = (
        rf"^BeforeRound.before_round \({__name__}\) changed self.{name}; .* keep the value in client.state "
        r"\(for later rounds\) or client.scratch \(for the rest of this round\)$"
    )
    with pytest.raises(HookError, match=line):
        fit(made)


def test_values_derived_from_parameters_may_be_cached():
    def change(self):
        self.n, self.t = 0, self.t.clone()  # the same values
        return self.table

    made = make(BeforeRound(change))
    fit(made)
    made.method.table.add_(1)
    with pytest.raises(HookError, match=r"before_round .* changed self\.table"):
        fit(made)


def hook(name, *, of=Keeps):
    def changing(self, *given):
        self.n += 1
        return getattr(of, name)(self, *given)

    return type("A", (of,), {name: changing})


class Counts(FedAvgOptimizer):
    n = 0


USES = {
    (Keeps, "client.state (for later rounds) or client.scratch"): [
        *("loss", "calibrate", "terms", "private_parameters", "contribute", "after_round", "protect", "private_logits")
    ],
    (Keeps, "compute the value in __init__ or a functools.cached_property"): ["stages", "report"],
    (Keeps, "keep the value in the tensors that open and combine return"): ["open", "combine", "after_aggregation"],
    (Counts, "keep the value in work.client.state"): ["before_round", "correct", "finish"],
    (Counts, "keep the value in round.memory or round.shared"): ["step"],
}


@pytest.mark.parametrize(("of", "use", "name"), [(*key, name) for key, names in USES.items() for name in names])
def test_the_error_names_the_hook(of, use, name):
    changing = hook(name, of=of)()
    made = make(changing) if of is Keeps else make(None, changing)
    if name == "report":
        made.method.report(made.federation)
    trainer, more = made.trainer, {"method": made.method, "federation": made.federation, "weights": made.start}
    server = Server(trainer.model, optimizer=trainer.optimizer, **more)

    def play():
        server.open([made.opening(0)])
        server.run_round([1], [made.sizes[1]], iter([(1, fit(made, personalised=True))]))

    line = message(play, kind=HookError)
    assert line.startswith(f"A.{name} ({__name__}) changed self.n; ")
    assert use in line
