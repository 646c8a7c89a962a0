"""Two clients with quadratics of one number, through the real local loop and the real server."""

import pytest
import rounds
import torch
from fl_labelskew_registry import Federation
from torch import nn

from fl_labelskew_plugins.engine.local import LocalSettings, LocalTrainer, snapshot
from fl_labelskew_plugins.engine.samples import Samples
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.methods.fedavg import FedAvg


class Point(nn.Module):
    """A network that is one number ``w``."""

    def __init__(self, at):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([at]))
        self.classifier = nn.Linear(1, 2).requires_grad_(False)

    def features(self, x):
        return self.w.expand(len(x), 1)

    def forward(self, x):
        return self.classifier(self.features(x))


class Quadratic(FedAvg):
    """Client k minimises ``a_k/2 (w - b_k)^2``, for any samples; twice that in the stage ``double``."""

    def __init__(self, a, b, stages=None):
        super().__init__()
        self.a, self.b, self._stages = a, b, stages

    def stages(self, epochs):
        return self._stages or super().stages(epochs)

    def loss(self, batch, client):
        factor = 2 if client.stage == "double" else 1
        return {"quadratic": factor * (self.a[client.id] / 2 * (client.model.w - self.b[client.id]).square()).sum()}


class World:
    """A federation of such clients.

    Args:
        a, b: each client's curvature and minimum.
        steps: local steps of each client; its samples are as many.
        at: where the server starts.
    """

    def __init__(self, optimizer, *, a=(1.0, 3.0), b=(0.0, 1.0), steps=(2, 2), at=1.0, stages=None, **settings):
        number, ends = sum(steps), torch.tensor(steps).cumsum(0).tolist()
        samples = Samples(torch.zeros(number, 1), torch.zeros(number, dtype=torch.long), (0.0,), (1.0,))
        indices = {k: torch.arange(end - n, end) for k, (n, end) in enumerate(zip(steps, ends, strict=True))}
        federation = Federation(len(steps), len(steps), 100, 1, 2, 1, number, min(steps), 0)
        local = LocalSettings(**{"batch_size": 1, "learning_rate": 0.1, "channels_last": False} | settings)
        method, model = Quadratic(a, b, stages), Point(at)
        self.trainer = LocalTrainer(
            model, method, local, federation, samples, indices, samples, indices, optimizer=optimizer
        )
        self.server = Server(model, method=method, federation=federation, weights=snapshot(model), optimizer=optimizer)
        self.sizes, self.states, self.round = steps, {}, 0

    def play(self, *clients):
        """One round with these clients, all by default; returns the server's number."""
        clients = clients or range(len(self.sizes))
        rounds.play(self.trainer, self.server, self.states, self.round, clients, self.sizes)
        self.round += 1
        return self.at

    @property
    def at(self):
        return float(self.server.weights["w"])

    def kept(self, client, name="optimizer/w"):
        return float(self.states[client][name])

    def shared(self, name="optimizer/w"):
        return float(self.server.shared[name])


@pytest.fixture
def world():
    return World
