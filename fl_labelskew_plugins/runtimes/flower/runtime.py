"""Runs on Flower (``backend: Flower``): every client is a SuperNode."""

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.recipe.conflicts import quorum
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, build
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.runtimes.silo.runtime import CrossSilo
from fl_labelskew_plugins.runtimes.silo.server import SiloServer, TrainingExchanges
from fl_labelskew_plugins.runtimes.spool import Spool

GRID: ContextVar[Any] = ContextVar("grid")
"""Flower's grid, in a ServerApp; without one, a run starts Flower's simulation engine."""


class Flower(CrossSilo):
    """A server whose silos are Flower's nodes."""

    roles = ()

    def __init__(self, recipe: Recipe, options: RunOptions, folder: RunFolder, show: Progress) -> None:
        if not recipe.common.across_silos:  # as in one process
            recipe = recipe.model_copy(update={"comm": recipe.comm.model_copy(update={"send_measures": True})})
        super().__init__(recipe, options, folder, show)

    def delegated(self) -> bool:
        """Always False: this process is the server."""
        return False

    def preview(self) -> Session:
        """The session without nodes."""
        return build(self.recipe)

    def session(self) -> Session:
        """The server's session; waits for the nodes."""
        from fl_labelskew_plugins.runtimes.flower.grid import GridTransport

        checkpoint = self.folder.load_checkpoint(tensors=False) if self.options.resume else None
        grid = GRID.get(None)
        if grid is None:
            self._engine = contextlib.ExitStack()
            grid = self._engine.enter_context(simulated(self.recipe, self.folder.path))
        seen = status.Silos(self._names)
        self._audit = Audit(observe=seen.hear, digests=self.recipe.comm.audit_digests)
        comm = self.recipe.comm
        spool = Spool(comm.upload_memory_mb * 2**20, self.folder.path)
        silos, seconds = self.recipe.train.client_num_in_total, comm.round_deadline_s
        transport = GridTransport(grid, silos=silos, audit=self._audit, spool=spool, seconds=seconds)
        self._transport: Any = transport
        self.folder.hold()
        self.folder.set_status(state=status.WAITING, address=transport.address, quorum=quorum(self.recipe))
        self._audit.open(self.folder.path, "server")
        host, resume = self.host(self.recipe, self.folder.path), self.options.resume_command(self.folder.path)
        exchanges = TrainingExchanges.single
        self._server = SiloServer(
            host, transport, self.recipe, checkpoint, self.show, resume, self.folder, seen, exchanges
        )
        if self.recipe.common.across_silos:
            return self._server.gather()
        self._server.meet()
        session = build(self.recipe)
        return replace(session, trainer=replace(session.trainer, indices={}))  # the clients are elsewhere

    def run(self, session: Session, record: Record) -> None:
        """Run the remaining rounds."""
        self._server.train(record)

    def close(self) -> None:
        """Stop the simulation engine, if any."""
        super().close()
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.close()


@contextlib.contextmanager
def simulated(recipe: Recipe, folder: Path) -> Iterator[Any]:
    """Run Flower's simulation engine (Ray, on this machine only) in another thread; yield its grid."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.app import Context
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fl_labelskew_plugins.runtimes.flower import node

    offered: queue.Queue[Any] = queue.Queue()
    over = threading.Event()
    server, client = ServerApp(), ClientApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        offered.put(grid)
        over.wait()

    @client.query()
    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        rank = int(context.node_config["partition-id"]) + 1
        return node.answer(recipe, message, context, rank=rank, folder=folder / "silos" / f"silo-{rank}")

    def simulate() -> None:
        try:
            config = {"init_args": {"include_dashboard": False, "_node_ip_address": "127.0.0.1"},
                      "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
            run_simulation(server, client, recipe.train.client_num_in_total, backend_config=config)
        except BaseException as error:
            offered.put(error)

    thread = threading.Thread(target=simulate, name="flower", daemon=True)
    thread.start()
    grid = offered.get()
    if isinstance(grid, BaseException):
        raise RunError(f"Flower's simulation engine did not start: {grid}")
    try:
        yield grid
    finally:
        over.set()
        thread.join(60)
