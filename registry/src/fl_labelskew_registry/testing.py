"""Checks for plugin tests: each calls a class's hooks with tiny data; default ``params``: ``kind.Params()``.

>>> from fl_labelskew_registry import Method
>>> class Plain(Method):
...     def calibrate(self, logits, client):
...         return logits.sum()
>>> check_method(Plain)
Traceback (most recent call last):
AssertionError: Plain.calibrate returned a tensor of shape (); expected shape (4, 3)
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from fl_labelskew_registry import data
from fl_labelskew_registry.answers import problem
from fl_labelskew_registry.contracts import (
    Aggregated,
    Batch,
    ClientView,
    Contribution,
    Federation,
    Method,
    Optimizer,
    ServerView,
    Total,
)

CLASSES, FEATURES, SAMPLES = 3, 5, 4
FEDERATION = Federation(
    num_clients=2,
    clients_per_round=2,
    rounds=2,
    epochs=2,
    num_classes=CLASSES,
    num_features=FEATURES,
    num_samples=2 * SAMPLES,
    min_samples=SAMPLES,
    seed=0,
)


def check_method(kind: type[Method], params: Any = None) -> None:
    """Call each hook of a method for two rounds of a client that lacks a class; raises AssertionError."""
    import torch

    method, run = kind(params), FEDERATION
    model = _network(method.shared_modules(run))
    inputs, labels = torch.randn(SAMPLES, 2), torch.tensor([0, 0, 1, 1])
    state: dict[str, Any] = {}
    opened = _call(method, "opening", _view(model, {}, {}, labels, inputs))
    total = Total(opened, 1, contributions=[Contribution(0, opened)] * method.individual, federation=run)
    shared = dict(_call(method, "open", total))
    for hook, given in (("deviations", ()), ("warnings", (run,)), ("report", (run,)), ("protects", ())):
        _call(method, hook, *given)
    for round in range(run.rounds):
        view = _view(model, state, shared, labels, inputs, round)
        stages = _call(method, "stages", run.epochs)
        _call(method, "before_round", view)
        _call(method, "private_parameters", view)
        for stage in stages:
            view.stage = stage.name
            features = model.features(inputs)
            batch = Batch(inputs, features, model.classifier(features), labels)
            _call(method, "calibrate", batch.logits, view)
            _call(method, "terms", batch, view)
            sum(_call(method, "loss", batch, view).values()).backward()
        sent = _call(method, "contribute", view)
        _call(method, "after_round", view)
        if method.protects():
            _call(method, "protect", {name: torch.zeros_like(p) for name, p in model.named_parameters()}, view)
        _call(method, "private_logits", inputs, view)
        closing = method.closing and round == run.rounds - 1
        total = Total(sent, 1, round, [Contribution(0, sent)] * method.individual, closing, run)
        shared, state = dict(_call(method, "combine", total, shared)), view.state
        server = ServerView(round, shared, run, view.generator, _frozen(model), total.closing)
        _call(method, "after_aggregation", model.state_dict(), server)
        _call(method, "personalised", state)


def check_optimizer(kind: type[Optimizer], params: Any = None) -> None:
    """Call the hooks of an optimiser that need no training; as :func:`check_method`."""
    import torch

    optimizer, old = kind(params), {"w": torch.zeros(2), "steps": torch.tensor(3)}
    _call(optimizer, "deviations")
    announced = _call(optimizer, "contribution_shapes", {"w": (2,)})
    sent = {name: torch.zeros(tuple(shape)) for name, shape in announced.items()}
    new = _call(optimizer, "step", Aggregated(old, dict(old), sent, 2, ["w"], {}, {}, FEDERATION))
    assert new.keys() == old.keys(), f"{kind.__name__}.step returned {sorted(new)}; expected {sorted(old)}"


def check_network(kind: type[data.Network], params: Any = None, *, shape: Sequence[int] = (1, 8, 8)) -> None:
    """Build a network for samples of ``shape``; check features and logits as :func:`check_method`."""
    import torch

    module, x = _call(kind(params), "build", tuple(shape), CLASSES), torch.randn(SAMPLES, *shape)
    for name in ("features", "forward"):
        wrong = problem(module, torch.nn.Module, name, getattr(module, name)(x), x)
        assert not wrong, f"{type(module).__name__}.{name} {wrong}"


def check_dataset(kind: type[data.Dataset], params: Any = None, *, folder: Any = None) -> None:
    """Read a data set from ``folder``; as :func:`check_method`."""
    made = kind(params).load(folder, download=False, seed=0)
    wrong = problem(None, data.Dataset, "load", made)
    assert not wrong, f"{kind.__name__}.load {wrong}"


def check_partition(kind: type[data.Partitioner], params: Any = None, *, clients: int = 3, classes: int = 4) -> None:
    """Divide 60 samples twice with one seed; require equal, disjoint, non-empty parts, as :func:`check_method`."""
    import numpy as np

    labels, groups = np.arange(60) % classes, np.arange(60) % clients
    parts = kind(params).split(labels, groups, clients=clients, rng=np.random.default_rng(0))
    again = kind(params).split(labels, groups, clients=clients, rng=np.random.default_rng(0))
    name = f"{kind.__name__}.split"
    assert len(parts) == clients, f"{name} returned {len(parts)} parts; expected one for each of {clients} clients"
    assert all(len(part) for part in parts), f"{name} returned an empty part; expected samples for each client"
    indices = np.concatenate(parts)
    assert len(set(indices.tolist())) == len(indices), f"{name} gave a sample to two clients; expected one"
    same = all(map(np.array_equal, parts, again))
    assert same, f"{name} returned other parts for the same generator; expected draws from rng only"


def _call(plugin: Any, hook: str, *given: Any) -> Any:
    contract = next(kind for kind in (Method, Optimizer, data.Network) if isinstance(plugin, kind))
    answer = getattr(plugin, hook)(*given)
    wrong = problem(plugin, contract, hook, answer, *given)
    assert not wrong, f"{type(plugin).__name__}.{hook} {wrong}"
    return answer


def _network(shared: Any) -> Any:
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.classifier = nn.Linear(2, FEATURES), nn.Linear(FEATURES, CLASSES)
            self.shared_modules = nn.ModuleDict(shared)

        def features(self, x: Any) -> Any:
            return self.body(x).relu()

        def forward(self, x: Any) -> Any:
            return self.classifier(self.features(x))

    return Net()


def _frozen(model: Any) -> Callable[[Any], Any]:
    def frozen(weights: Any) -> Any:
        twin = copy.deepcopy(model)
        twin.load_state_dict(weights)
        return twin.requires_grad_(False).eval()

    return frozen


def _view(model: Any, state: Any, shared: Any, labels: Any, inputs: Any, round: int = 0) -> ClientView:
    import numpy as np
    import torch

    return ClientView(
        id=0,
        round=round,
        counts=torch.bincount(labels, minlength=CLASSES),
        shared=shared,
        state=dict(state),
        generator=torch.Generator().manual_seed(0),
        times_selected=round + 1,
        federation=FEDERATION,
        model=model,
        noise=np.random.default_rng(0),
        frozen=_frozen(model),
        fresh=lambda: copy.deepcopy(model.state_dict()),
        features=lambda: (model.features(inputs).detach(), labels),
    )
