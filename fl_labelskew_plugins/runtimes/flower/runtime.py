"""Runs on Flower (``backend: Flower``): every client is a SuperNode."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fl_labelskew_registry import RunError, mistake

from fl_labelskew_plugins.engine.threads import chosen_by_user
from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.conflicts import quorum
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.session import Session, build
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.runtime import CrossSilo
from fl_labelskew_plugins.runtimes.silo.server import SiloServer, TrainingExchanges
from fl_labelskew_plugins.runtimes.spool import Spool

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.app import Message as FlowerMessage
    from flwr.serverapp import Grid

GRID: ContextVar["Grid"] = ContextVar("grid")
"""Flower's grid, in a ServerApp; without one, a run starts Flower's simulation engine."""
END_S = 60.0  # to wait for the end of the simulation engine


class Flower(CrossSilo):
    """A server with Flower's nodes as silos."""

    roles = ()

    def __init__(self, recipe: Recipe, options: RunOptions, folder: RunFolder, show: Progress) -> None:
        self._simulated = not recipe.common.across_silos
        super().__init__(as_one_process(recipe), options, folder, show)
        self._engine = contextlib.ExitStack()

    def delegated(self) -> bool:
        """Always False: this process is the server."""
        self._check_nodes()
        return False

    def preview(self) -> Session:
        """The session without nodes."""
        self._check_nodes()
        if self._simulated:
            return build(self.recipe)
        return self._offline_session([0] * self.recipe.train.client_num_in_total)

    def _check_nodes(self) -> None:
        if not self._simulated and GRID.get(None) is None:
            what = "labelskew run starts no SuperNodes for silos that hold their own data"
            use = "labelskew new flower-app DIR --recipe RECIPE, and flwr run DIR"
            raise mistake("comm_args.backend: Flower with training_type: cross_silo", what, use)

    def session(self) -> Session:
        """The server's session; waits for the nodes."""
        from fl_labelskew_plugins.runtimes.flower.bindings import Bindings
        from fl_labelskew_plugins.runtimes.flower.grid import GridTransport

        checkpoint = self.folder.load_checkpoint(tensors=False) if self.options.resume else None
        comm, silos = self.recipe.comm, self.recipe.train.client_num_in_total
        self.folder.hold()
        bindings = Bindings(self.folder.path)
        grid, check = GRID.get(None), _no_check
        if grid is None:
            for end in self.folder.path.glob("silos/*/*/summary.json"):
                end.unlink()  # --from-round repeats rounds of a finished run, which silos of other owners refuse
            self.show.note(f"starting Flower's simulation engine (Ray) with {silos} nodes on this machine")
            grid, check = self._engine.enter_context(simulation(self.recipe, self.folder.path))
        seen = status.Silos(self._names)
        self._audit = Audit(observe=seen.hear, digests=comm.audit_digests)
        transport = GridTransport(
            grid,
            silos=silos,
            audit=self._audit,
            spool=Spool(comm.upload_memory_mb * 2**20, self.folder.path),
            bindings=bindings,
            seconds=comm.round_deadline_s,
            simulated=self._simulated,
            check=check,
        )
        self._transport = cast(ServerTransport, transport)  # SiloServer uses what both have
        self.folder.set_status(state=status.WAITING, address=transport.address, quorum=quorum(self.recipe))
        self._audit.open(self.folder.path, "server")
        self._server = SiloServer(
            self.host(self.recipe, self.folder.path),
            self._transport,
            self.recipe,
            checkpoint,
            self.show,
            self.options.resume_command(self.folder.path),
            self.folder,
            seen,
            TrainingExchanges.single,
        )
        if not self._simulated:
            return self._server.gather()
        self._server.wait_for_silos()
        session = build(self.recipe)
        return replace(session, trainer=replace(session.trainer, indices={}))  # the clients are elsewhere

    def close(self) -> None:
        """End the simulation engine, if any."""
        super().close()
        self._engine.close()


def as_one_process(recipe: Recipe) -> Recipe:
    """The recipe; in a simulation, all clients must answer and report their measures, as in one process."""
    if recipe.common.across_silos:
        return recipe
    changes = {"send_measures": True, "max_update_ratio": None, "min_clients": recipe.train.clients_per_round}
    return recipe.model_copy(update={"comm": recipe.comm.model_copy(update=changes)})


def _no_check() -> None:
    pass


@contextlib.contextmanager
def simulation(recipe: Recipe, folder: Path) -> Iterator[tuple["Grid", Callable[[], None]]]:
    """Run Flower's simulation engine (Ray, only on this machine) in another thread.

    Yield its grid, and a function that raises RunError if the engine has failed.
    """
    for name in ("flwr", "ray"):  # errors are in replies and exceptions, too
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from fl_labelskew_plugins.runtimes.flower import node

    grids: queue.Queue[Grid | None] = queue.Queue()
    failures: list[BaseException] = []
    over = threading.Event()
    server, client = ServerApp(), ClientApp()
    threads = recipe.device.threads or chosen_by_user()  # Ray sets OMP_NUM_THREADS for the nodes
    recipe = recipe.model_copy(update={"device": recipe.device.model_copy(update={"threads": threads})})

    @server.main()
    def serve(grid: "Grid", context: "Context") -> None:
        grids.put(grid)
        over.wait()

    @client.query()
    def answer(message: "FlowerMessage", context: "Context") -> "FlowerMessage":
        rank = int(context.node_config["partition-id"]) + 1
        return node.answer(recipe, message, context, rank=rank, folder=folder / "silos" / f"silo-{rank}")

    def simulate() -> None:
        local = {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
        quiet = {"log_to_driver": False, "logging_level": "CRITICAL"}
        config = {"init_args": local | quiet, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        try:
            run_simulation(server, client, recipe.train.client_num_in_total, backend_config=config)
        except BaseException as error:
            failures.append(error)
        finally:
            grids.put(None)

    def check() -> None:
        if not thread.is_alive() or failures:
            cause = next((error.__cause__ or error for error in failures), "it has ended")
            raise RunError(f"Flower's simulation engine failed: {clean(repr(cause), 300)}")

    thread = threading.Thread(target=simulate, name="flower", daemon=True)
    thread.start()
    try:
        grid = grids.get()
        if grid is None:
            check()
        yield cast("Grid", grid), check
    finally:
        over.set()
        thread.join(END_S)
