"""Single-process simulation (``backend: sp``): own wiring of the host's FedAvgAPI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from fedml.simulation.sp.fedavg.client import Client
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI
from fl_labelskew_registry import Contribution, Method
from torch import Tensor

from fl_labelskew_plugins import metrics, seeds
from fl_labelskew_plugins.aggregate import Weights, num_bytes
from fl_labelskew_plugins.aggregator import LabelSkewAggregator
from fl_labelskew_plugins.local import LocalResult, mean_loss
from fl_labelskew_plugins.record import Record
from fl_labelskew_plugins.runtimes import host
from fl_labelskew_plugins.session import Session, host_switches
from fl_labelskew_plugins.trainer import LabelSkewTrainer, Turn, host_dataset


def run(session: Session, record: Record) -> None:
    """Run a session's rounds in this process, from where the record stands.

    Raises:
        RunError: training diverged.
        KeyboardInterrupt: after the record has saved a checkpoint.
    """
    args = host.start(session.recipe, record.folder.path / "fedml.yaml")
    trainer = LabelSkewTrainer(session.trainer, args, hooks=bool(host_switches(session.recipe)))
    SingleProcess(args, session, record, trainer).train()


class SlotClient(Client):  # type: ignore[misc]  # the host is untyped
    """The host's client slot, with the trainer hooks that the host's own loop leaves out."""

    def train(self, w_global: Weights) -> Weights:
        """Load the global weights, run the hooks and the local training, return the upload."""
        trainer = self.model_trainer
        trainer.set_model_params(w_global)
        trainer.update_dataset(self.local_training_data, self.local_test_data, self.local_sample_number)
        trainer.on_before_local_training(self.local_training_data, self.device, self.args)
        trainer.train(self.local_training_data, self.device, self.args)
        trainer.on_after_local_training(self.local_training_data, self.device, self.args)
        upload: Weights = trainer.get_model_params()
        return upload


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
        train = session.recipe.train
        self.aggregator = LabelSkewAggregator(
            local.model,
            args,
            method=session.method,
            federation=session.federation,
            weights=session.start,
            hooks=trainer.hooks,
            proxy_smoothing=train.proxy_smoothing if train.proxy_aggregation == "class" else None,
        )
        self.counts = torch.stack([local.counts(k) for k in range(session.federation.num_clients)])

    def _setup_clients(self, num: Any, train: Any, test: Any, model_trainer: Any) -> None:
        """One slot; every client of a round passes through it."""
        self.client_list = [SlotClient(0, train[0], test[0], num[0], self.args, self.device, self.trainer)]

    def _client_sampling(self, round_idx: int, client_num_in_total: int, client_num_per_round: int) -> list[int]:
        """Clients of a round, ascending, from the recipe's seed and the round alone."""
        if client_num_per_round == client_num_in_total:
            return list(range(client_num_in_total))
        rng = seeds.numpy_generator(self.session.federation.seed, "sampling", round_idx)
        return sorted(rng.choice(client_num_in_total, client_num_per_round, replace=False).tolist())

    def train(self) -> None:
        """All rounds that are left."""
        federation, record, server = self.session.federation, self.record, self.aggregator
        server.weights, server.shared = record.weights, record.shared
        if record.checkpoint is None:
            self._open()
        try:
            for round in range(record.next_round, federation.rounds):
                begun = time.perf_counter()
                self.args.round_idx = round
                clients = self._client_sampling(round, federation.num_clients, federation.clients_per_round)
                line = self._round(round, clients)
                record.round(line, server.weights, server.shared, seconds=time.perf_counter() - begun)
        except BaseException:
            record.abandon()
            raise
        record.finish()

    def _open(self) -> None:
        """The opening exchange, for methods that have one."""
        method, local = self.session.method, self.session.trainer
        if type(method).opening is Method.opening:
            return
        views = [local.view(k) for k in range(self.session.federation.num_clients)]
        self.aggregator.open([Contribution(v.id, v.counts, method.opening(v)) for v in views])

    def _round(self, round: int, clients: Sequence[int]) -> dict[str, Any]:
        record, server, slot = self.record, self.aggregator, self.client_list[0]
        testing = record.tests(round)
        personalised: list[float] = []
        terms: dict[str, float] = {}
        sent = 0

        def train(client: int) -> tuple[LocalResult, Weights]:
            nonlocal sent
            record.progress.client(round, clients.index(client) + 1, len(clients))
            states = record.states
            turn = Turn(
                client, round, server.shared, states.get(client), states.select(client), testing and record.personalised
            )
            self.trainer.turn = turn
            slot.update_local_dataset(
                client,
                self.train_data_local_dict[client],
                self.test_data_local_dict[client],
                self.train_data_local_num_dict[client],
            )
            upload = slot.train(server.weights)
            result = turn.result
            assert result is not None  # trainer.train has set it
            states.put(client, round, result.state)
            sent += num_bytes(upload.values()) + num_bytes(result.contributions.values())
            for name, value in result.loss_terms.items():
                terms[name] = terms.get(name, 0.0) + value / len(clients)
            if result.personalised is not None:
                personalised.append(result.personalised[0] / result.personalised[1])
            return result, upload

        down = (num_bytes(server.weights.values()) + num_bytes(server.shared.values())) * len(clients)
        server.run_round(round, clients, self.counts[clients], train)
        line: dict[str, Any] = {"round": round, "clients": list(clients), "loss_terms": terms}
        if testing:
            line |= self.evaluate(self.counts[clients].sum(0) > 0)
            line["personalised_accuracy"] = sum(personalised) / len(personalised) if personalised else None
        return line | {"bytes_up": sent, "bytes_down": down}

    def evaluate(self, observed: Tensor) -> dict[str, Any]:
        """Measures of the global model on the global test set."""
        logits, labels = self.session.trainer.predict(weights=self.aggregator.weights)
        matrix = metrics.confusion(logits.argmax(1), labels, self.session.federation.num_classes)
        return {**metrics.measures(matrix.cpu(), observed.cpu()), "loss": mean_loss(logits, labels)}
