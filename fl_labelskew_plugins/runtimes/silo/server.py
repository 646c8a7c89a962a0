"""The server of a cross-silo federation. Silo ``rank`` is client ``rank - 1``; its answers are untrusted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Contribution, Data, RunError
from safetensors.torch import load_file
from torch import Tensor

from fl_labelskew_plugins.data import stats
from fl_labelskew_plugins.data.files import valid_file
from fl_labelskew_plugins.data.fingerprint import fingerprint
from fl_labelskew_plugins.engine.aggregate import check_extra, share_of_old
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import check_regular, writing
from fl_labelskew_plugins.machine.text import counted, few
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.checkpoint import Checkpoint
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import Session, assemble
from fl_labelskew_plugins.runtimes.silo import facts
from fl_labelskew_plugins.runtimes.silo.facts import Census, OtherClassesError, form, server_classes
from fl_labelskew_plugins.runtimes.silo.flood import Flood
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.members import ExcludedSilos, Members, Poll
from fl_labelskew_plugins.runtimes.silo.outliers import Judge, model_norm, norms
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Manager, Message, measures, reason, upload
from fl_labelskew_plugins.runtimes.wire import plain
from fl_labelskew_plugins.tensors import State, Weights, group, joined, num_bytes, save_atomic, trim

SLACK = 2**20  # bytes of a message without its tensors
MAX_TERMS = 20  # loss terms of a silo: it could report new names in each round
MAX_VISITS = 5  # log lines per minute about a silo that reconnects
HEAVY = 0.9  # share of a round's weight above which a warning names a silo
OPENINGS = "openings.safetensors"  # the tensors of each silo's opening message
TAKEN: dict[str, Any] = {"taken": True}
LATE: dict[str, Any] = {"taken": False, "reason": "it came too late"}


class SiloExchange:
    """One kind of request to silos, and its answers."""

    def __init__(self, server: SiloServer) -> None:
        self.server = server
        self.handlers: Mapping[Kind, Callable[[Message], None]] = {}

    @property
    def rounds(self) -> Rounds:
        """The rounds of a training server."""
        assert self.server.rounds is not None
        return self.server.rounds

    def begin(self) -> None:
        """Prepare for the first round."""

    def on_hello(self, client: int, message: Message, *, same_process: bool) -> None:
        """Handle a silo's HELLO."""


class Opening(SiloExchange):
    """The opening exchange, with WELCOME as the request."""

    def __init__(self, server: SiloServer) -> None:
        super().__init__(server)
        self._sent: dict[int, Contribution] = {}
        self._without: set[int] | None = None  # silos that did not count in the shared result
        self._file = server.folder.path / OPENINGS
        self._poll = Poll(server.members, [], "openings", self._sent)
        self.handlers = {Kind.OPENING: self._take}

    @property
    def wanted(self) -> bool:
        """Whether the method has an opening exchange."""
        return self.server.rounds is not None and self.rounds.session.method.uses("opening")

    def begin(self) -> None:
        """Read the openings that counted when a resumed run was saved."""
        if self._file.exists():
            with valid_file(self._file, "record of openings", "the file as the server has written it"):
                check_regular(self._file)
                stored = load_file(self._file)
            for client in self.rounds.server.opened:
                if tensors := group(stored, str(client)):
                    self._sent[client] = Contribution(client, tensors)

    def exchange(self, *, resumed: bool) -> None:
        """Wait for all openings, then share their result."""
        members = self.server.members
        if self.wanted and not resumed:
            members.begin(-1)
            self._poll = Poll(members, sorted(members.present - members.uncounted), "openings", self._sent)
            list(self._poll.take())
            self._share()

    def catch_up(self) -> None:
        """Share the result again if other silos count now."""
        if not self.wanted:
            return
        opened, uncounted = set(self.rounds.server.opened), self.server.members.uncounted
        sent = self._sent.keys() - uncounted
        if self._without is None:  # a resumed run
            self._without = uncounted & opened
        # a run of an earlier version may lack some until these silos connect
        if (sent != opened or uncounted != self._without) and sent >= opened - uncounted:
            self._share()

    def missed(self, client: int) -> str:
        """Reason to refuse a late silo, if any."""
        return ""

    def _take(self, message: Message) -> None:
        client = message.sender - 1
        if not self.wanted or client not in self.server.members.present:  # there was no request
            return
        session = self.rounds.session
        try:
            shapes = session.method.opening_shapes(session.federation)
            check_extra(message.tensors, shapes, where=f"opening of silo {client + 1}")
            if missing := sorted(shapes.keys() - message.tensors.keys()):
                raise RunError(f"its opening lacks {missing[0]}")
            check_counts(message.tensors, session)
        except RunError as error:
            self._poll.settled.add(client)
            self.server.turn_away(client, str(error))
            return
        self.server.members.heard(client)
        self._sent[client] = Contribution(client, message.tensors)

    def _share(self) -> None:
        server, uncounted = self.rounds.server, self.server.members.uncounted
        self._without = uncounted
        server.federation = self.server.census.federation(self.rounds.session.federation, uncounted)
        clients, total = sorted(self._sent.keys() - uncounted), server.federation.num_samples
        for client in sorted(set(range(self.server.num_silos)) - uncounted):
            if server.declared and len(clients) > 1 and (size := self.server.sizes[client]) > HEAVY * total:
                what = f"reports {size} of all {total} training samples, and silos compute their weights from these"
                self.server.warn_once(client, f"silo {client + 1} {what}")
        server.open([self._sent[client] for client in clients])
        stored = joined(**{str(client): one.tensors for client, one in self._sent.items()})
        with writing(self._file):
            save_atomic(stored, self._file)


class Uploads(SiloExchange):
    """Training rounds: the request is TRAIN, the answer UPLOAD, and the reply VERDICT."""

    total: Callable[[int, Sequence[int]], tuple[list[int], Vector]] | None = None
    """See ``summed`` of :class:`.Rounds`."""

    def __init__(self, server: SiloServer) -> None:
        super().__init__(server)
        self._poll: Poll[LocalResult]
        self._request: State
        self.close()
        self._taken: dict[int, int] = {}
        self._terms = defaultdict[int, set[str]](set)
        self._comm = server.recipe.comm
        self.handlers = {Kind.UPLOAD: self._received}

    def on_hello(self, client: int, message: Message, *, same_process: bool) -> None:
        """Repeat the request, unless the silo still works on it."""
        trains = same_process and message.meta.get("round") == self.server.members.round
        if self._poll.awaits(client) and not trains:
            self.ask(client)

    def close(self) -> None:
        """Ignore later uploads."""
        self._poll, self._request = Poll(self.server.members, [], "uploads", {}), {}

    @property
    def personalised(self) -> bool:
        """Whether silos test their own models in this round."""
        return self.rounds.record.tests_own_models(self.server.members.round)

    def ask(self, client: int) -> None:
        """Ask a silo to train."""
        states = self.rounds.record.states
        meta = {
            "times_selected": states.selections[client] + 1,
            "state_round": states.committed.get(client, -1),
            "kept_rounds": states.kept(client),
            "personalised": self.personalised,
        }
        self.server.send(Kind.TRAIN, client + 1, round=self.server.members.round, meta=meta, tensors=self._request)

    def begin(self) -> None:
        """Prepare the comparison with the round before."""
        self._judge = Judge(self._comm.max_update_ratio or math.inf, self.rounds.record.medians)

    def collect(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Ask silos to train; yield uploads in the order of clients. Raises RunError without a quorum."""
        members, record, server = self.server.members, self.rounds.record, self.rounds.server
        session = self.rounds.session
        members.begin(round)
        self._poll = poll = Poll[LocalResult](members, clients, "uploads", {})
        if self._comm.max_update_ratio is not None:
            self._judge.begin(model_norm(server.weights, server.parameters))
        self._warn_of_heavy(clients)
        self._request = plain(joined(model=server.weights, shared=server.shared))
        for client in clients:
            self.ask(client)
        large = num_bytes(self._request.values()) > self._comm.upload_memory_mb * 2**20
        declared: dict[int, float] = {}
        for client in poll.take(self._refuse):
            record.progress.client(round, clients.index(client) + 1, len(clients))
            if large:
                trim()
            result = poll.answers.pop(client)
            if server.declared:
                declared[client] = float(result.contributions[session.method.weight_name])
            record.states.select(client)
            record.states.note(client, round)
            yield client, result
            del result
        self._warn_of_declared(declared)
        for client, found in self._judge.end().items():
            text = f"{members.where}: silo {client + 1}: {found}; if the accuracy falls, exclude this silo"
            self.server.warn_once(client, text, "large")
        self.close()
        self.server.transport.audit.sync()

    def take(self, client: int, message: Message) -> dict[str, Any] | None:
        """Check and keep an upload; return the verdict, if known."""
        poll, round, members = self._poll, message.round, self.server.members
        if round != members.round or not poll.awaits(client):
            return TAKEN if self._taken.get(client) == round else LATE  # TAKEN: sent again after a lost connection
        server, session = self.rounds.server, self.rounds.session
        try:
            result = upload(message.tensors, message.meta)
            if result.state:
                raise RunError("it holds private state")
            result.upload = {k: v.to(session.trainer.device) for k, v in result.upload.items()}
            result.contributions = {k: v.to(session.trainer.device) for k, v in result.contributions.items()}
            server.check(client, round, result)
            check_counts(result.contributions, session)
        except RunError as error:
            if not self.server.recipe.common.across_silos:  # a simulation
                raise
            poll.settled.add(client)
            members.warn(f"round {round + 1}: upload of silo {client + 1} refused: {error}")
            return {"taken": False, "reason": str(error)}
        self._limit_terms(client, result.loss_terms)
        poll.answers[client], self._taken[client] = result, round
        if self._comm.max_update_ratio is not None:
            change, sends = server.optimizer.sends_change, session.method.sends
            measured = norms(result, server.weights, server.parameters, sends, sends_change=change)
            if not self._judge.add(client, measured):
                poll.compared_clients.add(client)
        return TAKEN

    def _limit_terms(self, client: int, terms: dict[str, float]) -> None:
        """Remove a silo's loss terms with new names when it has sent too many names."""
        known = self._terms[client]
        for name in list(terms):
            if len(known) < MAX_TERMS:
                known.add(name)
            elif name not in known:
                del terms[name]

    def _received(self, message: Message) -> None:
        client = message.sender - 1
        self.server.members.heard(client)
        verdict = LATE if self.server.rounds is None else self.take(client, message)
        if verdict is not None:
            self.server.send(Kind.VERDICT, client + 1, round=message.round, meta=verdict)

    def _refuse(self, client: int) -> bool:
        """Drop an upload that is much too large, with a warning and an answer to the silo; return whether it was."""
        objection = self._judge.objection(client) if client in self._poll.compared_clients else ""
        if not objection:
            return False
        members = self.server.members
        del self._poll.answers[client], self._taken[client]
        key = "(comm_args.max_update_ratio)"
        members.warn(f"{members.where}: upload of silo {client + 1} refused: {objection} {key}")
        text = f"a norm of the upload is more than {self._judge.ratio:g} times the median of the round {key}"
        self.server.send(Kind.VERDICT, client + 1, round=members.round, meta={"taken": False, "reason": text})
        return True

    def _warn_of_heavy(self, clients: Sequence[int]) -> None:
        """Warn if one silo has most of the weight of a round, or if most of a model is the old one without it."""
        sizes, server, where = self.server.sizes, self.rounds.server, self.server.members.where
        samples = [sizes[client] for client in clients]
        shares = server.shares(samples)
        of_classes = self.server.recipe.train.proxy_aggregation == "class"  # class counts weight the classifier's rows
        weights = samples if of_classes else shares
        for client, weight in zip(clients, weights, strict=True):
            if len(clients) > 1 and weight > HEAVY * sum(weights):
                text = f"silo {client + 1} has {100 * weight / sum(weights):.4g} % of the weight of {where}"
                reported = f"this silo reports {sizes[client]} of all {sum(samples)} training samples"
                self.server.warn_once(client, f"{text}: {reported}")
        total = server.federation.num_samples
        if (rest := share_of_old(shares)) > HEAVY:
            for client, size in enumerate(sizes):
                if client not in clients and (1 - HEAVY) * total < size <= total:
                    text = f"{100 * rest:.4g} % of {where}'s model is the old one without silo {client + 1}"
                    reported = f"this silo reports {size} of all {total} training samples"
                    self.server.warn_once(client, f"{text}: {reported}", "absent")

    def _warn_of_declared(self, weights: Mapping[int, float]) -> None:
        total, where = added(weights.values()), self.server.members.where
        for client, weight in weights.items():
            if len(weights) > 1 and weight > HEAVY * total:
                text = f"silo {client + 1} has {100 * weight / total:.4g} % of the weight of {where}"
                reported = f"this silo declares the weight {weight:.4g}, and all silos together {total:.4g}"
                self.server.warn_once(client, f"{text}: {reported}", "declared")


class ClientTests(SiloExchange):
    """Accuracy of the global model on the silos' own test splits."""

    def __init__(self, server: SiloServer) -> None:
        super().__init__(server)
        self._poll: Poll[dict[str, float]]
        self._model: State
        self._close()
        self.handlers = {Kind.TESTED: self._take}

    def on_hello(self, client: int, message: Message, *, same_process: bool) -> None:
        """Repeat the request."""
        if self._poll.awaits(client):
            self.ask(client)

    def tested(self, weights: Weights) -> Mapping[str, object]:
        """Test weights at the silos; return measures for a line of metrics."""
        return self.rounds.of_clients(self.collect(weights))

    def collect(self, weights: Weights) -> list[dict[str, float]]:
        """Test weights; return measures per silo, empty without an answer."""
        members = self.server.members
        self._model = plain(joined(model=weights))
        clients = sorted(members.present - members.skipped - members.excluded_clients)
        self._poll = Poll(members, clients, "tests", {}, least=0)
        for client in clients:
            self.ask(client)
        list(self._poll.take())
        answers = self._poll.answers
        self._close()
        return [answers.get(client, {}) for client in range(self.server.num_silos)]

    def ask(self, client: int) -> None:
        """Send the request to a silo."""
        self.server.send(Kind.TEST, client + 1, round=self.server.members.round, tensors=self._model)

    def _close(self) -> None:
        self._poll, self._model = Poll(self.server.members, [], "tests", {}), {}

    def _take(self, message: Message) -> None:
        client, members = message.sender - 1, self.server.members
        members.heard(client)
        if message.round == members.round and self._poll.awaits(client):
            try:
                self._poll.answers[client] = measures(message.meta)
            except RunError as error:
                self._poll.settled.add(client)
                members.warn(f"{members.where}: test of silo {client + 1} refused: {error}")


class TrainingExchanges(NamedTuple):
    """The exchanges of a training run."""

    opening: Opening
    uploads: Uploads
    tests: ClientTests

    @classmethod
    def single(cls, server: SiloServer) -> TrainingExchanges:
        """The exchanges without secure aggregation."""
        return cls(Opening(server), Uploads(server), ClientTests(server))


def check_counts(tensors: Mapping[str, Tensor], session: Session) -> None:
    """Raise RunError for negative counts, or more than ``max_samples``."""
    most = session.recipe.comm.max_samples
    for name, value in tensors.items():
        if session.method.sends.get(name) != "counts":
            continue
        if bool((value < 0).any()):
            raise RunError(f"{name} has negative values")
        if value.double().sum() > most:
            raise RunError(f"the sum of {name} is above {most} (comm_args.max_samples of the server)")


class SiloServer(Manager):
    """The server, rank 0; ``resume``: how to resume the run, for messages; ``seen``: rows of the status file."""

    transport: ServerTransport

    def __init__(
        self,
        host: Host,
        transport: ServerTransport,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        show: Progress,
        resume: str,
        folder: RunFolder,
        seen: status.Silos,
        exchanges: Callable[[SiloServer], Sequence[SiloExchange]] = TrainingExchanges.single,
        *,
        survey: bool = False,
    ) -> None:
        self.recipe, self.print_line, self.warn = recipe, show.note, partial(show.note, level=log.WARNING)
        self.num_silos = recipe.train.client_num_in_total
        super().__init__(host, transport, SERVER, self.num_silos + 1)
        excluded = ExcludedSilos(folder.path, self.num_silos, self.print_line, transport.audit.note)
        self.members = Members(recipe, transport, excluded, self._recount, self.warn, resume, folder.set_status, seen)
        self.folder = folder
        self.rounds: Rounds | None = None
        self.sizes = [0] * self.num_silos if checkpoint is None else list(checkpoint.sizes)
        self.failed: dict[int, str] = {}
        self.flood = Flood(self.print_line)
        self._warned = set[tuple[int, int, str]]()
        self._expected = {client for client in range(self.num_silos) if checkpoint is None or self.sizes[client]}
        self._over = checkpoint is not None and checkpoint.round == recipe.train.comm_round
        self._processes: dict[int, Any] = {}
        self._done: set[int] = set()
        self._finish_content: Callable[[int], dict[str, Any]] | None = None
        self._pools_moments = recipe.pools_moments and not survey
        self._summed = recipe.only_sums and not survey
        self.exchanges = exchanges(self)
        self.handlers = {
            Kind.HELLO: self._hello,
            Kind.FAILED: self._failed,
            Kind.FINISH: lambda message: self._done.add(message.sender - 1),
            Kind.LEFT: self._left,
            Kind.REFUSED: self._refused,
        }
        for exchange in self.exchanges:
            self.handlers |= exchange.handlers

    def receive_message(self, msg_type: int, msg_params: Message) -> None:
        """Handle a message. After a silo was turned away, handle only its HELLO and the end of its connection."""
        kind = Kind(msg_type)
        allowed = kind in (Kind.HELLO, Kind.FINISH, Kind.LEFT, Kind.REFUSED)
        if allowed or msg_params.sender - 1 not in self.members.refusal_reasons:
            super().receive_message(msg_type, msg_params)

    def gather(self) -> Session:
        """Wait for the silos; build the server's session."""
        test = self.wait_for_silos()
        exact = self.census.exact or self.folder.exact()
        session = server_session(self.recipe, test, self.sizes, self._moments(), exact=exact)
        return replace(session, counts=self.census.class_counts(session))

    def wait_for_silos(self) -> Data | None:
        """Wait for the silos; return the server's test data, if any. Raises RunError for too few silos."""
        self.members.read_excluded()
        test = facts.test_data(self.recipe)
        warn = partial(self.print_event, print_line=self.warn)
        self.census = Census(self.recipe, test, self.sizes, warn, summed=self._summed)
        if self._over:  # silos that have not heard of the end may still connect
            self.members.expect(self._expected)
            seconds = self.recipe.comm.reconnect_s
            self.print_line(f"all rounds are done; waiting up to {seconds:g} s to notify the silos")
        else:
            self.members.gather(self._expected)
        return test

    def _moments(self) -> stats.Moments | None:
        """Mean and std of all silos' samples, if needed; computed once per run."""
        if not self.recipe.pools_moments:
            return None
        silos = self.members.present - self.members.excluded_clients
        if (made := self.folder.moments()) is None and (made := self.census.moments(silos)) is not None:
            values = " and ".join(few([f"{value:.4g}" for value in numbers], 3) for numbers in made)
            self.print_line(f"mean and std of the training samples of {counted(len(silos), 'silo')} together: {values}")
            for client, most in self.census.unusual_moments(silos):
                if most:
                    what = "and the other silos report means or stds of their samples that do not fit together"
                    use = "check the data of all silos, exclude the wrong one, and begin a new run"
                else:
                    what = "reports a mean or std of its samples that makes the common ones useless for the other silos"
                    use = "check its data, or exclude it and begin a new run"
                self.print_line(f"silo {client + 1} {what}; {use}", level=log.WARNING)
            if 0 < len(floats := self.census.inexact) < len(silos):
                who = few([str(client + 1) for client in floats], 5)
                what = f"float samples at silo {who}, uint8 samples at all others"
                self.print_line(f"{what}: the published model will expect floats", level=log.WARNING)
        return made

    def train(self, record: Record) -> None:
        """Run the remaining rounds, then end the run at all silos."""
        self.record, session = record, record.session
        self.transport.audit.note("run", run=record.run)
        assert isinstance(self.exchanges, TrainingExchanges)
        opening, uploads, tests = self.exchanges
        self._opening, self._uploads = opening, uploads
        hooks = self.host.hooks(session.trainer.model)
        self.rounds = rounds = Rounds(record, hooks=hooks, tested=tests.tested, summed=uploads.total)
        for exchange in self.exchanges:
            exchange.begin()
        if self.members.excluded_clients:
            self._recount()
        weights = num_bytes(rounds.server.weights.values())
        extra = sum(8 * int(np.prod(shape)) for shape in rounds.server.contribution_shapes().values())
        self.transport.limits[Kind.UPLOAD] = weights + extra + SLACK
        for client in sorted(self.members.present):
            self.welcome(client)
        try:
            opening.exchange(resumed=record.next_round > 0)
            rounds.run(self)
            uploads.close()
            final, last = plain(joined(model=rounds.server.weights)), record.states.committed
            meta = {"done": True, "rounds": record.next_round}
            self.finish(lambda client: {"meta": {**meta, "state_round": last.get(client, -1)}, "tensors": final})
        finally:
            self.flood.close()

    def invite(self, round: int, clients: list[int]) -> list[int]:
        """See :meth:`.Members.invite`."""
        here = self.members.invite(round, clients)
        self._opening.catch_up()
        return here

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """See :meth:`Uploads.collect`."""
        return self._uploads.collect(round, clients)

    def finish(self, content: Callable[[int], dict[str, Any]]) -> None:
        """Send FINISH with ``content(client)`` to all silos, and wait for their answers."""
        members, self._finish_content = self.members, content
        members.round = -1
        for client in sorted(members.present):
            self.send(Kind.FINISH, client + 1, **content(client))
        until = members.clock.now + self.recipe.comm.reconnect_s
        everybody = set(range(self.num_silos)) - (members.excluded_clients - members.present)
        what = "to acknowledge the end"
        members.wanted = status.RUNNING, what, lambda: filter(members.reachable, everybody - self._done)
        while any(map(members.reachable, everybody - self._done)) and members.clock.listen(until):
            pass
        members.write_status(now=True)

    def welcome(self, client: int) -> None:
        """Send WELCOME, or turn a late silo away."""
        assert self.rounds is not None
        session = self.record.session
        if reason := self._opening.missed(client):
            self.turn_away(client, reason)
            return
        whole = self.census.federation(self.rounds.session.federation, self.members.uncounted - {client})
        meta = {
            "run": self.record.run,
            "federation": asdict(whole),
            "settings": facts.agreed(self.recipe),
            "quorum": self.members.quorum,
        }
        pairs = {"mean": session.mean, "std": session.std} if self.recipe.pools_moments else {}
        tensors = {key: torch.tensor(numbers, dtype=torch.float64) for key, numbers in pairs.items()}
        self.send(Kind.WELCOME, client + 1, meta=meta, tensors=tensors)

    def turn_away(self, client: int, reason: str, **more: Any) -> None:
        """Refuse a silo; ``more``: further content of its FINISH."""
        self.members.turn_away(client, reason)
        self._recount()
        self.print_event(client, f"turned away: {reason}", self.warn)
        self.send(Kind.FINISH, client + 1, meta={"done": False, "reason": reason, **more})

    def print_event(
        self, client: int, event: str, print_line: Callable[[str], None] | None = None, most: int = 1
    ) -> None:
        """Print an event of a silo, the same one at most ``most`` times per minute."""
        self.flood.print_event(f"silo {client + 1}", event, most=most, print_line=print_line)

    def warn_once(self, client: int, text: str, cause: str = "") -> None:
        """Warn about a silo, once per number of its samples and cause."""
        key = (client, self.sizes[client], cause)
        if key not in self._warned:
            self._warned.add(key)
            log.warn(text)

    def _hello(self, message: Message) -> None:
        client, meta = message.sender - 1, message.meta
        try:
            reported = facts.facts(meta, summed=self._summed)
            self.census.check(client, reported)
            sums = facts.sums(message.tensors, reported, pixels=self.census.pixels) if self._pools_moments else None
        except RunError as error:
            names = {"class_names": self.census.class_names} if isinstance(error, OtherClassesError) else {}
            self.turn_away(client, str(error), **names)
            return
        same_process = self._processes.get(client) == meta.get("process")
        self._processes[client] = meta.get("process")
        self.census.add(client, reported, sums)
        uncounted = client in self.members.refusal_reasons
        self.members.joined(client)
        if uncounted:
            self._recount()
        self.print_event(client, f"has connected ({len(self.members.present)} of {self.num_silos})", most=MAX_VISITS)
        if self.rounds is not None:
            self.rounds.session.admit(client, self.sizes[client], reported.counts)
        if self._finish_content is not None:
            self.send(Kind.FINISH, client + 1, **self._finish_content(client))
            return
        if self.rounds is not None:
            self.welcome(client)
        for exchange in self.exchanges:
            exchange.on_hello(client, message, same_process=same_process)

    def _failed(self, message: Message) -> None:
        client, cause = message.sender - 1, reason(message)
        self.failed[client] = cause or "it has stopped"
        self.print_event(client, f"stopped: {cause or ''}", self.warn)
        self.members.left(client)
        self.members.skipped.add(client)

    def _left(self, message: Message) -> None:
        client = message.sender - 1
        if client in self.members.present:
            self.print_event(client, "has disconnected", most=MAX_VISITS)
            self.members.left(client)
        if message.meta.get("revoked"):  # it cannot reconnect
            self.members.skipped.add(client)

    def _refused(self, message: Message) -> None:
        meta, sender = message.meta, message.sender
        peer = f"silo {sender}" if sender > 0 else "a stranger"
        self.flood.print_event(peer, f"refused: {meta['reason']}", times=meta.get("times", 1), print_line=self.warn)

    def _recount(self) -> None:
        if self.rounds is not None:
            whole = self.rounds.session.federation
            self.rounds.server.federation = self.census.federation(whole, self.members.uncounted)


def server_session(
    recipe: Recipe, test: Data | None, sizes: list[int], moments: stats.Moments | None = None, *, exact: bool = False
) -> Session:
    """The server's session; ``moments``: of the silos; ``exact``: their samples are uint8."""
    data = test
    if data is None:
        shape, classes = form(recipe, None)
        dtype = np.uint8 if exact or recipe.dataset.picture_keys else np.float32
        empty = Arrays(np.zeros((0, *shape), dtype), np.zeros(0, np.int64))
        data = Data(empty, empty, server_classes(recipe, None) or [str(c) for c in range(classes)])
    if moments is not None:
        data = replace(data, mean=moments[0], std=moments[1])
    mean, std = (None if value == "data" else value for value in (recipe.data.mean, recipe.data.std))
    session = assemble(recipe, stats.normalised(data, mean, std), {}, {}, sizes)
    if test is not None:
        return replace(session, data=fingerprint(test))
    # the recipe's mean and std are useless if the type of the samples is unknown
    known = moments is not None or (recipe.data.mean is not None and bool(recipe.dataset.picture_keys))
    return session if known else replace(session, mean=None, std=None)
