"""A SuperNode's end: a silo that handles one Flower message at a time.

Flower may handle each message in another process, so a silo is set up anew for each one, from its folder and the last
WELCOME, which Flower keeps in the node's state. Only its samples stay in memory.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from fl_labelskew_registry import LabelSkewError
from flwr.app import ConfigRecord, Context
from flwr.app import Message as FlowerMessage

from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.ledgers.privacy import ledger_of
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.session import divided
from fl_labelskew_plugins.runtimes.flower import parcels
from fl_labelskew_plugins.runtimes.flower.bindings import KEY, proof
from fl_labelskew_plugins.runtimes.flower.runtime import as_one_process
from fl_labelskew_plugins.runtimes.silo import facts, keys, streams
from fl_labelskew_plugins.runtimes.silo.client import SiloClient, secret, sendable
from fl_labelskew_plugins.runtimes.silo.connecting import FROM_SERVER, SiloTransport
from fl_labelskew_plugins.runtimes.silo.guard import guard_of
from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message, Transport
from fl_labelskew_plugins.runtimes.wire import Header, WireError

STATE, WELCOME = "fl_labelskew", "welcome"


class NodeTransport(Transport):
    """Collects the answers to one Flower message."""

    def __init__(self, rank: int, spool: Spool, audit: Audit) -> None:
        super().__init__()
        self.rank, self.audit, self._spool = rank, audit, spool
        self.tls, self.revoked, self.quiet = None, None, False
        self.limits = dict.fromkeys(FROM_SERVER, streams.LIMIT)
        self.answers: list[bytes] = []
        self.hello: Callable[[], Message] = lambda: Message(Kind.HELLO, rank, SERVER)

    def send_message(self, msg: Message) -> None:
        """Add an answer."""
        data = parcels.packed(msg)
        self.audit.note("sent", rank=SERVER, peer="Flower", kind=msg.kind.name, round=msg.round, bytes=len(data))
        self.answers.append(data)

    def take(self, data: bytes) -> Kind:
        """Handle a message of the server. Raises WireError."""
        arrived, facts = parcels.unpacked(data, self._admit, self._spool, digest=self.audit.digests)
        self.audit.note("received", rank=SERVER, peer="Flower", **facts)
        self.arrived.put(arrived)
        self.receive()
        return arrived.kind

    def _admit(self, header: Header) -> None:
        if header.kind not in FROM_SERVER or header.sender != SERVER or header.receiver != self.rank:
            raise WireError(f"a message of type {header.kind} from {header.sender} to {header.receiver}")
        streams.bound(header, self.limits)


def answer(recipe: Recipe, message: FlowerMessage, context: Context, *, rank: int, folder: Path) -> FlowerMessage:
    """Answer a Flower message of :class:`.GridTransport` as silo ``rank``, with its files in ``folder``."""
    if "ray" in sys.modules:  # Ray sets this in each process; as a user's choice, it would change the last digits
        os.environ.pop("OMP_NUM_THREADS", None)
    with restored():
        home = RunFolder(folder)
        home.hold()
        audit = Audit(digests=recipe.comm.audit_digests)
        try:
            audit.open(folder, keys.silo_name(rank))
            answers = _answers(as_one_process(recipe), message, context, rank, folder, audit)
        except LabelSkewError as error:
            log.warn(f"silo {rank}: {error}")
            # all processes of a simulation have one owner
            text = sendable(error) if recipe.common.across_silos else str(error)
            answers = [parcels.packed(Message(Kind.FAILED, rank, SERVER, meta={"reason": text}))]
        finally:
            audit.close()
            home.release()
    return FlowerMessage(parcels.parcel(answers), reply_to=message)


def _answers(
    recipe: Recipe, message: FlowerMessage, context: Context, rank: int, folder: Path, audit: Audit
) -> list[bytes]:
    recipe = recipes.silo(recipe, rank)
    guard, ledger = guard_of(recipe, rank, folder), ledger_of(recipe, folder)
    spool = Spool(recipe.comm.upload_memory_mb * 2**20, folder)
    transport = NodeTransport(rank, spool, audit)
    data = LOADED.of(recipe, rank)
    to_server = cast(SiloTransport, transport)  # a SiloClient uses what both have
    silo = SiloClient(Host(), to_server, rank, recipe, data, folder, Progress(), guard, ledger)
    requests = parcels.payloads(message.content)
    if not requests:
        hello = transport.hello()
        transport.send_message(replace(hello, meta={**hello.meta, KEY: proof(secret(folder))}))
    kept = context.state.config_records.setdefault(STATE, ConfigRecord())
    welcome = kept.get(WELCOME)
    for number, request in enumerate(requests):
        if number == 0 and isinstance(welcome, bytes) and Header.unpack(request).kind != Kind.WELCOME:
            transport.take(welcome)
            transport.answers.clear()
        if transport.take(request) == Kind.WELCOME:
            kept[WELCOME] = request
        if silo.failure is not None:
            raise silo.failure
    return transport.answers


class LoadedSamples:
    """The data of the last recipe, loaded once per process."""

    def __init__(self) -> None:
        self._key = ""
        self._own: facts.SiloData
        self._parts: facts.Divided

    def of(self, recipe: Recipe, rank: int) -> facts.SiloData:
        """A silo's samples."""
        own = recipe.own_data
        key = json.dumps([rank if own else 0, recipe.resolved()], sort_keys=True)
        if key != self._key:
            if own:
                self._own = facts.load(recipe, rank - 1)
            else:
                self._parts = divided(recipe)
            self._key = key
        return self._own if own else facts.load(recipe, rank - 1, self._parts)


LOADED = LoadedSamples()
