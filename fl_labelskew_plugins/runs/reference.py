"""The reference run ``local``: one model per client; measures are means over the clients' models."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import OWN
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.tensors import State, joined


class LocalTraining(Simulation):
    """Clients that train their own models."""

    def __init__(self, record: Record) -> None:
        super().__init__(record, server=_Keeping, rounds=_OfClients)

    def train_client(self, client: int, round: int, state: State, **turn: Any) -> LocalResult:
        """Train a client from its own model."""
        weights = self.session.own_model(state) or self.server.weights
        result = self.take(client, round, weights, state={}, **turn)
        return replace(result, state=joined(**{OWN: result.upload}))


class _Keeping(Server):
    def advance(self, *_: Any) -> None:
        """Keep the model."""


class _OfClients(Rounds):
    def evaluate(self, observed: Tensor | None) -> dict[str, Any]:
        """Test each client's model on the global test set and its own test split."""
        session, everything, own = self.session, [], []
        total = torch.zeros(session.federation.num_classes, session.federation.num_classes, dtype=torch.int64)
        for client in range(session.federation.num_clients):
            model = session.own_model(self.record.states.get(client, latest=True))
            logits, labels = self._predict(model or self.server.weights)
            predicted = logits.argmax(1)
            matrix = metrics.confusion(predicted, labels, session.federation.num_classes).cpu()
            total += matrix
            held = None if session.counts is None else (session.counts[client] > 0).cpu()
            everything.append({**metrics.measures(matrix, held), "loss": float(cross_entropy(logits, labels))})
            if self._per_client:
                own.append(self.one_client(client, predicted, labels))
        self.record.confusion = total
        line = {key: _mean([measures[key] for measures in everything]) for key in everything[0]}
        return line | (self.of_clients(own) if self._per_client else {})


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [_mean(column) for column in zip(*values, strict=True)]
    known = [value for value in values if value is not None]
    return added(known) / len(known) if known else None
