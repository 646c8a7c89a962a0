"""The server of a cross-silo federation: what it says to silos, and what becomes of what they say.

Silo ``rank`` (from 1) is client ``rank - 1``. Nothing here trusts what silos send. Who is there is in :mod:`.members`,
what they are asked for in :mod:`.exchanges`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Data, RunError
from torch import Tensor

from fl_labelskew_plugins.data.fingerprint import fingerprint
from fl_labelskew_plugins.data.stats import Moments
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import counted, few
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.checkpoint import Checkpoint
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import Session, assemble
from fl_labelskew_plugins.runtimes.messages import SERVER, Manager
from fl_labelskew_plugins.runtimes.silo import facts
from fl_labelskew_plugins.runtimes.silo.census import Census, OtherClassesError, form, server_classes
from fl_labelskew_plugins.runtimes.silo.exchanges import LATE, ClientTests, Opening, Uploads
from fl_labelskew_plugins.runtimes.silo.flood import Flood
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.members import Excluded, Members
from fl_labelskew_plugins.runtimes.transport import Kind, Message, reason
from fl_labelskew_plugins.tensors import State, Weights, joined, num_bytes

SLACK = 2**20
"""Bytes of a message beside its tensors' own, at most."""
VISITS = 5
"""Lines a minute about a silo that comes and goes."""


class SiloServer(Manager):
    """Rank 0 of a cross-silo federation.

    ``checkpoint`` is where an earlier server of this run stood, ``go_on`` how to go on with the run, for messages, and
    ``seen`` what has been seen of each silo so far. In ``folder`` the operator says which silos are excluded.
    """

    total: Callable[[int, Sequence[int]], tuple[list[int], Vector]] | None = None
    """What asks silos for a sum, of a server that sees sums alone; see :class:`.Rounds`."""
    transport: ServerTransport

    def __init__(
        self,
        host: Host,
        transport: ServerTransport,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        show: Progress,
        go_on: str,
        folder: RunFolder,
        seen: status.Silos,
    ) -> None:
        self.recipe, self.say, self.warn = recipe, show.note, partial(show.note, level=log.WARNING)
        self.num_silos = recipe.train.client_num_in_total
        super().__init__(host, transport, SERVER, self.num_silos + 1)
        excluded = Excluded(folder.path, self.num_silos, self.say, transport.audit.note)
        self.members = Members(recipe, transport, excluded, self._recount, self.warn, go_on, folder.tell, seen)
        self.folder = folder
        self.rounds: Rounds | None = None
        self.sizes = [0] * self.num_silos if checkpoint is None else list(checkpoint.sizes)
        self._expected = {client for client in range(self.num_silos) if checkpoint is None or self.sizes[client]}
        self._over = checkpoint is not None and checkpoint.round == recipe.train.comm_round
        self._processes: dict[int, Any] = {}
        self._done: set[int] = set()
        self._final: State | None = None
        self.pools_moments = recipe.pools_moments
        self._flood = Flood(self.say)

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """Silos that come and go, and what they send."""
        return {
            Kind.HELLO: self._hello,
            Kind.OPENING: self._take_opening,
            Kind.UPLOAD: self._take_upload,
            Kind.TESTED: self._take_test,
            Kind.FAILED: self._failed,
            Kind.FINISH: lambda message: self._done.add(message.sender - 1),
            Kind.LEFT: self._left,
            Kind.REFUSED: self._refused,
        }

    def gather(self) -> Session:
        """Wait as :meth:`meet` does; then build what the server needs."""
        test = self.meet()
        exact = self.census.exact or self.folder.exact()
        session = server_session(self.recipe, test, self.sizes, self._moments(), exact=exact)
        return replace(session, counts=self.census.class_counts(session))

    def meet(self) -> Data | None:
        """Wait until every silo has come, or for the quorum time; the server's own test data, if it has any.

        Raises:
            RunError: too few came.
        """
        self.members.read_excluded()
        test = facts.test_data(self.recipe)
        self.census = Census(
            self.recipe, test, self.sizes, partial(self._say, say=self.warn), summed=self.total is not None
        )
        if self._over:  # who has not heard so may still come
            self.members.expect(self._expected)
            self.say(f"all rounds are done; waiting up to {self.recipe.comm.reconnect_s:g} s for silos to be told so")
        else:
            self.members.gather(self._expected)
        return test

    def _moments(self) -> Moments | None:
        """Mean and std of all silos' samples, where recipe and data set know none: made once in a run."""
        if not self.recipe.pools_moments:
            return None
        silos = self.members.present - self.members.excluded
        if (made := self.folder.moments()) is None and (made := self.census.moments(silos)) is not None:
            values = " and ".join(few([f"{value:.4g}" for value in numbers], 3) for numbers in made)
            self.say(f"mean and std of the training samples of {counted(len(silos), 'silo')} together: {values}")
        return made

    def train(self, record: Record) -> None:
        """All rounds that are left, then the end for everybody."""
        self.record, session = record, record.session
        self.transport.audit.note("run", run=record.run)
        self._tests = ClientTests(self.members, self.send, self.num_silos)
        hooks = self.host.hooks(session.trainer.model)
        rounds = Rounds(record, hooks=hooks, tested=self.tested, summed=self.total)
        self._opening, self._uploads = self._exchanges(rounds)
        self.rounds = rounds
        if self.members.excluded:
            self._recount()
        weights = num_bytes(rounds.server.weights.values())
        extra = sum(8 * int(np.prod(shape)) for shape in rounds.server.contribution_shapes().values())
        self.transport.limits[Kind.UPLOAD] = weights + extra + SLACK
        for client in sorted(self.members.present):
            self._welcome(client)
        try:
            self._opening.exchange(resumed=record.next_round > 0)
            rounds.run(self)
            self._finish(joined(model=rounds.server.weights))
        finally:
            self._flood.close()

    def _exchanges(self, rounds: Rounds) -> tuple[Opening, Uploads]:
        """What silos are asked for."""
        return Opening(rounds, self.members, self.census), Uploads(rounds, self.members, self.sizes, self.send)

    def invite(self, round: int, clients: list[int]) -> list[int]:
        """Those of the sampled clients that are there, see :meth:`.Members.invite`."""
        here = self.members.invite(round, clients)
        self._opening.catch_up()
        return here

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """What these silos send, see :meth:`.Uploads.of`."""
        yield from self._uploads.of(round, clients)
        self.transport.audit.sync()

    def tested(self, weights: Weights) -> dict[str, object]:
        """What silos report of these weights on their own test parts, for a line of metrics."""
        assert self.rounds is not None
        return self.rounds.of_clients(self._tests.of(weights))

    def _finish(self, final: State) -> None:
        self._final = final
        self._uploads.close()
        self.dismiss()

    def dismiss(self) -> None:
        """Tell everybody of the end, until they say that they know; who has just left gets its chance to come back."""
        members = self.members
        members.round = -1
        for client in sorted(members.present):
            self.bid_farewell(client)
        until = members.clock.now + self.recipe.comm.reconnect_s
        everybody = set(range(self.num_silos)) - (members.excluded - members.present)
        members.wanted = status.RUNNING, "to hear of the end", lambda: filter(members.reachable, everybody - self._done)
        while any(map(members.reachable, everybody - self._done)) and members.clock.listen(until):
            pass
        members.tell(now=True)

    # -- what the server says

    def _welcome(self, client: int) -> None:
        assert self.rounds is not None
        self.send(
            Kind.WELCOME,
            client + 1,
            meta={
                "run": self.record.run,
                "federation": asdict(self.census.federation(self.rounds.session.federation)),
                "settings": facts.agreed(self.recipe),
                "quorum": self.members.quorum,
            },
            tensors=self._normalisation(),
        )

    def _normalisation(self) -> dict[str, Tensor]:
        session = self.record.session
        if not self.recipe.pools_moments:
            return {}
        pairs = {"mean": session.mean, "std": session.std}
        return {key: torch.tensor(numbers, dtype=torch.float64) for key, numbers in pairs.items()}

    def bid_farewell(self, client: int) -> None:
        """Tell a silo that it is over, with the final model."""
        last = self.record.states.committed.get(client, -1)
        self.send(Kind.FINISH, client + 1, meta={"done": True, "state_round": last}, tensors=self._final)

    def _turn_away(self, client: int, why: str, **more: Any) -> None:
        self.members.turn_away(client, why)
        self._say(client, f"turned away: {why}", self.warn)
        self.send(Kind.FINISH, client + 1, meta={"done": False, "reason": why, **more})

    def _say(self, client: int, what: str, say: Callable[[str], None] | None = None, most: int = 1) -> None:
        self._flood.tell(f"silo {client + 1}", what, most=most, say=say)

    # -- what silos send

    def _hello(self, message: Message) -> None:
        client, meta = message.sender - 1, message.meta
        try:
            reported = facts.facts(meta, summed=self.total is not None)
            self.census.check(client, reported)
            sums = facts.sums(message.tensors, reported) if self.pools_moments else None
        except RunError as error:
            other = isinstance(error, OtherClassesError)
            self._turn_away(client, str(error), **({"class_names": self.census.class_names} if other else {}))
            return
        same_process = self._processes.get(client) == meta.get("process")
        self._processes[client] = meta.get("process")
        self.census.add(client, reported, sums)
        self.members.came(client)
        self._say(client, f"is here ({len(self.members.present)} of {self.num_silos})", most=VISITS)
        if self.rounds is None:
            return
        self.rounds.session.admit(client, self.sizes[client], reported.counts)
        if self._final is not None:
            self.bid_farewell(client)
            return
        self._welcome(client)
        self._returned(client, same_process=same_process)
        if self._uploads.awaits(client) and not (same_process and meta.get("round") == self.members.round):
            self._uploads.ask(client)
        if self._tests.awaits(client):
            self._tests.ask(client)

    def _returned(self, client: int, *, same_process: bool) -> None:
        """A silo is here again in a run that is under way, and has been welcomed."""

    def _take_opening(self, message: Message) -> None:
        client = message.sender - 1
        if self.rounds is not None and self._opening.wanted:  # or nobody asked for it
            try:
                self._opening.take(client, message.tensors)
            except RunError as error:
                self._turn_away(client, str(error))

    def _take_upload(self, message: Message) -> None:
        client = message.sender - 1
        self.members.away.discard(client)
        verdict = LATE if self.rounds is None else self._uploads.take(client, message)
        if verdict is not None:
            self.send(Kind.VERDICT, client + 1, round=message.round, meta=verdict)

    def _take_test(self, message: Message) -> None:
        client = message.sender - 1
        self.members.away.discard(client)
        if self.rounds is not None:
            self._tests.take(client, message)

    def _failed(self, message: Message) -> None:
        client = message.sender - 1
        self._say(client, f"cannot go on: {reason(message) or ''}", self.warn)
        self.members.left(client)
        self.members.away.add(client)

    def _left(self, message: Message) -> None:
        client = message.sender - 1
        if client in self.members.present:
            self._say(client, "has left", most=VISITS)
            self.members.left(client)
        if message.meta.get("revoked"):  # with its certificate it cannot come back, so it is not waited for
            self.members.away.add(client)

    def _refused(self, message: Message) -> None:
        meta, sender = message.meta, message.sender
        peer = f"silo {sender}" if sender > 0 else "a stranger"
        self._flood.tell(peer, f"refused: {meta['reason']}", times=meta.get("times", 1), say=self.warn)

    # -- whose samples count

    def _recount(self) -> None:
        """The samples of excluded silos count no more."""
        if self.rounds is not None:
            whole = self.rounds.session.federation
            self.rounds.server.federation = self.census.federation(whole, self.members.excluded)


def server_session(
    recipe: Recipe, test: Data | None, sizes: list[int], moments: Moments | None = None, *, exact: bool = False
) -> Session:
    """What a server needs of a recipe, which has no client's samples.

    Args:
        recipe: what is run.
        test: the server's own test samples; None where it has none.
        sizes: training samples of each silo.
        moments: of all silos' samples, where these are made of what they send.
        exact: whether these are of uint8 samples.
    """
    data = test
    if data is None:
        shape, classes = form(recipe, None)
        dtype = np.uint8 if exact or recipe.dataset.picture_keys else np.float32
        empty = Arrays(np.zeros((0, *shape), dtype), np.zeros(0, np.int64))
        data = Data(empty, empty, server_classes(recipe, None) or [str(c) for c in range(classes)])
    if moments is not None:
        data = replace(data, mean=moments[0], std=moments[1])
    session = assemble(recipe, facts.said(recipe, data), {}, {}, sizes)
    if test is not None:
        return replace(session, data=fingerprint(test))
    # numbers of a recipe are of no use to who reads the model without the type of the samples that they are for
    known = moments is not None or (recipe.data.mean is not None and bool(recipe.dataset.picture_keys))
    return session if known else replace(session, mean=None, std=None)
