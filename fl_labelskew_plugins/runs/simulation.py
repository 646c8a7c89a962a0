"""A federation in one process."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.server import Hooks
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.runs.pace import Pace
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Exchange, Rounds
from fl_labelskew_plugins.tensors import State


class Simulation(Exchange):
    """All clients and the server in this process; iterate to run the rounds, see :meth:`.Rounds.lines`."""

    rounds_type: type[Rounds] = Rounds

    def __init__(
        self, record: Record, *, take: Callable[..., LocalResult] | None = None, hooks: Hooks | None = None
    ) -> None:
        self.record, self.session = record, record.session
        self.take = take or partial(fit, record.session.trainer)
        self.rounds = self.rounds_type(record, hooks=hooks)
        self.server = self.rounds.server

    def __iter__(self) -> Generator[dict[str, Any], None, None]:
        with Pace(self.record).kept():
            if not self.record.next_round:
                self.server.open(self.session.openings())
            yield from self.rounds.lines(self)

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Train the clients one after the other."""
        record, server, states = self.record, self.server, self.record.states
        for number, client in enumerate(clients, 1):
            record.progress.client(round, number, len(clients), self.session.trainer.names.get(client, ""))
            result = self.train_client(
                client,
                round,
                states.get(client),
                shared=server.shared,
                times_selected=states.select(client),
                personalised=record.tests_own_models(round),
                observer=None if record.watch is None else record.watch.observer(round),
            )
            if self.session.sums is not None:
                result = self.session.sums.encode_result(client, round, server.weights, result)
            server.check(client, round, result)
            states.put(client, round, result.state)
            yield client, result
            del result  # free its memory before the next client trains

    def train_client(self, client: int, round: int, state: State, **turn: Any) -> LocalResult:
        """Train a client from the server's model."""
        return self.take(client, round, self.server.weights, state=state, **turn)
