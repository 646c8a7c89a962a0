"""A run in which the server sees sums alone (``comm_args.secure_aggregation``): its server, and a silo of it.

Silos train and say that they are ready; then the sum of their vectors (:mod:`fl_labelskew_plugins.engine.sums`) is made
by :mod:`.secure`, and repeated with new masks where too many are lost meanwhile. Needs cryptography and pycryptodome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runtimes.silo.client import SiloClient
from fl_labelskew_plugins.runtimes.silo.exchanges import LATE, TAKEN, Opening, Uploads
from fl_labelskew_plugins.runtimes.silo.members import Members, Poll
from fl_labelskew_plugins.runtimes.silo.secure import wire
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.answering import Part
from fl_labelskew_plugins.runtimes.silo.secure.asking import Sums
from fl_labelskew_plugins.runtimes.silo.secure.attempt import LEAST, OPENING, SecureError, Vector, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Authority, Identity
from fl_labelskew_plugins.runtimes.silo.server import SLACK, SiloServer
from fl_labelskew_plugins.runtimes.transport import Kind, Message
from fl_labelskew_plugins.tensors import State, joined

class SummedOpening(Opening):
    """The opening exchange as one sum, of samples and of what the method opens with; made once in a run.

    A later one, with a silo more, would differ from it by what that silo has.
    """

    def __init__(self, *args: Any, sums: Sums, run: str, told: Callable[[int, list[int]], None]) -> None:
        super().__init__(*args)
        self._sums, self._run, self._told = sums, run, told
        self.wanted = False

    def exchange(self, *, resumed: bool) -> None:
        """Make it, where it is not made yet."""
        server, members = self._rounds.server, self._members
        if server.opened:
            return
        made, clock = self._rounds.session.sums, members.clock
        assert made is not None

        def there(without: Collection[int]) -> list[int]:
            until = clock.now + members.comm.quorum_timeout_s
            while True:
                here = sorted(members.present - members.excluded - members.away - set(without))
                if len(here) >= members.quorum or not clock.listen(until):
                    return here

        clients, vector = self._sums.repeated(self._run, OPENING, there, made.opening.size)
        self._told(server.open_sum(vector, clients), clients)

    def catch_up(self) -> None:
        """Nothing: it is made once."""


class SummedUploads(Uploads):
    """Who is ready, and the sum of what they have."""

    def __init__(self, *args: Any, sums: Sums, run: str) -> None:
        super().__init__(*args)
        self._sums, self._run = sums, run
        self._ready: dict[int, LocalResult] = {}

    def total(self, round: int, clients: Sequence[int]) -> tuple[list[int], Vector]:
        """Have these silos train; who is in the sum of what they have, and the sum.

        Raises:
            RunError: too few are left.
        """
        members, made, server = self._members, self._rounds.session.sums, self._rounds.server
        assert made is not None
        members.round, self._ready = round, {}
        self._news = joined(model=server.weights, shared=server.shared)

        def ready(without: Collection[int]) -> list[int]:
            waited = [client for client in clients if client not in without]
            for client in [client for client in self._ready if client not in members.present]:
                del self._ready[client]  # until it is back and has trained again
            self._poll = Poll(members, waited, "uploads", self._ready)
            for client in members.present.intersection(waited) - self._ready.keys():
                self.ask(client)
            return list(self._poll.take())

        came, vector = self._sums.repeated(self._run, round, ready, made.round.size)
        for client in clients:
            verdict = TAKEN if client in came else {"taken": False, "reason": "it is not in the sum"}
            self._send(Kind.VERDICT, client + 1, round=round, meta=verdict)
        states = self._record.states
        for client in came:
            self._taken[client] = round
            states.select(client)
            states.note(client, round)
        self._ready = {}
        self.close()
        return came, vector

    def restarted(self, client: int) -> None:
        """A silo's process is another one, so what it had is gone: it is asked again, in the next attempt if not now."""
        self._ready.pop(client, None)

    def take(self, client: int, message: Message) -> dict[str, Any]:
        """A silo is ready; an empty verdict, for there is none before the sum."""
        if message.round == self._members.round and client in self._ready:
            return {}  # sent twice, because its connection broke
        if message.round != self._members.round or not self._poll.awaits(client):
            return TAKEN if self._taken.get(client) == message.round else LATE
        if message.tensors or message.meta:
            self._poll.settled.add(client)
            what = f"silo {client + 1} sends its upload in the clear; use the same recipe everywhere"
            self._members.warn(f"round {message.round + 1}: {what}")
            return {"taken": False, "reason": what}
        self._poll.answers[client] = LocalResult({}, {}, {}, {}, None)
        return {}


class SummedServer(SiloServer):
    """Rank 0 of a federation whose server sees sums alone; ``authority`` checks who has signed."""

    def __init__(self, *args: Any, authority: Authority, **options: Any) -> None:
        super().__init__(*args, **options)
        self.members.quorum = max(self.members.quorum, LEAST)
        comm = self.recipe.comm
        self._sums = Sums(
            self.members,
            authority,
            self.send,
            self.transport.limits,
            self.transport.audit,
            bits=comm.secure_bits,
            at_least=comm.secure_threshold,
        )

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """The steps of a secure sum, too."""
        return {**super().handlers(), **dict.fromkeys(wire.STEPS, self._take_step)}

    def _take_step(self, message: Message) -> None:
        self.members.away.discard(message.sender - 1)
        self._sums.take(message)
