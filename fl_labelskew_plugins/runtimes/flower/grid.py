"""The server's end: SuperNodes as silos."""

import contextlib
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from fl_labelskew_registry import RunError
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runtimes.flower import parcels
from fl_labelskew_plugins.runtimes.flower.bindings import KEY, Bindings
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.silo.listening import FROM_SILOS
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message, Transport, reason
from fl_labelskew_plugins.runtimes.wire import Header, WireError

Result = TypeVar("Result")

PULL_S = 0.05  # between requests for replies
LOOK_S = 1.0  # between requests for the list of nodes
AGAIN_S = 10.0  # pause after an error of a node


CRASHED = (1, 2, 8)
"""Flower's error codes: the ClientApp cannot be loaded, raised an exception, or its process ended."""


class GridTransport(Transport):
    """Sends to Flower's nodes, and receives their replies.

    A Flower message holds all messages that wait for a node, and the reply all answers. A node handles one Flower
    message at a time. An empty one asks for HELLO, which gives the node's rank. A node keeps its rank until Flower
    reports that it has left, or until the same silo has another node.

    Args:
        grid: of the ServerApp.
        silos: their number.
        audit: the log of messages.
        spool: for large messages.
        bindings: the known nodes.
        seconds: how long a node may work on a message.
        simulated: an error of a node ends the run.
        check: called before each wait; it raises RunError if Flower has failed.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        silos: int,
        audit: Audit,
        spool: Spool,
        bindings: Bindings,
        seconds: float,
        simulated: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.grid, self.silos, self.audit = grid, silos, audit
        self.address, self.tls, self.revoked = "Flower", None, None
        self.limits = dict.fromkeys(FROM_SILOS, streams.LIMIT)
        self._spool, self._bindings, self._seconds = spool, bindings, seconds
        self._simulated, self._check = simulated, check
        self._ranks: dict[int, int] = {}
        """Of nodes that have sent HELLO."""
        self._waiting: dict[int, list[Message]] = defaultdict(list)
        self._asked: dict[str, int] = {}
        """Nodes by the Flower message that they work on."""
        self._not_before: dict[int, float] = {}
        self._nodes, self._looked = set[int](), 0.0

    def send_message(self, msg: Message) -> None:
        """Queue a message; it is dropped if the silo's node has left."""
        for node, rank in self._ranks.items():
            if rank == msg.receiver:
                self._waiting[node].append(msg)

    def stop_receive_message(self) -> None:
        """Send the last messages."""
        if self.running:
            with contextlib.suppress(RunError):  # Flower may have failed
                self._push()
        super().stop_receive_message()

    def _next(self, timeout: float | None) -> Message:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check()
            self._look()
            self._push()
            self._pull()
            try:
                return self.arrived.get_nowait()
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    raise
            time.sleep(PULL_S)

    def _call(self, method: Callable[..., Iterable[Result]], *args: object) -> list[Result]:
        try:
            return list(method(*args))
        except Exception as error:  # of HTTP, gRPC or a database
            self._check()
            raise RunError(f"Flower's SuperLink cannot be used: {clean(repr(error), 300)}") from None

    def _look(self) -> None:
        """Find new nodes, and those that have left."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked, now = time.monotonic(), set(self._call(self.grid.get_node_ids))
        for node in self._nodes - now:
            self._leave(node, "has left Flower's federation")
        self._nodes = now

    def _push(self) -> None:
        busy, ready = set(self._asked.values()), []
        for node in sorted(self._nodes - busy):
            if time.monotonic() < self._not_before.get(node, 0.0):
                continue
            if node in self._ranks and all(message.kind == Kind.VERDICT for message in self._waiting[node]):
                continue  # a verdict goes with the next request, because each Flower message may start a process
            ready.append(node)
        for node in ready:
            messages, self._waiting[node] = self._waiting[node], []
            data = [parcels.packed(message) for message in messages]
            for message, payload in zip(messages, data, strict=True):
                note = {"kind": message.kind.name, "round": message.round, "bytes": len(payload)}
                self.audit.note("sent", rank=message.receiver, peer=str(node), **note)
            sent = FlowerMessage(parcels.parcel(data), node, "query", ttl=self._seconds)
            self._asked |= {asked: node for asked in self._call(self.grid.push_messages, [sent]) if asked}

    def _pull(self) -> None:
        for reply in self._call(self.grid.pull_messages, list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                if self._simulated and reply.error.code in CRASHED:
                    raise RunError(f"a node of Flower failed: {clean(reply.error.reason, 300)}")
                self._fail(node, f"its ClientApp gave no answer: {reply.error.reason}")
                continue
            try:
                for data in parcels.payloads(reply.content):
                    self._take(node, data)
            except WireError as error:
                self._fail(node, streams.predicate(error))

    def _take(self, node: int, data: bytes) -> None:
        arrived, facts = parcels.unpacked(data, partial(self._admit, node), self._spool, digest=self.audit.digests)
        if arrived.kind == Kind.FAILED and self._simulated:
            raise RunError(reason(arrived) or f"client {arrived.sender - 1} failed")
        if node not in self._ranks:
            if arrived.kind == Kind.FAILED:
                raise streams.RefusedError(f"reports that silo {arrived.sender} cannot start: {reason(arrived)}")
            self._connect(node, arrived)
        self.audit.note("received", rank=arrived.sender, peer=str(node), **facts)
        self.arrived.put(arrived)
        if arrived.kind == Kind.FAILED:
            self._not_before[node] = time.monotonic() + AGAIN_S
            self._leave(node, "its silo has stopped")

    def _connect(self, node: int, hello: Message) -> None:
        rank = hello.sender
        if not self._bindings.bind(rank, hello.meta.get(KEY)):
            raise streams.RefusedError(f"claims to be silo {rank}, which is another node ({self._bindings.file})")
        for other in [other for other, known in self._ranks.items() if known == rank]:
            self._leave(other, "its silo has another node")
        self._ranks[node] = rank
        self.audit.note("connected", rank=rank, peer=str(node))

    def _admit(self, node: int, header: Header) -> None:
        if header.kind not in FROM_SILOS or header.receiver != SERVER:
            raise WireError(f"a message of type {header.kind} to {header.receiver}")
        known = self._ranks.get(node)
        if not 1 <= header.sender <= self.silos or (known or header.sender) != header.sender:
            raise streams.RefusedError(f"claims to be silo {header.sender}")
        if known is None and header.kind not in (Kind.HELLO, Kind.FAILED):
            raise WireError(f"{Kind(header.kind).name} before HELLO")
        streams.bound(header, self.limits)

    def _fail(self, node: int, problem: str) -> None:
        problem = clean(problem, 300)
        self.arrived.put(Message(Kind.REFUSED, self._ranks.get(node, -1), SERVER, meta={"reason": problem}))
        self._not_before[node] = time.monotonic() + AGAIN_S
        self._leave(node, problem)

    def _leave(self, node: int, problem: str) -> None:
        self._waiting.pop(node, None)
        self._asked = {asked: other for asked, other in self._asked.items() if other != node}
        if node in self._ranks:
            rank = self._ranks.pop(node)
            self.audit.note("left", rank=rank, peer=str(node), reason=problem)
            self.arrived.put(Message(Kind.LEFT, rank, SERVER))
