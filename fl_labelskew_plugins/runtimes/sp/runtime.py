"""Single-process simulation (``backend: sp``): own wiring of the host's FedAvgAPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedml.simulation.sp.fedavg.client import Client
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.host import start
from fl_labelskew_plugins.host.trainer import LabelSkewTrainer, Turn, host_dataset
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import Session, host_switches
from fl_labelskew_plugins.runtimes.base import Runtime
from fl_labelskew_plugins.runtimes.sp.hosted import HostedFederation
from fl_labelskew_plugins.tensors import Weights


class SP(Runtime):
    """All clients and the server in this process, one after the other."""

    def run(self, session: Session, record: Record) -> None:
        """Run a session's rounds from where the record stands."""
        args = start.start(session.recipe, record.folder.path / "fedml.yaml")
        source = compatibility.source(session.recipe, session.trainer.model)
        if source != "own":
            HostedFederation(args, session, record, corrected=source == "corrected").train()
            return
        trainer = LabelSkewTrainer(session.trainer, args, hooks=bool(host_switches(session.recipe)))
        SingleProcess(args, session, record, trainer).train()


class SlotClient(Client):  # type: ignore[misc]  # the host is untyped
    """The host's client slot, with the trainer hooks that the host's own loop leaves out."""

    def train(self, w_global: Weights) -> Weights:
        """Load the global weights, run the hooks and the local training, return the upload."""
        trainer: LabelSkewTrainer = self.model_trainer
        assert trainer.turn is not None  # the federation names the client first
        return trainer.take(trainer.turn, w_global).upload


class SingleProcess(FedAvgAPI):  # type: ignore[misc]
    """The host's single-process federation with our trainer, aggregator, sampling, evaluation and record.

    Args:
        args: the host's arguments.
        session: what to run.
        record: where the run stands, and where results go.
        trainer: the trainer that plays every client.
    """

    def __init__(self, args: Any, session: Session, record: Record, trainer: LabelSkewTrainer) -> None:
        self.session, self.record, self.trainer = session, record, trainer
        local = session.trainer
        super().__init__(args, local.device, host_dataset(local, session.recipe.train.batch_size), local.model)
        self.model_trainer = trainer
        self.rounds = Rounds(args, session, record)
        self.aggregator = self.rounds.server

    def _setup_clients(self, num: Any, train: Any, test: Any, model_trainer: Any) -> None:
        """One slot; every client of a round passes through it."""
        self.client_list = [SlotClient(0, train[0], test[0], num[0], self.args, self.device, self.trainer)]

    def _client_sampling(self, round_idx: int, client_num_in_total: int, client_num_per_round: int) -> list[int]:
        """Clients of a round, from the recipe's seed."""
        return self.rounds.sample(round_idx)

    def train(self) -> None:
        """All rounds that are left."""
        if self.record.checkpoint is None:
            self.aggregator.open(self.session.openings())
        self.rounds.run(self)

    def invite(self, round: int, clients: list[int]) -> list[int]:
        """Everybody is here."""
        return clients

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Train the clients one after the other."""
        record, server, slot = self.record, self.aggregator, self.client_list[0]
        personalised = record.personalised and record.tests(round)
        for number, client in enumerate(clients, 1):
            record.progress.client(round, number, len(clients))
            states = record.states
            turn = Turn(client, round, server.shared, states.get(client), states.select(client), personalised)
            self.trainer.turn = turn
            slot.update_local_dataset(
                client,
                self.train_data_local_dict[client],
                self.test_data_local_dict[client],
                self.train_data_local_num_dict[client],
            )
            slot.train(server.weights)
            result = turn.result
            assert result is not None  # the trainer has set it
            server.check(client, round, result)
            states.put(client, round, result.state)
            yield client, result
            del result, turn  # nothing of this client outlives its turn
