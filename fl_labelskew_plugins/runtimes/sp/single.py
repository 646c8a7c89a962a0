"""The host's FedAvgAPI around our rounds, or the host's own optimisers."""

from __future__ import annotations

from typing import Any

from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.runtimes.sp.hosted import HostedFederation


def train(host: Any, record: Record) -> None:
    """Run a record's rounds inside the host, a :class:`.host.framework.FedML`."""
    session = record.session
    if compatibility.source(session.recipe, session.trainer.model) == "corrected":
        HostedFederation(host.args, record).train()
    else:
        SingleProcess(host, record).train()


class SingleProcess(FedAvgAPI):  # type: ignore[misc]  # the host is untyped
    """The host's single-process federation, with our trainer, aggregator and rounds in place of its own."""

    def __init__(self, host: Any, record: Record) -> None:
        local = record.session.trainer
        super().__init__(host.args, local.device, [None] * 8, local.model)
        self.model_trainer, self.aggregator = host.trainer(local), host.hooks(local.model)
        self.rounds = Simulation(record, take=self.model_trainer.take, hooks=self.aggregator)

    def _setup_clients(self, *parts: Any) -> None:
        """Clients are the simulation's, with data of their own."""

    def train(self) -> None:
        """All rounds that are left."""
        for _ in self.rounds:
            pass
