"""The reference run ``local``: one model per client."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import OWN
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.tensors import State, joined


class _ConstantServer(Server):
    def advance(self, *_: Any) -> None:
        """Keep the model."""


class _LocalRounds(Rounds):
    server_type = _ConstantServer

    def evaluate(self, observed: Tensor | None) -> dict[str, Any]:
        """Means over the clients' models on the global test set, and each model's measures on its own test split."""
        session, everything, own = self.session, [], []
        total = torch.zeros(session.federation.num_classes, session.federation.num_classes, dtype=torch.int64)
        for client in range(session.federation.num_clients):
            model = session.own_model(self.record.states.get(client, latest=True))
            held = None if session.counts is None else session.counts[client] > 0
            measures, matrix, predicted, labels = self.measure(model or self.server.weights, held)
            total += matrix
            everything.append(measures)
            if self._per_client:
                own.append(self.one_client(client, predicted, labels))
        self.record.confusion = total
        line = {key: _mean([measures[key] for measures in everything]) for key in everything[0]}
        return line | (self.of_clients(own) if self._per_client else {})


class LocalTraining(Simulation):
    """Clients that train their own models."""

    rounds_type = _LocalRounds

    def train_client(self, client: int, round: int, state: State, **turn: Any) -> LocalResult:
        """Train a client from its own model."""
        weights = self.session.own_model(state) or self.server.weights
        result = self.take(client, round, weights, state={}, **turn)
        return replace(result, state=joined(**{OWN: result.upload}))


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [_mean(column) for column in zip(*values, strict=True)]
    known = [value for value in values if value is not None]
    return added(known) / len(known) if known else None
