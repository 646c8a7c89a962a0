"""Single-process simulation (``backend: sp``): the host's FedAvgAPI around our rounds, or the host's own optimisers."""

from __future__ import annotations

from typing import Any

from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

from fl_labelskew_plugins.host import start
from fl_labelskew_plugins.host.aggregator import LabelSkewAggregator
from fl_labelskew_plugins.host.trainer import LabelSkewTrainer
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, host_switches
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.runtimes.base import Runtime
from fl_labelskew_plugins.runtimes.sp.hosted import HostedFederation


class SP(Runtime):
    """All clients and the server in this process, one after the other."""

    def run(self, session: Session, record: Record) -> None:
        """Run a session's rounds from where the record stands."""
        args = start.start(session.recipe, record.folder.path / "fedml.yaml")
        source = compatibility.source(session.recipe, session.trainer.model)
        if source != "own":
            HostedFederation(args, record, corrected=source == "corrected").train()
            return
        SingleProcess(args, record).train()


class SingleProcess(FedAvgAPI):  # type: ignore[misc]  # the host is untyped
    """The host's single-process federation, with our trainer, aggregator and rounds in place of its own."""

    def __init__(self, args: Any, record: Record) -> None:
        local, on = record.session.trainer, bool(host_switches(record.session.recipe))
        super().__init__(args, local.device, [None] * 8, local.model)
        self.model_trainer = LabelSkewTrainer(local, args, hooks=on)
        self.aggregator = LabelSkewAggregator(local.model, args) if on else None
        self.rounds = Simulation(record, take=self.model_trainer.take, hooks=self.aggregator)

    def _setup_clients(self, *parts: Any) -> None:
        """Clients are the simulation's, with data of their own."""

    def train(self) -> None:
        """All rounds that are left."""
        for _ in self.rounds:
            pass
