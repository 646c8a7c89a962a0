"""Small federations in float64 compared with naive loops from the papers: partial rounds, decay, class rows."""

import math

import pytest
import rounds
import torch
from fl_labelskew_registry import Federation
from torch import nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.local import LocalSettings, LocalTrainer, snapshot
from fl_labelskew_plugins.engine.samples import Samples
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.methods.fedavg import FedAvg
from fl_labelskew_plugins.models.base import FeatureNet
from fl_labelskew_plugins.optimizers.feddyn import FedDyn
from fl_labelskew_plugins.optimizers.fednova import FedNova
from fl_labelskew_plugins.optimizers.fedopt import FedOpt
from fl_labelskew_plugins.optimizers.mime import Mime
from fl_labelskew_plugins.optimizers.scaffold import SCAFFOLD

CLASSES, RATE, BATCH = 3, 0.2, 3
SIZES = (7, 4, 5)
LABELS = torch.tensor([0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 2, 2, 0, 2, 2])
ROUNDS = [(0, 1, 2), (0, 1), (2,), (1, 2), (0, 1, 2)]  # class 2 is missing in the second round, class 1 in the third


class Spread(FedAvg):
    """Cross-entropy plus ``spread`` times the variance of a batch's features: not additive over samples."""

    def __init__(self, spread):
        super().__init__()
        self.spread = spread

    def loss(self, batch, client):
        logits = client.model.classifier(batch.features)  # those of the batch are float32
        variance = batch.features.var(0, unbiased=False).sum()
        return {"all": nn.functional.cross_entropy(logits, batch.labels) + self.spread * variance}


class Three:
    """Three clients; ``spread``: weight of the term that is not additive, ``momentum``: the local one."""

    def __init__(self, *, decay=0.0, spread=0.0, by_class=False, momentum=0.0):
        self.decay, self.spread, self.by_class, self.momentum = decay, spread, by_class, momentum
        torch.manual_seed(0)
        self.x = torch.randn(sum(SIZES), 2, dtype=torch.float64)
        self.net = FeatureNet(nn.Sequential(nn.Linear(2, 4), nn.Tanh()), 4, CLASSES).double()
        self.start = snapshot(self.net)
        self.index = dict(enumerate(torch.arange(sum(SIZES)).split(SIZES)))
        self.counts = torch.stack([LABELS[index].bincount(minlength=CLASSES) for index in self.index.values()])

    # ours

    def play(self, optimizer):
        samples = Samples(self.x, LABELS, (0.0,), (1.0,))
        federation = Federation(len(SIZES), 2, len(ROUNDS), 2, CLASSES, 4, sum(SIZES), min(SIZES), 0)
        method = Spread(self.spread)
        local = {"momentum": self.momentum, "weight_decay": self.decay, "channels_last": False}
        settings = LocalSettings(epochs=2, batch_size=BATCH, learning_rate=RATE, **local)
        trainer = LocalTrainer(
            self.net, method, settings, federation, samples, self.index, samples, self.index, optimizer=optimizer
        )
        server = Server(
            self.net,
            method=method,
            federation=federation,
            weights=self.start,
            optimizer=optimizer,
            proxy_smoothing=0.0 if self.by_class else None,
        )
        states = {}
        for number, clients in enumerate(ROUNDS):
            # everybody was asked, and some did not come
            rounds.play(trainer, server, states, number, clients, SIZES, asked=range(3), counts=self.counts)
        return server.weights

    # by loops

    def batches(self, number, client):
        generator, index = seeds.torch_generator(0, "batches", number, client), self.index[client]
        for _ in range(2):
            order = index[torch.randperm(len(index), generator=generator)]
            for at in range(0, len(index), BATCH):
                yield self.x[order[at : at + BATCH]], LABELS[order[at : at + BATCH]]

    def gradient(self, weights, x, y):
        """Of a batch's objective, weight decay included."""
        w = {name: value.clone().requires_grad_() for name, value in weights.items()}
        features = (x @ w["body.0.weight"].T + w["body.0.bias"]).tanh()
        logits = features @ w["classifier.weight"].T + w["classifier.bias"]
        loss = sum(z.logsumexp(0) - z[label] for z, label in zip(logits, y, strict=True)) / len(y)
        loss = loss + self.spread * ((features - features.mean(0)) ** 2).mean(0).sum()
        loss = loss + self.decay / 2 * sum((value**2).sum() for value in w.values())
        return dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))

    def whole_gradient(self, weights, number, client):
        """Mean over the first epoch's batches, by their samples."""
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        batches = self.batches(number, client)
        for _ in range(math.ceil(SIZES[client] / BATCH)):
            x, y = next(batches)
            for name, value in self.gradient(weights, x, y).items():
                total[name] += value * len(y) / SIZES[client]
        return total

    def train(self, weights, number, client, direction):
        """Local SGD along ``direction(weights, x, y)``; the new weights and the number of steps."""
        now, buffer, steps = {name: value.clone() for name, value in weights.items()}, {}, 0
        for x, y in self.batches(number, client):
            for name, value in direction(now, x, y).items():
                buffer[name] = self.momentum * buffer[name] + value if name in buffer else value
                now[name] = now[name] - RATE * buffer[name]
            steps += 1
        return now, steps

    def mean(self, old, sent, shares=None):
        """Mean of ``sent`` over clients, with equal weights or ``shares``, and by class in the classifier's rows."""
        shares = dict.fromkeys(sent, 1 / len(sent)) if shares is None else shares
        new = {name: sum(shares[k] * sent[k][name] for k in sent) for name in old}
        if self.by_class:
            for name in ("classifier.weight", "classifier.bias"):
                for c in range(CLASSES):
                    held = sum(int(self.counts[k, c]) for k in sent)
                    rows = [int(self.counts[k, c]) / held * sent[k][name][c] for k in sent] if held else [old[name][c]]
                    new[name][c] = sum(rows)
        return new


def zeros(weights):
    return {name: torch.zeros_like(value) for name, value in weights.items()}


def mapped(function, *tensors):
    return {name: function(*(part[name] for part in tensors)) for name in tensors[0]}


def same(got, expected):
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)


BY_CLASS = pytest.mark.parametrize("by_class", [False, True], ids=["model", "class"])


@BY_CLASS
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_scaffold(decay, by_class):
    """Algorithm 1; weight decay is part of the objective."""
    three = Three(decay=decay, by_class=by_class, spread=0.3)
    w, c, kept = three.start, zeros(three.start), {}
    for number, clients in enumerate(ROUNDS):
        sent, changes = {}, {}
        for k in clients:
            last = kept.get(k, zeros(w))

            def direction(now, x, y, last=last, c=c):
                return mapped(lambda g, last, all: g - last + all, three.gradient(now, x, y), last, c)

            sent[k], steps = three.train(w, number, k, direction)
            kept[k] = mapped(lambda a, all, x, y, n=steps: a - all + (x - y) / (n * RATE), last, c, w, sent[k])
            changes[k] = mapped(torch.sub, kept[k], last)
        w = mapped(lambda old, mean: old + 0.7 * (mean - old), w, three.mean(w, sent))
        c = mapped(lambda old, *values: old + sum(values) / 3, c, *changes.values())
    same(three.play(SCAFFOLD(SCAFFOLD.Params(server_lr=0.7))), w)


@BY_CLASS
def test_feddyn(by_class):
    """Algorithm 1: ``h`` sums all clients' changes, for any weights of the classifier's rows in the mean."""
    three, alpha = Three(decay=0.01, by_class=by_class), 0.5
    w, h, kept = three.start, zeros(three.start), {}
    for number, clients in enumerate(ROUNDS):
        sent = {}
        for k in clients:
            last = kept.get(k, zeros(w))

            def direction(now, x, y, last=last, w=w):
                return mapped(lambda g, a, t, s: g - a + alpha * (t - s), three.gradient(now, x, y), last, now, w)

            sent[k], _ = three.train(w, number, k, direction)
            kept[k] = mapped(lambda a, t, s: a - alpha * (t - s), last, sent[k], w)
            h = mapped(lambda a, t, s: a - alpha / 3 * (t - s), h, sent[k], w)
        w = mapped(lambda mean, a: mean - a / alpha, three.mean(w, sent), h)
    same(three.play(FedDyn(FedDyn.Params(feddyn_alpha=alpha))), w)


@BY_CLASS
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_mime(decay, by_class):
    """Algorithm 1 from ``s = 0`` on, with ``c`` of the round before; weight decay is part of the objective."""
    three, beta = Three(decay=decay, spread=0.3, by_class=by_class), 0.5
    w, s, c = three.start, zeros(three.start), None
    for number, clients in enumerate(ROUNDS):
        sent, gradients = {}, {}
        for k in clients:

            def direction(now, x, y, w=w, s=s, c=c):
                g = three.gradient(now, x, y)
                if c is not None:
                    g = mapped(lambda a, b, d: a - b + d, g, three.gradient(w, x, y), c)
                return mapped(lambda a, b: (1 - beta) * a + beta * b, g, s)

            sent[k], _ = three.train(w, number, k, direction)
            gradients[k] = three.whole_gradient(w, number, k)
        c = mapped(lambda *values: sum(values) / len(values), *gradients.values())
        s = mapped(lambda a, b: (1 - beta) * a + beta * b, c, s)
        w = three.mean(w, sent)
    same(three.play(Mime(Mime.Params(server_momentum=beta))), w)


@BY_CLASS
def test_fednova(by_class):
    """Equation 6, with one ``tau_eff`` for all rows."""
    three = Three(decay=0.01, by_class=by_class, momentum=0.5)
    w = three.start
    for number, clients in enumerate(ROUNDS):
        shares = {k: SIZES[k] / sum(SIZES[j] for j in clients) for k in clients}
        changes, tau = {}, 0.0
        for k in clients:
            new, steps = three.train(w, number, k, three.gradient)
            a = sum((1 - 0.5 ** (steps - j)) / 0.5 for j in range(steps))
            changes[k] = mapped(lambda y, x, a=a: (y - x) / a, new, w)
            tau += shares[k] * a
        w = mapped(lambda x, d, tau=tau: x + tau * d, w, three.mean(zeros(w), changes, shares))
    same(three.play(FedNova()), w)


@BY_CLASS
def test_fedopt(by_class):
    three = Three(by_class=by_class)
    w, momentum = three.start, zeros(three.start)
    for number, clients in enumerate(ROUNDS):
        shares = {k: SIZES[k] / sum(SIZES[j] for j in clients) for k in clients}
        sent = {k: three.train(w, number, k, three.gradient)[0] for k in clients}
        momentum = mapped(lambda m, mean, x: 0.5 * m + mean - x, momentum, three.mean(w, sent, shares), w)
        w = mapped(lambda x, m: x + 0.7 * m, w, momentum)
    same(three.play(FedOpt(FedOpt.Params(server_momentum=0.5, server_lr=0.7))), w)
