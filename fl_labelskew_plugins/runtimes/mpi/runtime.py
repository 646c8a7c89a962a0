"""MPI simulation (``backend: MPI``): rank 0 is the server, and the other ranks train the clients that it assigns.

The server assigns one client at a time, the largest first, so that no worker is idle. It sums uploads by ascending
client, so that the results equal those of one process.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from fl_labelskew_registry import LabelSkewError, RunError
from torch import Tensor

from fl_labelskew_plugins.engine import devices
from fl_labelskew_plugins.engine.local import TEST_BATCH, LocalResult
from fl_labelskew_plugins.engine.threads import warn_if_too_many
from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Exchange, Rounds
from fl_labelskew_plugins.runs.session import Session, build
from fl_labelskew_plugins.runtimes.base import Runtime
from fl_labelskew_plugins.runtimes.mpi import launch
from fl_labelskew_plugins.runtimes.mpi.nodes import Nodes, greet
from fl_labelskew_plugins.runtimes.mpi.transport import MPITransport
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Manager, Message, upload, upload_meta, upload_tensors
from fl_labelskew_plugins.tensors import Weights, group, joined, num_bytes


class MPI(Runtime):
    """A simulation with the processes of ``mpirun``."""

    def delegated(self) -> bool:
        """Start ``mpirun``, or run a worker; False for the server."""
        if (place := mpi_rank()) is None:
            workers = devices.workers(self.recipe, devices.gpus(self.recipe, warn=True))
            warn_if_too_many(workers, self.recipe.device.threads)
            devices.gpu_slots(self.recipe, workers)  # reports wrong GPU settings before mpirun starts
            options, path = self.options, self.folder.path
            command = options.command(self.recipe.path, path, resume=options.resume is not None)
            launch.launch(command, workers + 1, run_dir=path, environment=options.environment(path))
            return True
        rank, _ = place
        if rank:
            self._work(rank)
        return rank > 0

    def session(self) -> Session:
        """Build the server's session, and compare it with those of all workers."""
        session = build(self.recipe)
        self._transport = MPITransport()
        self._nodes = Nodes(self._transport, session)
        if nodes := str(self._nodes):
            self.show.note(nodes)
        return session

    def preview(self) -> Session:
        """Build the session without workers."""
        if mpi_rank() is None:  # otherwise mpirun has started this rank, and build() checks its GPU
            launch.check()
            devices.gpu_slots(self.recipe, devices.workers(self.recipe, devices.gpus(self.recipe)))
        return build(self.recipe)

    def run(self, session: Session, record: Record) -> None:
        """Run the server's part."""
        host, transport = self.host(self.recipe, self.folder.path), self._transport
        transport.spool = Spool(self.recipe.comm.upload_memory_mb * 2**20, self.folder.path)
        MPIServer(host, transport, session, record, self._nodes).train()
        transport.stop_receive_message()

    def _work(self, rank: int) -> None:
        try:
            session = build(self.recipe)
        except LabelSkewError as error:
            transport = MPITransport()
            greet(transport, error)
            transport.stop_receive_message()
            raise
        with tempfile.TemporaryDirectory() as folder:
            host = self.host(self.recipe, Path(folder), rank=rank)
            transport = MPITransport()
            greet(transport, session)
            transport.spool = Spool(self.recipe.comm.upload_memory_mb * 2**20, Path(folder))
            Worker(host, transport, session).run()


MAX_UPLOADS_PER_WORKER = 3
"""Maximum uploads in training or waiting, unless ``upload_memory_mb`` allows more. With 4 workers and 32 clients of
log-normal sizes (sigma 1), 3 uploads make a round 5 % longer than no limit, 2 uploads 14 %."""


class MPIServer(Manager, Exchange):
    """Rank 0."""

    def __init__(self, host: Host, transport: MPITransport, session: Session, record: Record, nodes: Nodes) -> None:
        super().__init__(host, transport, SERVER, transport.size)
        self.session, self.record, self._nodes = session, record, nodes
        self.rounds = Rounds(record, predict=self.predict, hooks=host.hooks(session.trainer.model))
        self._idle = list(range(1, self.size))
        self._waiting: list[int] = []
        """Clients to assign, the largest first."""
        self._in_progress = self._max_pending = 0
        self._largest = num_bytes(record.weights.values())
        self._arrived: dict[int, LocalResult] = {}
        self._logits: dict[int, Tensor] = {}
        self._have_model: set[int] = set()
        self._model: Weights = {}
        self.handlers = {Kind.UPLOAD: self._uploaded, Kind.LOGITS: self._tested, Kind.FAILED: self._failed}

    def train(self) -> None:
        """Run the remaining rounds."""
        if not self.record.next_round:
            self.rounds.server.open(self.session.openings())
        self.rounds.run(self)
        for worker in range(1, self.size):
            self.send(Kind.FINISH, worker)

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Assign the clients; yield their uploads, ascending."""
        sizes = self.session.sizes
        self._waiting = sorted(clients, key=lambda client: (-sizes[client], client))
        # fixed for the round: otherwise the next upload to sum might never be assigned
        in_memory = self.session.recipe.comm.upload_memory_mb * 2**20 // max(1, self._largest)
        self._max_pending = max(MAX_UPLOADS_PER_WORKER * (self.size - 1), in_memory)
        for number, client in enumerate(clients, 1):
            self._assign(round)
            while client not in self._arrived:
                self.transport.receive()
            self.record.progress.client(round, number, len(clients), self.session.trainer.names.get(client, ""))
            result = self._arrived.pop(client)
            device = self.session.trainer.device
            result.upload = {k: v.to(device) for k, v in result.upload.items()}
            result.contributions = {k: v.to(device) for k, v in result.contributions.items()}
            self.rounds.server.check(client, round, result)
            self.record.states.put(client, round, result.state)
            yield client, result
            del result
            self._in_progress -= 1

    def predict(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Logits and labels of the test set."""
        test = self.session.trainer.test.y
        self._logits.clear()
        parts = list(pairwise(cuts(len(test), TEST_BATCH.get(test.device.type, 1024), self.size - 1)))
        for worker, part in enumerate(parts, 1):
            model = self._unsent_model(worker)
            self.send(Kind.TEST, worker, meta={"part": part, "news": bool(model)}, tensors=model)
        while len(self._logits) < len(parts):
            self.transport.receive()
        return torch.cat([self._logits[worker].to(test.device) for worker in sorted(self._logits)]), test

    def _unsent_model(self, worker: int) -> dict[str, Tensor]:
        server = self.rounds.server
        if self._model is not server.weights:  # rounds replace the weights, and never modify them in place
            self._model = server.weights
            self._have_model.clear()
        if worker in self._have_model:
            return {}
        self._have_model.add(worker)
        return joined(model=server.weights, shared=server.shared)

    def _assign(self, round: int) -> None:
        """Assign clients to idle workers, up to ``_max_pending`` uploads.

        From half of this number on, assign the lowest client, not the largest. Otherwise the server could wait for a
        client that no worker trains.
        """
        states = self.record.states
        while self._idle and self._waiting and self._in_progress < self._max_pending:
            client = self._waiting[0] if self._in_progress < self._max_pending // 2 else min(self._waiting)
            worker = self._idle.pop(0)
            self._waiting.remove(client)
            self._in_progress += 1
            model = self._unsent_model(worker)
            meta = {
                "client": client,
                "times_selected": states.select(client),
                "personalised": self.record.tests_own_models(round),
                "news": bool(model),
            }
            self.send(Kind.TRAIN, worker, round=round, meta=meta, tensors=model | joined(state=states.get(client)))

    def _uploaded(self, message: Message) -> None:
        self._largest = max(self._largest, num_bytes(message.tensors.values()))
        self._arrived[message.meta["client"]] = upload(message.tensors, message.meta)
        self._idle.append(message.sender)
        self._assign(message.round)

    def _tested(self, message: Message) -> None:
        self._logits[message.sender] = message.tensors["logits"]

    def _failed(self, message: Message) -> None:
        meta = message.meta
        error = RunError(f"{self._nodes.name(message.sender)}: {meta['reason']}")
        error.frames = meta["frames"]
        raise error


class Worker(Manager):
    """A rank above 0."""

    def __init__(self, host: Host, transport: MPITransport, session: Session) -> None:
        super().__init__(host, transport, transport.rank, transport.size)
        self.local, self._take = session.trainer, host.turns(session.trainer)
        self._sums = session.sums
        self._weights: dict[str, Tensor] = {}
        self._shared: dict[str, Tensor] = {}
        self.handlers = {
            Kind.TRAIN: self._train,
            Kind.TEST: self._test,
            Kind.FINISH: lambda _: self.transport.stop_receive_message(),
        }

    def _take_model(self, message: Message) -> None:
        device = self.local.device
        if message.meta["news"]:
            self._weights = {k: v.to(device) for k, v in group(message.tensors, "model").items()}
            self._shared = {k: v.to(device) for k, v in group(message.tensors, "shared").items()}

    def _test(self, message: Message) -> None:
        self._take_model(message)
        local = self.local
        part = torch.arange(*message.meta["part"], device=local.device)
        self.send(Kind.LOGITS, SERVER, tensors={"logits": local.predict(part, self._weights)[0]})

    def _train(self, message: Message) -> None:
        self._take_model(message)
        meta, tensors, round = message.meta, message.tensors, message.round
        client = meta["client"]
        turn = {key: meta[key] for key in ("times_selected", "personalised")}
        state = group(tensors, "state")
        try:
            result = self._take(client, round, self._weights, shared=self._shared, state=state, **turn)
            if self._sums is not None:
                result = self._sums.encode_result(client, round, self._weights, result)
        except LabelSkewError as error:
            self.send(Kind.FAILED, SERVER, meta={"reason": str(error), "frames": error.frames})
            return
        meta = {"client": client, **upload_meta(result)}
        self.send(Kind.UPLOAD, SERVER, round=round, meta=meta, tensors=upload_tensors(result, with_state=True))


def cuts(samples: int, batch: int, parts: int) -> list[int]:
    """Bounds that split samples into at most ``parts`` nearly equal ranges of whole batches."""
    batches = math.ceil(samples / batch)
    bounds = {min(batch * (batches * part // parts), samples) for part in range(parts + 1)}
    return sorted(bounds)
