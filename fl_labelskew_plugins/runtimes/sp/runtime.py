"""Single-process simulation (``backend: sp``)."""

from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.reference import LocalTraining
from fl_labelskew_plugins.runs.session import Session
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.runtimes.base import Runtime


class SP(Runtime):
    """All clients and the server run in this process."""

    def run(self, session: Session, record: Record) -> None:
        """Run the remaining rounds."""
        host = self.host(session.recipe, record.folder.path)
        local = session.recipe.train.reference == "local"
        if session.recipe.hosted and not local:
            from fl_labelskew_plugins.runtimes.sp.hosted import SingleProcess

            SingleProcess(host, record).train()
            return
        for _ in LocalTraining(record) if local else Simulation(record):
            pass
