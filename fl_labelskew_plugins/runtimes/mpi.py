"""MPI simulation (``backend: MPI``): rank 0 is the server, every other rank trains whichever client it is dealt.

Clients are dealt one at a time, the one with most samples first, so that no worker idles. A client's private state
travels with it and stays, between its turns, in the server's store, where checkpoints find it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedml.core.distributed.communication.message import Message
from fl_labelskew_registry import LabelSkewError, RunError
from torch import Tensor

from fl_labelskew_plugins import devices, mpirun
from fl_labelskew_plugins.local import LocalResult
from fl_labelskew_plugins.record import Record
from fl_labelskew_plugins.runtime import Runtime
from fl_labelskew_plugins.runtimes import host
from fl_labelskew_plugins.runtimes.managers import SERVER, Manager, upload, upload_meta, upload_tensors
from fl_labelskew_plugins.runtimes.mpi_transport import MPITransport
from fl_labelskew_plugins.runtimes.rounds import Rounds
from fl_labelskew_plugins.runtimes.transport import Kind
from fl_labelskew_plugins.session import Session, build, host_switches
from fl_labelskew_plugins.state import group, joined
from fl_labelskew_plugins.trainer import LabelSkewTrainer, Turn
from fl_labelskew_plugins.wire import Spool


class MPI(Runtime):
    """A simulation over the processes of ``mpirun``, which this starts unless it was started by it."""

    def delegated(self) -> bool:
        """Start ``mpirun``, or be a worker of it."""
        place = mpirun.joined()
        if place is None:
            workers = mpirun.workers(self.recipe, devices.gpus(self.recipe, warn=True))
            devices.gpu_slots(self.recipe, workers)  # whatever is wrong with the GPUs is said before anything starts
            command = self.call.command(self.recipe.path, self.folder.path, resume=self.call.resume)
            mpirun.launch(command, workers + 1, run_dir=self.folder.path)
            return True
        rank, size = place
        if rank:
            self._work(rank, size)
        return rank > 0

    def preview(self) -> Session:
        """The whole simulation in this process."""
        devices.gpu_slots(self.recipe, mpirun.workers(self.recipe, devices.gpus(self.recipe)))
        return build(self.recipe)

    def run(self, session: Session, record: Record) -> None:
        """The server's part."""
        args = host.start(self.recipe, self.folder.path / "fedml.yaml")
        transport = MPITransport(Spool(self.recipe.comm.upload_memory_mb * 2**20, self.folder.path))
        size = transport.size
        server = Server(args, transport, size, session, record)
        server.train()
        transport.stop_receive_message()

    def _work(self, rank: int, size: int) -> None:
        session = build(self.recipe)
        with tempfile.TemporaryDirectory() as folder:
            args = host.start(self.recipe, Path(folder) / "fedml.yaml", rank=rank)
            transport = MPITransport(Spool(self.recipe.comm.upload_memory_mb * 2**20, Path(folder)))
            Worker(args, transport, rank, size, session).run()


class Server(Manager):
    """Rank 0: deals clients to workers and hands their uploads on in ascending order.

    Args:
        args: the host's arguments.
        transport: MPI.
        size: processes in all.
        session: what to run.
        record: where the run stands.
    """

    def __init__(self, args: Any, transport: MPITransport, size: int, session: Session, record: Record) -> None:
        super().__init__(args, transport, SERVER, size)
        self.session, self.record = session, record
        self.rounds = Rounds(args, session, record)
        self._idle = list(range(1, size))
        self._waiting: list[int] = []
        self._arrived: dict[int, LocalResult] = {}
        self._told: set[int] = set()

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """Uploads, and what went wrong elsewhere."""
        return {Kind.UPLOAD: self._uploaded, Kind.FAILED: self._failed}

    def train(self) -> None:
        """All rounds that are left."""
        if self.record.checkpoint is None:
            self.rounds.server.open(self.session.openings())
        self.rounds.run(self)
        for worker in range(1, self.size):
            self.send(Kind.FINISH, worker)

    def invite(self, round: int, clients: list[int]) -> list[int]:
        """Everybody is here."""
        return clients

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Deal the clients, longest first; yield what they leave, in ascending order."""
        sizes = self.session.sizes
        self._waiting = sorted(clients, key=lambda client: (-sizes[client], client))
        self._told.clear()
        while self._idle and self._waiting:
            self._deal(round, self._idle.pop(0))
        for number, client in enumerate(clients, 1):
            while client not in self._arrived:
                self.transport.receive()
            self.record.progress.client(round, number, len(clients))
            result = self._arrived.pop(client)
            device = self.session.trainer.device
            result.upload = {k: v.to(device) for k, v in result.upload.items()}
            result.contributions = {k: v.to(device) for k, v in result.contributions.items()}
            self.rounds.server.check(client, round, result)
            self.record.states.put(client, round, result.state)
            yield client, result
            del result

    def _deal(self, round: int, worker: int) -> None:
        """Give a worker its next client; the model goes with its first one of the round."""
        server, states = self.rounds.server, self.record.states
        client = self._waiting.pop(0)
        news = {} if worker in self._told else joined(model=server.weights, shared=server.shared)
        self._told.add(worker)
        self.send(
            Kind.TRAIN,
            worker,
            round=round,
            meta={
                "client": client,
                "times_selected": states.select(client),
                "personalised": self.record.personalised and self.record.tests(round),
                "news": bool(news),
            },
            tensors=news | joined(state=states.get(client)),
        )

    def _uploaded(self, message: Message) -> None:
        self._arrived[message.get("meta")["client"]] = upload(message.get("tensors"), message.get("meta"))
        worker = message.get_sender_id()
        if self._waiting:
            self._deal(message.get("round"), worker)
        else:
            self._idle.append(worker)

    def _failed(self, message: Message) -> None:
        raise RunError(f"worker {message.get_sender_id()}: {message.get('meta')['reason']}")


class Worker(Manager):
    """A rank above 0: trains the clients that the server names.

    Args:
        args: the host's arguments.
        transport: MPI.
        rank: this process.
        size: processes in all.
        session: what to run.
    """

    def __init__(self, args: Any, transport: MPITransport, rank: int, size: int, session: Session) -> None:
        super().__init__(args, transport, rank, size)
        self.trainer = LabelSkewTrainer(session.trainer, args, hooks=bool(host_switches(session.recipe)))
        self._weights: dict[str, Tensor] = {}
        self._shared: dict[str, Tensor] = {}

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """Clients to train, and the end."""
        return {Kind.TRAIN: self._train, Kind.FINISH: lambda _: self.transport.stop_receive_message()}

    def _train(self, message: Message) -> None:
        meta, tensors, round = message.get("meta"), message.get("tensors"), message.get("round")
        device = self.trainer.local.device
        if meta["news"]:
            self._weights = {k: v.to(device) for k, v in group(tensors, "model").items()}
            self._shared = {k: v.to(device) for k, v in group(tensors, "shared").items()}
        client = meta["client"]
        self.args.round_idx = round
        state = group(tensors, "state")
        turn = Turn(client, round, self._shared, state, meta["times_selected"], meta["personalised"])
        try:
            result = self.trainer.take(turn, self._weights)
        except LabelSkewError as error:
            self.send(Kind.FAILED, SERVER, meta={"reason": str(error)})
            return
        self.send(
            Kind.UPLOAD,
            SERVER,
            round=round,
            meta={"client": client, **upload_meta(result)},
            tensors=upload_tensors(result, with_state=True),
        )
