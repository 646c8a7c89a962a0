"""The server side of secure sums over the network."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fl_labelskew_registry import RunError
from torch import Tensor

from fl_labelskew_plugins.engine.ring import Ring, Vector
from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.recipe.sections import LEAST_SUMMED
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.silo.members import Members, Poll
from fl_labelskew_plugins.runtimes.silo.secure import wire
from fl_labelskew_plugins.runtimes.silo.secure.attempt import (
    OPENING,
    Attempt,
    SecureError,
    Sizes,
    about,
    invalid_message,
    listed,
)
from fl_labelskew_plugins.runtimes.silo.secure.identity import Authority
from fl_labelskew_plugins.runtimes.silo.secure.server import ServerRound
from fl_labelskew_plugins.runtimes.transport import Kind, Message, reason

TRIES = 3  # maximum attempts at a sum with the same silos; also the maximum of attempts that fail after masking
LEAST_S = 5.0  # a step has at least this many seconds, or a tenth of `round_deadline_s` if that is less
TIME_WEIGHTS = {kind: 5 if kind is Kind.MASKED else 1 for kind in wire.STEPS}
"""Relative time of each step in an attempt."""
FOR_VECTORS = 1 / 4  # minimum time for the vectors, as a fraction of `round_deadline_s`
Content = tuple[dict[str, Any], dict[str, Tensor]]


class ServerSums:
    """Runs the steps of secure sums with silos.

    ``limits``: maximum bytes of a message by kind, changed here; ``sizes``: returns a round's :class:`.Sizes`.
    """

    def __init__(
        self,
        members: Members,
        authority: Authority,
        send: Callable[..., None],
        limits: dict[Kind, int],
        audit: Audit,
        *,
        sizes: Callable[[int], Sizes],
    ) -> None:
        self._members, self._authority, self._send, self._limits = members, authority, send, limits
        self._audit, self._sizes = audit, sizes
        self._numbers: dict[int, int] = {}
        self._faults: Counter[int] = Counter()
        self._lost: set[int] = set()
        self._seconds, self._slow = 0.0, 0
        self._attempt = Attempt("", OPENING, 0, 32, 0, Sizes(LEAST_SUMMED, LEAST_SUMMED, LEAST_SUMMED))
        self._kind = Kind.KEYS
        self._content: Callable[[int], Content]
        self._take: Callable[[int, Mapping[str, Tensor]], bool | None]
        self._poll: Poll[bool]
        self._close()

    def sum_with_retries(
        self, run: str, round: int, select: Callable[[set[int]], list[int]], ring: Ring, question: str = ""
    ) -> tuple[list[int], Vector]:
        """Attempt a sum until it succeeds; see :meth:`total`.

        A silo is excluded if it cheated, if it failed twice, or if it failed once and the sum does not need it.
        Before each attempt, ``select`` gets the excluded clients and returns the participants.

        Raises:
            RunError: too few silos are left, or :data:`TRIES` attempts failed with the same silos, or after masking.
                The silos' ledgers are charged for masked attempts.
        """
        self._faults.clear()
        self._slow, masked = 0, 0
        tries: Counter[tuple[int, ...]] = Counter()
        clients: list[int] = []
        while True:
            failed = {client for client, faults in self._faults.items() if faults}
            without = {client for client in failed if self._faults[client] > 1}
            if round != OPENING and len(set(clients) - failed) >= self._members.quorum:
                without = failed
            clients = select(without)
            try:
                opened = self.total(run, round, clients, ring, question)
                self._slow = 0  # the sum of a test has the usual times
                return opened
            except SecureError as error:
                tries[tuple(clients)] += 1
                masked += self._kind in (Kind.MASKED, Kind.INCLUDED, Kind.REVEALED)
                if len(clients) < self._sizes(round).at_least or TRIES in (tries[tuple(clients)], masked):
                    raise RunError(f"{error}{self._members.excluded}; {self._members.resume}") from None
                self._members.warn(f"{error}; the sum is not opened, and the attempt is repeated")

    def total(
        self, run: str, round: int, clients: Sequence[int], ring: Ring, question: str = ""
    ) -> tuple[list[int], Vector]:
        """Attempt a sum of vectors once, with new masks; return its clients, ascending, and the sum.

        Raises SecureError if too few silos are left, or one cheated. The server then learns nothing about any vector.
        """
        number = self._numbers[round] = self._numbers.get(round, -1) + 1
        self._attempt = attempt = Attempt(
            run, round, number, ring.bits, ring.size, self._sizes(round), question, ring.wide
        )
        self._limits[Kind.MASKED] = streams.LIMIT + 4 * ring.size
        facts, server, members = about(run, round, number), ServerRound(attempt, self._authority), self._members
        self._lost = set()
        self._seconds = members.deadline() - members.clock.now
        try:
            included, lost, total = self._steps(server, clients)
        except SecureError as error:
            self._audit.note("sum", **facts, reason=str(error))
            raise
        finally:
            self._close()
            for rank, what in sorted(server.cheats.items()):
                self._fault(rank - 1, 2)
                self._members.warn(f"{attempt.where}: silo {rank} {what}")
        self._audit.note("sum", **facts, silos=included, lost=lost)
        if lost:
            what = f"lost after the masks were shared: {listed(lost)}; the sum includes {listed(included)}"
            log.warn(f"{attempt.where}: {what}")
        return [rank - 1 for rank in included], total

    def _steps(self, server: ServerRound, clients: Sequence[int]) -> tuple[list[int], list[int], Vector]:
        attempt, step = server.attempt, self._step

        def one_text(rank: int, received: Mapping[str, Tensor]) -> bytes:
            return wire.texts(received, attempt).get(rank, b"")

        def dealt(rank: int) -> Content:
            return {}, wire.tensors({dealer: b"".join(texts) for dealer, texts in server.dealt(rank).items()})

        answered = step(Kind.KEYS, clients, lambda _: ({}, {}), lambda r, got: server.advertised(r, one_text(r, got)))
        if attempt.round < OPENING and (missing := set(clients).difference(answered)):
            raise attempt.error(f"{listed([client + 1 for client in missing])} sent no keys")
        roster = wire.tensors(server.roster())
        answered = step(
            Kind.SHARES, answered, lambda _: ({}, roster), lambda r, got: server.shared(r, *wire.shares(got, attempt))
        )
        answered = step(Kind.CHECKED, answered, dealt, lambda r, got: server.checked(r, wire.texts(got, attempt)))
        sharing = wire.tensors(server.sharing())
        answered = step(
            Kind.MASKED, answered, lambda _: ({}, sharing), lambda r, got: server.masked(r, wire.vector(got, attempt))
        )
        included = server.included()
        answered = step(
            Kind.INCLUDED,
            answered,
            lambda _: ({"included": included}, {}),
            lambda r, got: server.agreed(r, one_text(r, got)),
        )
        signatures = wire.tensors(server.signatures())
        step(
            Kind.REVEALED,
            answered,
            lambda _: ({}, signatures),
            lambda r, got: server.revealed(r, wire.texts(got, attempt)),
        )
        return included, server.lost, server.total()

    def _step(
        self,
        kind: Kind,
        clients: Sequence[int],
        content: Callable[[int], Content],
        take: Callable[[int, Mapping[str, Tensor]], bool | None],
    ) -> list[int]:
        """Send ``content(rank)`` to each client, pass each answer to ``take``; return the clients that answered.

        The step ends early if ``take`` returns True. Each step has its own deadline, so that a silent silo makes no
        other silo late. If too few vectors arrive in time, the next attempt doubles the time for vectors; the third
        quadruples it.
        """
        self._kind, self._content, self._take = kind, content, take
        members, answers = self._members, dict[int, bool]()
        clients = [client for client in clients if client not in self._lost]
        members.skipped -= members.present.intersection(clients)
        share = TIME_WEIGHTS[kind] / sum(TIME_WEIGHTS.values())
        if self._attempt.round == OPENING and kind is Kind.KEYS:
            share = 0.5  # silos build their networks before they answer
        whole = members.comm.round_deadline_s
        for_vectors, least = FOR_VECTORS * whole * 2**self._slow, min(LEAST_S, whole / 10)
        if kind is Kind.MASKED:
            least = for_vectors
        elif kind is Kind.KEYS and self._slow:
            least = for_vectors / 2  # vectors of the previous attempt may still be on their way
        deadline = members.clock.now + max(share * self._seconds, least)
        self._poll = Poll(members, clients, wire.STEPS[kind], answers, least=0, deadline=deadline)
        for client in clients:
            self._ask(client)
        list(self._poll.take())
        silent = set(clients) - answers.keys() - self._lost
        slow = kind is Kind.MASKED and len(answers) < self._attempt.sizes.at_least
        for client in silent:
            self._fault(client, 0 if slow and not self._slow else 1)  # at first, silos may only need more time
        self._slow = min(self._slow + slow, 2)
        return sorted(answers)

    def handle_reconnect(self, client: int, *, same_process: bool) -> None:
        """Ask a reconnected silo again; exclude it if it lost its keys in a restart."""
        if not same_process and client in self._poll.clients and client not in self._lost:
            self._poll.settled.add(client)
            self._fault(client)
            self._members.warn(f"{self._attempt.where}: silo {client + 1} lost its keys in a restart")
        elif self._poll.awaits(client):
            self._ask(client)

    def take(self, message: Message) -> None:
        """Take a silo's answer."""
        client, attempt = message.sender - 1, self._attempt
        current = (self._kind, attempt.round, attempt.number)
        if (message.kind, message.round, message.meta.get("attempt")) != current or not self._poll.awaits(client):
            return  # late, or sent twice after a lost connection
        cause = reason(message)
        try:
            if cause is not None:
                raise attempt.error(f"silo {client + 1} skips the attempt: {cause}")
            ends = self._take(message.sender, message.tensors)
        except Exception as error:
            self._poll.settled.add(client)
            # a silo that sees too few others is not at fault
            excused = cause is not None and bool(self._lost) and self._kind not in (Kind.INCLUDED, Kind.REVEALED)
            self._fault(client, 0 if excused else 1)
            sender = f"silo {client + 1}"
            shown = error if isinstance(error, SecureError) else invalid_message(attempt.round, sender, error)
            self._members.warn(str(shown))
        else:
            self._poll.answers[client] = True
            if ends:
                self._poll.settled.update(self._poll.clients)

    def _fault(self, client: int, faults: int = 1) -> None:
        self._lost.add(client)
        self._faults[client] += faults

    def _ask(self, client: int) -> None:
        meta, tensors = self._content(client + 1)
        attempt = {"attempt": self._attempt.number}
        self._send(self._kind, client + 1, round=self._attempt.round, meta=attempt | meta, tensors=tensors)

    def _close(self) -> None:
        """End the attempt, and forget its keys."""
        self._poll = Poll(self._members, [], "", {}, least=0)
        self._content, self._take = lambda rank: ({}, {}), lambda rank, received: None
