"""Single-process rounds inside FedML, the host."""

from typing import Any

from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation


class SingleProcess(FedAvgAPI):  # type: ignore[misc]  # the host is untyped
    """The host's federation with our trainer, aggregator and rounds; ``host``: a :class:`.host.framework.FedML`."""

    def __init__(self, host: Any, record: Record) -> None:
        local = record.session.trainer
        super().__init__(host.args, local.device, [None] * 8, local.model)
        self.model_trainer, self.aggregator = host.trainer(local), host.hooks(local.model)
        self.rounds = Simulation(record, take=self.model_trainer.take, hooks=self.aggregator)

    def _setup_clients(self, *parts: Any) -> None:
        """Do nothing, as the simulation has its own clients."""

    def train(self) -> None:
        """Run the remaining rounds."""
        for _ in self.rounds:
            pass
