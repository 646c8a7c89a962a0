"""The server's end: SuperNodes as silos."""

import queue
import time
from collections import defaultdict
from functools import partial
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runtimes.flower import parcels
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.silo.listening import FROM_SILOS
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message, Transport
from fl_labelskew_plugins.runtimes.wire import Header, WireError

PULL_S = 0.05  # between requests for replies
LOOK_S = 1.0  # between requests for the list of nodes
AGAIN_S = 10.0  # before a node whose reply was an error is asked again


class GridTransport(Transport):
    """Sends to Flower's nodes, and receives their replies.

    A Flower message holds all messages that wait for a node, and the reply all answers. A node handles one Flower
    message at a time. An empty one asks for HELLO, which gives the node's rank. A node keeps its rank, and a rank its
    node, until Flower reports that the node has left.

    ``seconds``: how long a node may work on a message.
    """

    def __init__(self, grid: Grid, *, silos: int, audit: Audit, spool: Spool, seconds: float) -> None:
        super().__init__()
        self.grid, self.silos, self.audit = grid, silos, audit
        self.address, self.tls, self.revoked = "Flower", None, None
        self.limits = dict.fromkeys(FROM_SILOS, streams.LIMIT)
        self._spool, self._seconds = spool, seconds
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
            self._push()
        super().stop_receive_message()

    def _next(self, timeout: float | None) -> Message:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._look()
            self._push()
            self._pull()
            try:
                return self.arrived.get_nowait()
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    raise
            time.sleep(PULL_S)

    def _look(self) -> None:
        """Find new nodes, and those that have left."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked, now = time.monotonic(), set(self.grid.get_node_ids())
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
            for asked in self.grid.push_messages([sent]):
                self._asked[asked] = node

    def _pull(self) -> None:
        for reply in self.grid.pull_messages(list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                self._fail(node, f"its ClientApp failed: {reply.error.reason}")
                continue
            try:
                for data in parcels.payloads(reply.content):
                    self._take(node, data)
            except WireError as error:
                self._fail(node, streams.predicate(error))

    def _take(self, node: int, data: bytes) -> None:
        arrived, facts = parcels.unpacked(data, partial(self._admit, node), self._spool, digest=self.audit.digests)
        if arrived.kind == Kind.HELLO and node not in self._ranks:
            if arrived.sender in self._ranks.values():
                raise streams.RefusedError(f"claims to be silo {arrived.sender}, which another node is")
            self._ranks[node] = arrived.sender
            self.audit.note("connected", rank=arrived.sender, peer=str(node))
        self.audit.note("received", rank=arrived.sender, peer=str(node), **facts)
        self.arrived.put(arrived)
        if arrived.kind == Kind.FAILED:
            self._not_before[node] = time.monotonic() + AGAIN_S

    def _admit(self, node: int, header: Header) -> None:
        if header.kind not in FROM_SILOS or header.receiver != SERVER:
            raise WireError(f"a message of type {header.kind} to {header.receiver}")
        known = self._ranks.get(node)
        if not 1 <= header.sender <= self.silos or (known or header.sender) != header.sender:
            raise streams.RefusedError(f"claims to be silo {header.sender}")
        if known is None and header.kind not in (Kind.HELLO, Kind.FAILED):
            raise WireError(f"{Kind(header.kind).name} before HELLO")
        streams.bound(header, self.limits)

    def _fail(self, node: int, reason: str) -> None:
        reason = clean(reason, 300)
        rank = self._ranks.get(node, -1)
        self.arrived.put(Message(Kind.REFUSED, rank, SERVER, meta={"reason": reason}))
        self._not_before[node] = time.monotonic() + AGAIN_S
        self._leave(node, reason)

    def _leave(self, node: int, reason: str) -> None:
        self._waiting.pop(node, None)
        self._asked = {asked: other for asked, other in self._asked.items() if other != node}
        rank: Any = self._ranks.pop(node, None)
        if rank is not None:
            self.audit.note("left", rank=rank, peer=str(node), reason=reason)
            self.arrived.put(Message(Kind.LEFT, rank, SERVER))
