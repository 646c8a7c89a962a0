"""The server of a cross-silo federation: who is there, who is waited for, and what becomes of each upload.

Silo ``rank`` (from 1) is client ``rank - 1``. A silo that left is waited for ``reconnect_s``; one that missed a
deadline, or stayed away longer than that, is left out until it speaks again. All of it is time in which the server
listened, see :mod:`.clock`. Nothing here trusts what silos send.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Contribution, Data, Federation, Method, RunError

from fl_labelskew_plugins.data.fingerprint import fingerprint
from fl_labelskew_plugins.engine.aggregate import check_extra
from fl_labelskew_plugins.engine.local import LocalResult, forms
from fl_labelskew_plugins.host import Message
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.recipe.parse import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import Checkpoint
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import Session, assemble
from fl_labelskew_plugins.runtimes.messages import SERVER, Manager, upload
from fl_labelskew_plugins.runtimes.silo import facts as silos
from fl_labelskew_plugins.runtimes.silo.clock import ListeningClock
from fl_labelskew_plugins.runtimes.silo.excluded import Excluded
from fl_labelskew_plugins.runtimes.silo.facts import Facts
from fl_labelskew_plugins.runtimes.silo.flood import Flood
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.outliers import Judge, norms
from fl_labelskew_plugins.runtimes.transport import Kind, reason
from fl_labelskew_plugins.tensors import joined, num_bytes, trim

SLACK = 2**20
"""Bytes of a message beside its tensors' own, at most."""
NOTHING = (status.RUNNING, "", list[int])
VISITS = 5
"""Lines a minute about a silo that comes and goes."""
HEAVY = 0.9
"""Share of a round's weight that one silo alone is warned of from."""


class SiloServer(Manager):
    """Rank 0 of a cross-silo federation.

    Args:
        args: the host's arguments.
        transport: where silos connect.
        recipe: what to run.
        checkpoint: where an earlier server of this run stood.
        say: told in a line what happens to silos.
        go_on: how to go on with the run, for messages.
        folder: the run's, where the operator says which silos are excluded.
        warn: told, in place of ``say``, what an operator should look at.
        tell: given what ``labelskew status`` is to know.
        seen: what has been seen of each silo so far.
    """

    def __init__(
        self,
        args: Any,
        transport: ServerTransport,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        say: Callable[[str], None],
        go_on: str,
        folder: Path,
        *,
        warn: Callable[[str], None] | None = None,
        tell: Callable[..., None] = lambda **facts: None,
        seen: status.Silos | None = None,
    ) -> None:
        self.recipe, self.say, self.warn, self.go_on = recipe, say, warn or say, go_on
        self.num_silos = recipe.train.client_num_in_total
        self.quorum = recipe.comm.quorum(recipe.train.clients_per_round)
        super().__init__(args, transport, SERVER, self.num_silos + 1)
        self.clock = ListeningClock(transport, self._tell)
        self._tell_status, self._seen = tell, seen or status.Silos([""] * self.num_silos)
        self._wanted: tuple[str, str, Callable[[], Iterable[int]]] = NOTHING
        self.sizes = [0] * self.num_silos if checkpoint is None else list(checkpoint.sizes)
        self.session: Session | None = None
        self.rounds: Rounds | None = None
        self._expected = {k for k in range(self.num_silos) if checkpoint is None or self.sizes[k]}
        self._form: tuple[tuple[int, ...], int]
        self._class_names: list[str] | None = None
        self._classes: str | None = None
        self._facts: dict[int, Facts] = {}
        self._processes: dict[int, Any] = {}
        self._present: set[int] = set()
        self._left_at: dict[int, float] = {}
        self._away: set[int] = set()
        self._turned: dict[int, str] = {}
        self._openings: dict[int, Contribution] = {}
        self._excluded = Excluded(folder, self.num_silos, say, transport.audit.note)
        self._round = -1
        self._asked: set[int] = set()
        self._arrived: dict[int, LocalResult] = {}
        self._settled: set[int] = set()
        self._held: set[int] = set()
        self._heavy: set[tuple[int, int]] = set()
        self._taken: dict[int, int] = {}
        self._done: set[int] = set()
        self._news: dict[str, torch.Tensor] = {}
        self._final: dict[str, torch.Tensor] | None = None
        self._over = checkpoint is not None and checkpoint.round == recipe.train.comm_round
        self._flood = Flood(say)

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """Silos that come and go, and what they send."""
        return {
            Kind.HELLO: self._hello,
            Kind.OPENING: self._opening,
            Kind.UPLOAD: self._upload,
            Kind.FAILED: self._failed,
            Kind.FINISH: lambda message: self._done.add(message.get_sender_id() - 1),
            Kind.LEFT: self._left,
            Kind.REFUSED: self._refused,
        }

    # -- before the first round

    def gather(self) -> Session:
        """Wait until every silo has come, or for the quorum time; then build what the server needs.

        Raises:
            RunError: too few came.
        """
        seconds = self.recipe.comm.quorum_timeout_s
        self._read_excluded()
        test = silos.test_data(self.recipe)
        self._form = silos.form(self.recipe, test)
        if (names := silos.server_classes(self.recipe, test)) is not None:
            self._class_names, self._classes = names, silos.digest(names)
        if self._over:  # who has not heard so may still come
            self._left_at = dict.fromkeys(self._expected, self.clock.now)
            self.say(f"all rounds are done; waiting up to {self.recipe.comm.reconnect_s:g} s for silos to be told so")
        else:
            self._wait_for_silos(seconds)
        self.session = server_session(self.recipe, test, self.sizes)
        self._count_classes()
        return self.session

    def _wait_for_silos(self, seconds: float) -> None:
        until = self.clock.now + seconds
        self._wanted = (
            status.WAITING,
            "to connect",
            lambda: self._expected - self._excluded.clients.keys() - self._present,
        )
        while True:
            self._read_excluded()
            if self._expected - self._excluded.clients.keys() <= self._present or not self.clock.listen(until):
                break
        here = self._present - self._excluded.clients.keys()
        if len(here) < self.quorum:
            raise RunError(
                f"{len(here)} of at least {self.quorum} silos came within {seconds:g} s "
                f"(comm_args.min_clients, quorum_timeout_s){self._excluded}"
            )
        self._away |= self._expected - self._present
        for client in sorted(self._away - self._excluded.clients.keys()):
            self.warn(f"silo {client + 1} has not come; going on without it")

    # -- the rounds

    def train(self, record: Record) -> None:
        """All rounds that are left, then the end for everybody."""
        assert self.session is not None  # gather() comes first
        self.record = record
        self.transport.audit.note("run", run=record.run)
        self.rounds = Rounds(self.args, self.session, record)
        self._judge = Judge(self.recipe.comm.max_update_ratio, record.norms)
        if self._excluded.clients:
            self.rounds.server.federation = self._federation(self._excluded.clients)
        self.session.start = forms(self.session.start)  # the weights are the record's, and will be others
        weights = num_bytes(self.rounds.server.weights.values())
        shapes = self.rounds.server.contribution_shapes()
        extra = sum(8 * int(np.prod(shape)) for shape in shapes.values())
        self.transport.limits[Kind.UPLOAD] = weights + extra + SLACK
        for client in sorted(self._present):
            self._welcome(client)
        try:
            if self._has_opening and (record.checkpoint is None or self._has_to_open_again):
                self._exchange_openings()
            self.rounds.run(self)
            self._finish()
        finally:
            self._flood.close()

    @property
    def _has_opening(self) -> bool:
        return type(self.recipe.method).opening is not Method.opening

    @property
    def _has_to_open_again(self) -> bool:
        """Whether an excluded silo's opening is in what a resumed run shares, and everybody else's is at hand."""
        assert self.rounds is not None
        opened = set(self.rounds.server.opened)
        kept = opened - self._excluded.clients.keys()
        return kept < opened and kept <= self._present

    def _exchange_openings(self) -> None:
        """The opening exchange: a round in which everybody who is there is asked, by WELCOME, and nobody trains."""
        for _ in self._answers(sorted(self._present - self._excluded.clients.keys()), self._openings, "openings"):
            pass
        self._open()

    def _open(self) -> None:
        """Make what all silos share from all openings that came so far."""
        assert self.rounds is not None
        self.rounds.server.federation = self._federation(self._excluded.clients)
        self.rounds.server.open(
            [self._openings[k] for k in sorted(self._openings.keys() - self._excluded.clients.keys())]
        )

    def invite(self, round: int, clients: list[int]) -> list[int]:
        """Those of the sampled clients that are there; waits for who has just left, and for the quorum.

        In the place of a client that is excluded another one is drawn, where there is one.

        Raises:
            RunError: too few of them are there.
        """
        assert self.rounds is not None
        seconds = self.recipe.comm.quorum_timeout_s
        until, over = self.clock.now + seconds, False
        sampled, needed = clients, min(self.quorum, len(clients))
        self._wanted = status.WAITING, "to come back", lambda: [k for k in clients if k not in self._present]
        while True:
            self._read_excluded()
            clients = self._excluded.replaced(sampled, round, self.recipe.common.random_seed)
            here = [k for k in clients if k in self._present and k not in self._away]
            returning = not over and any(self._may_return(k) for k in clients)
            if not returning and len(here) >= needed:
                break
            if over:
                raise RunError(
                    f"round {round + 1}: {len(here)} of at least {needed} silos are there after {seconds:g} s "
                    f"(comm_args.min_clients, quorum_timeout_s){self._excluded}; {self.go_on}"
                )
            over = not self.clock.listen(until)
        self._round = round
        for client in clients:
            if client in self._left_at and client not in self._away:
                self._give_up(client, f"did not come back within {self.recipe.comm.reconnect_s:g} s")
        # of a resumed run, those whose openings are in it have to be here again first
        opened, openings = set(self.rounds.server.opened), self._openings.keys() - self._excluded.clients.keys()
        if openings != opened and openings >= opened - self._excluded.clients.keys():
            self._open()
        return here

    def _read_excluded(self) -> None:
        """Look up whom the operator has excluded; their samples count no more."""
        if self._excluded.read() and self.rounds is not None:
            self.rounds.server.federation = self._federation(self._excluded.clients)

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Ask these silos; yield what they send, in ascending order, once enough have answered for a quorum."""
        assert self.rounds is not None
        self._round, self._asked = round, set(clients)
        self._arrived.clear()
        self._held.clear()
        self._judge.begin(round)
        self._warn_of_heavy(clients)
        server = self.rounds.server
        self._news = joined(model=server.weights, shared=server.shared)
        for client in clients:
            self._ask(client)
        large = num_bytes(self._news.values()) > self.recipe.comm.upload_memory_mb * 2**20
        for client in self._answers(clients, self._arrived, "uploads"):
            self.record.progress.client(round, clients.index(client) + 1, len(clients))
            if large:
                trim()  # of what messages took on their way
            result = self._arrived.pop(client)
            self.record.states.select(client)
            self.record.states.note(client, round)
            yield client, result
            del result
        self._asked, self._news = set(), {}
        self.transport.audit.sync()

    def _answers(self, clients: Sequence[int], arrived: Mapping[int, object], what: str) -> Iterator[int]:
        """Wait for what these silos were asked for; who sent it, in ascending order, once it is a quorum.

        Raises:
            RunError: too few sent it in time.
        """
        comm = self.recipe.comm
        self._settled.clear()
        self._wanted = status.RUNNING, what, lambda: {*clients} - arrived.keys() - self._settled
        needed = min(self.quorum, len(clients))
        deadline = alone = self.clock.now + comm.round_deadline_s
        while len(arrived) < needed and any(k not in self._settled for k in clients if k not in arrived):
            # where nobody is waited for any more, the quorum's time begins
            waiting = [k for k in clients if k not in arrived and self._awaited(k)]
            alone = deadline if waiting else min(alone, self.clock.now)
            if not self.clock.listen(alone + comm.quorum_timeout_s):
                break
        if len(arrived) < needed:
            raise RunError(
                f"{self._where}: {len(arrived)} of at least {needed} {what} came (comm_args.min_clients, "
                f"round_deadline_s, quorum_timeout_s); {self.go_on}"
            )
        over, counted = False, 0
        self._wanted = status.RUNNING, what, lambda: {*clients} - arrived.keys() - self._settled - self._away
        for client in clients:
            while waiting := [k for k in self._before(client, clients) if k not in arrived and self._awaited(k)]:
                if over:
                    for late in waiting:
                        self._give_up(late, f"missed the deadline of {comm.round_deadline_s:g} s")
                else:
                    over = not self.clock.listen(deadline)
            self._settled.add(client)
            if client in arrived and not self._refuse(client):
                counted += 1
                yield client
        self._tell(now=True)
        if counted < needed:
            raise RunError(
                f"{self._where}: {counted} of at least {needed} {what} are left without those that were refused "
                f"(comm_args.min_clients, max_update_ratio); {self.go_on}"
            )

    def _before(self, client: int, clients: Sequence[int]) -> Sequence[int]:
        """Whose answers are awaited before this client's is taken: all, where it is to be compared with them."""
        return clients if client in self._held else [client]

    def _refuse(self, client: int) -> bool:
        """Whether a client's upload is out of all proportion; it is then gone, and both sides are told."""
        why = self._judge.objection(client) if client in self._held else ""
        if why:
            del self._arrived[client], self._taken[client]
            limit = f"more than {self.recipe.comm.max_update_ratio:g} times as much (comm_args.max_update_ratio)"
            self.warn(f"{self._where}: upload of silo {client + 1} refused: {why}; that is {limit}")
            meta = {"taken": False, "reason": f"a norm of it is {limit} as at the others and at this silo before"}
            self.send(Kind.VERDICT, client + 1, round=self._round, meta=meta)
        return bool(why)

    def _warn_of_heavy(self, clients: Sequence[int]) -> None:
        """Say it where one silo has most of a round's weight, once for each number of samples."""
        assert self.rounds is not None
        sizes = [self.sizes[client] for client in clients]
        shares = self.rounds.server.shares(sizes) if len(clients) > 1 else []
        for client, size, share in zip(clients, sizes, shares, strict=False):
            if share > HEAVY * sum(shares) and (client, size) not in self._heavy:
                self._heavy.add((client, size))
                log.warn(
                    f"silo {client + 1} has {100 * share / sum(shares):.4g} % of the weight of {self._where}: "
                    f"it says that it has {size} of {sum(sizes)} training samples"
                )

    @property
    def _where(self) -> str:
        return f"round {self._round + 1}" if self._round >= 0 else "opening exchange"

    def _awaited(self, client: int) -> bool:
        """Whether an answer may still come; a silo that has been gone too long is given up here."""
        if client in self._settled or client in self._away:
            return False
        if not self._reachable(client):
            self._give_up(client, f"did not come back within {self.recipe.comm.reconnect_s:g} s")
            return False
        return True

    def _reachable(self, client: int) -> bool:
        return client in self._present or self._may_return(client)

    def _may_return(self, client: int) -> bool:
        if client in self._present or client in self._away or client not in self._left_at:
            return False
        return self.clock.now - self._left_at[client] < self.recipe.comm.reconnect_s

    def _give_up(self, client: int, why: str) -> None:
        self._away.add(client)
        self.warn(f"{self._where}: silo {client + 1} {why}; left out until it speaks again")

    def _ask(self, client: int) -> None:
        states = self.record.states
        self.send(
            Kind.TRAIN,
            client + 1,
            round=self._round,
            meta={
                "times_selected": states.times_selected(client) + 1,
                "state_round": states.committed.get(client, -1),
                "kept_rounds": states.kept(client),
                "personalised": self.record.personalised and self.record.tests(self._round),
            },
            tensors=self._news,
        )

    def _finish(self) -> None:
        """Tell everybody, until they say that they know; who has just left gets its chance to come back."""
        assert self.rounds is not None
        self._round, self._asked = -1, set()
        self._final = joined(model=self.rounds.server.weights)
        for client in sorted(self._present):
            self._bid_farewell(client)
        until = self.clock.now + self.recipe.comm.reconnect_s
        everybody = set(range(self.num_silos)) - (self._excluded.clients.keys() - self._present)
        self._wanted = status.RUNNING, "to hear of the end", lambda: filter(self._reachable, everybody - self._done)
        while any(map(self._reachable, everybody - self._done)) and self.clock.listen(until):
            pass
        self._tell(now=True)

    def _bid_farewell(self, client: int) -> None:
        assert self._final is not None
        last = self.record.states.committed.get(client, -1)
        self.send(Kind.FINISH, client + 1, meta={"done": True, "state_round": last}, tensors=self._final)

    # -- what silos send

    def _hello(self, message: Message) -> None:
        client, meta = message.get_sender_id() - 1, message.get("meta")
        try:
            told = silos.facts(meta)
            self._compare(client, told)
            if told.samples > (most := self.recipe.comm.max_samples):
                raise RunError(
                    f"it says that it has {told.samples} training samples, and {most} are allowed at most "
                    "(comm_args.max_samples of the server)"
                )
            if self.sizes[client] and self.sizes[client] != told.samples:
                raise RunError(f"it had {self.sizes[client]} training samples when the run began, now {told.samples}")
        except silos.OtherClassesError as error:
            self._turn_away(client, str(error), {"class_names": self._class_names})
            return
        except RunError as error:
            self._turn_away(client, str(error))
            return
        new = self.sizes[client] == 0 and self.session is not None
        same_process = self._processes.get(client) == meta.get("process")
        self._facts[client], self._processes[client] = told, meta.get("process")
        self.sizes[client] = told.samples
        self._present.add(client)
        self._left_at.pop(client, None)
        self._away.discard(client)
        self._turned.pop(client, None)
        self._flood.tell(f"silo {client + 1}", f"is here ({len(self._present)} of {self.num_silos})", most=VISITS)
        if self.rounds is None:
            return
        if new:
            self._admit(client)
        if self._final is not None:
            self._bid_farewell(client)
            return
        self._welcome(client)
        waiting = client in self._asked and client not in self._settled and client not in self._arrived
        if waiting and not (same_process and meta.get("round") == self._round):
            self._ask(client)

    def _compare(self, client: int, told: Facts) -> None:
        shape, classes = self._form
        if (told.input_shape, told.num_classes) != (shape, classes):
            raise RunError(
                f"its samples are {told.input_shape} of {told.num_classes} classes, the federation's {shape} of "
                f"{classes}; use such data"
            )
        if self._classes is not None and told.classes not in (None, self._classes):
            raise silos.OtherClassesError("its classes are not the server's, in name or in order")
        others = [k for k, facts in sorted(self._facts.items()) if None not in (facts.classes, told.classes)]
        if self._classes is None and (apart := [k for k in others if self._facts[k].classes != told.classes]):
            what = f"names its classes otherwise than silo {apart[0] + 1}, and which is right is not known here"
            self._flood.tell(f"silo {client + 1}", f"{what}; compare their data_args", say=self.warn)

    def _turn_away(self, client: int, why: str, more: Mapping[str, Any] | None = None) -> None:
        self._present.discard(client)
        self._away.add(client)
        self._turned[client] = why
        self._flood.tell(f"silo {client + 1}", f"turned away: {why}", say=self.warn)
        self.send(Kind.FINISH, client + 1, meta={"done": False, "reason": why, **(more or {})})

    def _admit(self, client: int) -> None:
        """A silo that was not there when the run began joins from the next round on."""
        assert self.session is not None
        self.session.sizes[client] = self.sizes[client]
        self._count_classes()

    def _count_classes(self) -> None:
        """Class counts of all silos, where they tell them."""
        assert self.session is not None
        if self.recipe.train.proxy_aggregation == "class":
            classes = self.session.federation.num_classes
            rows = [self._facts[k].counts if k in self._facts else None for k in range(self.num_silos)]
            counts = torch.tensor([row or [0] * classes for row in rows])
            self.session.counts = counts.to(self.session.trainer.device)

    def _federation(self, without: Collection[int] = ()) -> Federation:
        """The run as a whole, with the samples of all silos, or ``without`` some; of all where none is left."""
        assert self.session is not None
        known = [n for k, n in enumerate(self.sizes) if n and k not in without] or [n for n in self.sizes if n]
        return replace(self.session.federation, num_samples=sum(known), min_samples=min(known))

    def _welcome(self, client: int) -> None:
        self.send(
            Kind.WELCOME,
            client + 1,
            meta={
                "run": self.record.run,
                "federation": asdict(self._federation()),
                "settings": silos.agreed(self.recipe),
                "quorum": self.quorum,
            },
        )

    def _opening(self, message: Message) -> None:
        client, tensors = message.get_sender_id() - 1, message.get("tensors")
        if self.rounds is None or not self._has_opening:
            return  # nobody asked for it
        try:
            shapes = self.rounds.session.method.opening_shapes(self.rounds.session.federation)
            check_extra(tensors, shapes, where=f"opening of silo {client + 1}")
            self._check_counts(tensors)
        except RunError as error:
            self._turn_away(client, str(error))
            self._settled.add(client)
            return
        self._away.discard(client)
        self._openings[client] = Contribution(client, tensors)

    def _upload(self, message: Message) -> None:
        client, round = message.get_sender_id() - 1, message.get("round")
        self._away.discard(client)
        if round != self._round or client not in self._asked or client in self._settled or client in self._arrived:
            again = self._taken.get(client) == round  # sent twice, because its connection broke
            verdict = {"taken": True} if again else {"taken": False, "reason": "it came too late"}
            self.send(Kind.VERDICT, client + 1, round=round, meta=verdict)
            return
        assert self.rounds is not None
        try:
            result = upload(message.get("tensors"), message.get("meta"))
            if result.state:
                raise RunError("it holds private state")
            device = self.rounds.session.trainer.device
            result.upload = {k: v.to(device) for k, v in result.upload.items()}
            result.contributions = {k: v.to(device) for k, v in result.contributions.items()}
            self.rounds.server.check(client, round, result)
            self._check_counts(result.contributions)
        except RunError as error:
            self._settled.add(client)
            self.warn(f"round {round + 1}: upload of silo {client + 1} refused: {error}")
            self.send(Kind.VERDICT, client + 1, round=round, meta={"taken": False, "reason": str(error)})
            return
        self._arrived[client], self._taken[client] = result, round
        if self._judge.ratio is not None:
            server = self.rounds.server
            change = server.optimizer.sends_change
            if not self._judge.add(client, norms(result, server.weights, server.parameters, sends_change=change)):
                self._held.add(client)
        self.send(Kind.VERDICT, client + 1, round=round, meta={"taken": True})

    def _check_counts(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Refuse counts of more samples than a silo may have."""
        assert self.rounds is not None
        most = self.recipe.comm.max_samples
        for name, value in tensors.items():
            if self.rounds.session.method.sends.get(name) == "counts" and value.double().sum() > most:
                raise RunError(f"{name} are of more than {most} training samples (comm_args.max_samples of the server)")

    def _failed(self, message: Message) -> None:
        client = message.get_sender_id() - 1
        why = reason(message) or ""
        self._flood.tell(f"silo {client + 1}", f"cannot go on: {why}", say=self.warn)
        self._gone(client)
        self._away.add(client)

    def _left(self, message: Message) -> None:
        client = message.get_sender_id() - 1
        if client in self._present:
            self._flood.tell(f"silo {client + 1}", "has left", most=VISITS)
            self._gone(client)
        if message.get("meta").get("revoked"):  # with its certificate it cannot come back, so it is not waited for
            self._away.add(client)

    def _refused(self, message: Message) -> None:
        meta, sender = message.get("meta"), message.get_sender_id()
        peer = f"silo {sender}" if sender > 0 else "a stranger"
        self._flood.tell(peer, f"refused: {meta['reason']}", times=meta.get("times", 1), say=self.warn)

    def _gone(self, client: int) -> None:
        self._present.discard(client)
        self._left_at[client] = self.clock.now

    def _tell(self, *, now: bool = False) -> None:
        """Have the status say who is there and who is waited for: once a second, or now."""
        if self._seen.due() or now:
            state, what, missing = self._wanted
            ranks = [client + 1 for client in sorted(missing())]
            self._tell_status(
                state=state if ranks else status.RUNNING,
                waiting_for={"what": what, "silos": ranks} if ranks else None,
                silos=self._seen.rows(self._present, self._away, self._turned, self._excluded.clients),
            )


def server_session(recipe: Recipe, test: Data | None, sizes: list[int]) -> Session:
    """What a server needs of a recipe, which has no client's samples; ``test``: its own, None where it has none."""
    if test is not None:
        return replace(assemble(recipe, test, {}, {}, sizes), data=fingerprint(test))
    shape, classes = silos.form(recipe, None)
    empty = Arrays(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))
    return assemble(recipe, Data(empty, empty, [str(c) for c in range(classes)]), {}, {}, sizes)
