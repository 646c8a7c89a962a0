"""A tiny network and clients' views of it."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fl_labelskew_registry.contracts import Batch, ClientView, Federation, ServerView
from recipe_texts import SKEWED
from rounds import LocalFederation
from torch import nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.local import load
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.models.base import FeatureNet


def tiny_net():
    """4 inputs, 3 features, 5 classes, with batch normalisation for its integer buffer."""
    return FeatureNet(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh()), 3, 5)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def federation():
    return Federation(
        num_clients=10,
        clients_per_round=2,
        rounds=20,
        epochs=2,
        num_classes=5,
        num_features=3,
        num_samples=400,
        min_samples=30,
        seed=7,
    )


@pytest.fixture
def world(federation):
    """A network, one client's data and functions that make views and batches of them."""
    net = tiny_net()
    x, y = torch.randn(40, 4), torch.arange(40) % 3  # classes 3 and 4 are missing
    counts = torch.bincount(y, minlength=5)

    def frozen(state):
        twin = copy.deepcopy(net)
        twin.load_state_dict(state)
        return twin.requires_grad_(False).eval()

    def fresh():
        with torch.random.fork_rng():
            torch.manual_seed(9)
            return tiny_net().state_dict()

    def features():
        net.eval()
        with torch.no_grad():
            return net.features(x), y

    def client(**changes):
        fields = {
            "id": 3,
            "round": 0,
            "counts": counts,
            "shared": {},
            "state": {},
            "generator": torch.Generator().manual_seed(1),
            "noise": seeds.noise_generator(2, "noise"),
            "times_selected": 1,
            "federation": federation,
            "model": net,
            "frozen": frozen,
            "fresh": fresh,
            "features": features,
        }
        return ClientView(**(fields | changes))

    def moved(prefix=""):
        """A state dict unlike the network's own."""
        state = net.state_dict().items()
        return {prefix + name: v + 0.3 if v.is_floating_point() else v + 5 for name, v in state}

    def begun(method, **changes):
        """A view in the middle of a round, and the server's model, which training has left."""
        view = client(**changes)
        method.before_round(view)
        server = frozen(net.state_dict())
        with torch.no_grad():
            net.body[0].weight.add_(0.5)
            net.classifier.weight.mul_(2)
        return view, server

    def batch(index=slice(0, 16), **changes):
        h = net.features(x[index])
        return Batch(x[index], h, net.classifier(h), y[index], **changes)

    def server(shared=None):
        return ServerView(0, shared or {}, federation, torch.Generator().manual_seed(0), frozen)

    tools = {"client": client, "server": server, "begun": begun, "moved": moved, "batch": batch}
    return SimpleNamespace(net=net, x=x, y=y, counts=counts, federation=federation, **tools)


@pytest.fixture
def assert_plain(world):
    """Check that a method's loss and gradients are those of plain cross-entropy, bit for bit."""

    def check(method, **changes):
        view, batch = world.client(**changes), world.batch()
        terms = method.loss(batch, view)
        assert list(terms) == ["cross_entropy"]
        plain = nn.functional.cross_entropy(batch.logits, batch.labels)
        assert torch.equal(terms["cross_entropy"], plain)
        weights = list(world.net.parameters())
        ours = torch.autograd.grad(terms["cross_entropy"], weights, retain_graph=True)
        theirs = torch.autograd.grad(plain, weights)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    return check


class Digits(LocalFederation):
    """Three clients with digits."""

    def __init__(self, method, hidden=8, of=2, optimizer="FedAvg", **options):
        train = {
            "client_num_in_total": 3,
            "client_num_per_round": of,
            "comm_round": 2,
            "federated_optimizer": optimizer,
        }
        overrides = [f"train_args.{key}={value}" for key, value in train.items()]
        overrides += [f"method_args.{key}={value}" for key, value in {"method": method, **options}.items()]
        super().__init__(SKEWED, f"model_args.hidden=[{hidden}]", *overrides)

    def turn(self, client):
        """A client's view before training, and its first batch."""
        turn = Turn(self.trainer, client, state=self.states.get(client), shared=self.server.shared)
        load(self.trainer.model, self.server.weights)
        inputs, labels = next(turn.batches()[0])
        return turn.view, Batch(inputs, *self.trainer.forward(self.trainer.model, inputs), labels)

    def play(self, clients, asked=None):
        """One round of these clients, of whom more may have been ``asked``; returns the results by client."""
        results = {client: self.fit(client) for client in clients}
        for client, result in results.items():
            self.server.check(client, self.round, result)
        asked = asked or clients
        sizes = [self.made.sizes[k] for k in asked]
        self.server.run_round(asked, sizes, iter(results.items()), round=self.round)
        self.round += 1
        return results


@pytest.fixture
def digits():
    return Digits
