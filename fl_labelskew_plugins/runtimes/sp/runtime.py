"""Single-process simulation (``backend: sp``): by our own loop inside the host's hooks, or by the host's own code."""

from __future__ import annotations

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
        on = bool(host_switches(session.recipe))
        trainer = LabelSkewTrainer(session.trainer, args, hooks=on)
        hooks = LabelSkewAggregator(session.trainer.model, args) if on else None
        for _ in Simulation(record, take=trainer.take, hooks=hooks):
            pass
