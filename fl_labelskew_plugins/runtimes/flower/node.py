"""A SuperNode's end: a silo that handles one Flower message at a time.

Flower may handle each message in another process, so a silo is set up anew for each one, from its folder and the last
WELCOME, which Flower keeps in the node's state. Only its samples stay in memory.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

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
from fl_labelskew_plugins.runtimes.flower import parcels
from fl_labelskew_plugins.runtimes.silo import facts, keys, streams
from fl_labelskew_plugins.runtimes.silo.client import SiloClient
from fl_labelskew_plugins.runtimes.silo.connecting import FROM_SERVER
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
        self.hello = lambda: Message(Kind.HELLO, rank, SERVER)

    def send_message(self, msg: Message) -> None:
        """Add an answer."""
        self.answers.append(parcels.packed(msg))

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
    with restored():
        home = RunFolder(folder)
        home.hold()
        audit = Audit(digests=recipe.comm.audit_digests)
        try:
            audit.open(folder, keys.silo_name(rank))
            answers = _answers(recipe, message, context, rank, folder, audit)
        except LabelSkewError as error:
            log.warn(f"silo {rank}: {error}")
            cause = {"reason": error.public or "its own log has the reason"}
            answers = [parcels.packed(Message(Kind.FAILED, rank, SERVER, meta=cause))]
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
    silo = SiloClient(Host(), transport, rank, recipe, samples(recipe, rank), folder, Progress(), guard, ledger)
    requests = parcels.payloads(message.content)
    if not requests:
        transport.send_message(transport.hello())
    kept: Any = context.state.config_records.setdefault(STATE, ConfigRecord())
    for number, data in enumerate(requests):
        if number == 0 and WELCOME in kept and Header.unpack(data).kind != Kind.WELCOME:
            transport.take(kept[WELCOME])
            transport.answers.clear()
        if transport.take(data) == Kind.WELCOME:
            kept[WELCOME] = data
        if silo.failure is not None:
            log.warn(f"silo {rank}: {silo.failure}")
            break
    return transport.answers


def samples(recipe: Recipe, rank: int) -> facts.SiloData:
    """A silo's samples, loaded once per process."""
    if recipe.own_data:
        return _own(json.dumps(recipe.resolved(), sort_keys=True, default=str), rank, _Unkeyed(recipe))
    return facts.load(recipe, rank - 1)


class _Unkeyed:
    """A recipe that caches ignore, because its text is the key."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return True


@lru_cache(maxsize=4)
def _own(text: str, rank: int, recipe: _Unkeyed) -> facts.SiloData:
    return facts.load(recipe.recipe, rank - 1)
