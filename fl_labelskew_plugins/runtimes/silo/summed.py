"""Server and silo with ``comm_args.secure_aggregation``.

Silos train and report that they are ready; then :mod:`.secure` computes the sum of their vectors.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from fl_labelskew_registry import Federation, LabelSkewError, RunError, shareable
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.engine.aggregate import check_upload
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.ring import Ring, Vector
from fl_labelskew_plugins.engine.sums import VECTOR, Sums, as_tensor, as_vector
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import read_text
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.recipe.conflicts import fewest_summed
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.privacy import MULTIPLIER, fewest_opened
from fl_labelskew_plugins.runs.session import Session
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.silo.client import Answers, SiloClient, described
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.silo.facts import Facts, agreed
from fl_labelskew_plugins.runtimes.silo.guard import request_digest
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.members import Poll
from fl_labelskew_plugins.runtimes.silo.secure import wire
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.answering import SiloSums
from fl_labelskew_plugins.runtimes.silo.secure.asking import ServerSums
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, SecureError, Sizes, listed, number_of_test
from fl_labelskew_plugins.runtimes.silo.secure.identity import Authority, Identity
from fl_labelskew_plugins.runtimes.silo.secure.masks import POINT
from fl_labelskew_plugins.runtimes.silo.secure.silo import SiloRound
from fl_labelskew_plugins.runtimes.silo.server import (
    LATE,
    TAKEN,
    ClientTests,
    Opening,
    SiloServer,
    TrainingExchanges,
    Uploads,
)
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message
from fl_labelskew_plugins.runtimes.wire import plain
from fl_labelskew_plugins.tensors import Weights, joined

NOISE = "adds only noise to the sum of this round"
MAX_LINES = 20  # warnings of one kind per minute
OPENED = "opened.json"  # the opening sum, its numbers of training and test samples, and its clients


class SummedOpening(Opening):
    """The opening exchange as one sum per run: a second one could reveal one silo's numbers."""

    def __init__(self, server: SiloServer, sums: ServerSums) -> None:
        super().__init__(server)
        self._sums, self._file = sums, server.folder.path / OPENED
        self.handlers = {}

    @property
    def content(self) -> dict[str, Any]:
        """Content of :data:`OPENED`; empty before the opening sum."""
        return json.loads(read_text(self._file)) if self._file.exists() else {}

    @property
    def clients(self) -> list[int]:
        """Clients of the opening sum, if any."""
        return list(self.content.get("clients", []))

    def begin(self) -> None:
        """Read the samples of a resumed run."""
        if self.clients:
            self._set_samples(self.content["samples"])

    def exchange(self, *, resumed: bool) -> None:
        """Compute the sum, or read the stored one before the first checkpoint."""
        server, members, known = self.rounds.server, self.server.members, self.content
        sums, clock = sums_of(self.rounds.session), members.clock
        if known:
            if self.rounds.session.method.uses("opening") and not server.opened:
                if "sum" not in known:
                    what = "an earlier version has written it before the first round was complete; begin a new run"
                    raise LabelSkewError(f"{self._file}: {what}")
                vector = np.frombuffer(bytearray.fromhex(known["sum"]), sums.opening.zeros().dtype)
                server.open_sum(vector, known["clients"])
            return
        members.begin(OPENING)

        def participants(without: Collection[int]) -> list[int]:
            until = clock.now + members.comm.quorum_timeout_s
            while True:
                here = members.present - members.excluded_clients - set(without)
                if len(here) >= members.fewest_opened or not clock.listen(until):
                    return sorted(here)

        clients, vector = self._sums.sum_with_retries(self.server.record.run, OPENING, participants, sums.opening)
        samples, tests, _ = sums.read_opening(vector, len(clients))
        silos = listed([client + 1 for client in clients])
        if (most := len(clients) * members.comm.max_samples) < max(samples, tests) or samples < 1 or tests < 0:
            what = f"{samples} training and {tests} test samples of {silos} together"
            use = f"1 to {most} (comm_args.max_samples per silo); begin a new run without the faulty silo"
            raise RunError(f"{members.where}: {what}; allowed: {use}")
        samples, tests = server.open_sum(vector, clients)
        if tests > samples:
            log.warn(
                f"the silos report {tests} test samples and only {samples} training samples; some numbers may be wrong"
            )
        content = {"samples": samples, "test_samples": tests, "clients": clients, "sum": vector.tobytes().hex()}
        self.server.folder.write_json(OPENED, content)
        self._set_samples(samples)
        summed = counted(samples, "training sample")
        if self.server.recipe.validation.per_client and sums.noise is None:
            summed += f" and {counted(tests, 'test sample')}"  # 0 if no silo has send_measures
        self.server.print_line(f"{summed} of {silos} together")
        for client in sorted(members.present):
            self.server.welcome(client)

    def catch_up(self) -> None:
        """There is one opening sum per run."""

    def missed(self, client: int) -> str:
        """Reason to refuse a silo, if any."""
        if client in (clients := self.clients) or not clients:
            return ""
        what = "the numbers of samples were summed without this silo, and a second sum would reveal this silo's number"
        return f"{what}; begin a new run"

    def _set_samples(self, samples: int) -> None:
        census, server, sums = self.server.census, self.rounds.server, sums_of(self.rounds.session)
        census.samples = samples
        server.federation = census.federation(server.federation)
        sums.trainer, sums.clients = replace(sums.trainer, federation=server.federation), len(self.clients)


class SummedUploads(Uploads):
    """Silos that are ready, and the sum of their vectors."""

    def __init__(self, server: SiloServer, sums: ServerSums) -> None:
        super().__init__(server)
        self._sums = sums
        self._ready: dict[int, LocalResult] = {}
        self._restarted = False
        self.handlers = {**self.handlers, **dict.fromkeys(wire.STEPS, self._take_step)}

    def total(self, round: int, clients: Sequence[int]) -> tuple[list[int], Vector]:
        """Ask silos to train; return the clients in the sum, and the sum. Raises RunError."""
        members, server = self.server.members, self.rounds.server
        members.begin(round)
        self._ready = {}
        self._request = plain(joined(model=server.weights, shared=server.shared))
        about = common_question(server.federation, round, self._request, personalised=self.personalised)

        def ready(without: Collection[int]) -> list[int]:
            waited, least = [k for k in clients if k not in without], min(members.quorum, len(clients))
            if len(waited) < least:
                what = f"{len(waited)} of at least {least} silos remain after failures ({members.needs})"
                raise RunError(f"{members.where}: {what}; {members.resume}")
            for client in self._ready.keys() - members.present:
                del self._ready[client]  # until it has reconnected and trained again
            try:
                return self._wait_for(waited)
            except RunError:
                if not self._restarted:
                    raise
                return self._wait_for(waited)  # a silo was ready and restarted; others may have returned meanwhile

        ring = sums_of(self.rounds.session).round
        participants, vector = self._sums.sum_with_retries(self.server.record.run, round, ready, ring, about)
        for client in clients:
            verdict = TAKEN if client in participants else {"taken": False, "reason": "it is not in the sum"}
            self.server.send(Kind.VERDICT, client + 1, round=round, meta=verdict)
        states = self.rounds.record.states
        for client in participants:
            self._taken[client] = round
            states.select(client)
            states.note(client, round)
        self._ready = {}
        self.close()
        self.server.transport.audit.sync()
        return participants, vector

    def _wait_for(self, clients: list[int]) -> list[int]:
        self._poll, self._restarted = Poll(self.server.members, clients, "uploads", self._ready), False
        for client in self.server.members.present.intersection(clients) - self._ready.keys():
            self.ask(client)
        return list(self._poll.take())

    def on_hello(self, client: int, message: Message, *, same_process: bool) -> None:
        """Ask a restarted silo again, because its vector is lost."""
        if not same_process and self._ready.pop(client, None) is not None:
            self._restarted = True
        self._sums.handle_reconnect(client, same_process=same_process)
        super().on_hello(client, message, same_process=same_process)

    def take(self, client: int, message: Message) -> dict[str, Any] | None:
        """Note that a silo is ready; the verdict follows the sum."""
        members = self.server.members
        if message.round == members.round and client in self._ready:
            return None  # sent twice after a lost connection
        if message.round != members.round or not self._poll.awaits(client):
            return TAKEN if self._taken.get(client) == message.round else LATE
        if message.tensors or message.meta:
            self._poll.settled.add(client)
            what = f"silo {client + 1} sends its upload without secure aggregation; use the same recipe everywhere"
            members.warn(f"round {message.round + 1}: {what}")
            return {"taken": False, "reason": what}
        self._poll.answers[client] = LocalResult({}, {}, {}, {})
        return None

    def _take_step(self, message: Message) -> None:
        self.server.members.heard(message.sender - 1)
        self._sums.take(message)


class SummedTests(ClientTests):
    """Accuracy on all silos' test splits together."""

    def __init__(self, server: SiloServer, sums: ServerSums, opening: SummedOpening) -> None:
        super().__init__(server)
        self._sums, self._opening = sums, opening

    def tested(self, weights: Weights) -> Mapping[str, object]:
        """The accuracy, if all silos of the opening are in the sum.

        Sums that differ in one silo would reveal about how many of its answers are right.
        """
        members, sums, run = self.server.members, sums_of(self.rounds.session), self.server.record.run
        self.collect(weights)
        tests, clients, round = self._opening.content.get("test_samples", 0), self._opening.clients, members.round
        missing = set(clients) - (members.present - members.skipped - members.excluded_clients)
        if not tests or sums.right is None:
            return {}
        try:
            if missing:
                raise SecureError(f"{members.where}: {listed([client + 1 for client in missing])} missing")
            about = common_question(self.rounds.server.federation, round, joined(model=weights))
            _, vector = self._sums.total(run, number_of_test(round), clients, sums.right, about)
        except SecureError as error:
            what = "no accuracy in this round, because its sum must include all silos of the opening exchange"
            self.server.warn(f"{error}; {what}")
            return {}
        right = sums.read_tested(vector)
        if not 0 <= right <= tests:
            what = f"{right} right answers of {tests} are impossible; no accuracy in this round"
            self.server.warn(f"{members.where}: {what}")
            return {}
        return metrics.pooled(right, tests)


def exchanges(server: SiloServer) -> TrainingExchanges:
    """The exchanges of a server that sees only sums."""
    for warning in weaknesses(server.recipe):
        server.warn(warning)
    transport, (_, authority) = server.transport, _identity(server.transport)
    sums = ServerSums(
        server.members, authority, server.send, transport.limits, transport.audit, sizes=sizes(server.recipe)
    )
    opening = SummedOpening(server, sums)
    return TrainingExchanges(opening, SummedUploads(server, sums), SummedTests(server, sums, opening))


class SummedAnswers(Answers):
    """Answers of a silo that sends only its part of a sum."""

    def __init__(self, silo: SiloClient) -> None:
        super().__init__(silo)
        policy, recipe = None if silo.guard is None else silo.guard.policy, silo.recipe
        silos = recipe.train.client_num_in_total
        silo.transport.limits[Kind.CHECKED] = streams.LIMIT + 3 * POINT * silos**2  # all silos' commitments
        self._several_runs = policy is not None and policy.several_runs
        self._noise = recipe.privacy.noise_multiplier is not None
        self.hides_failures = self.hides_failures or self._noise
        self.state_in_digest = not self._noise  # a lost GPU changes it
        self.tests_immediately, self._answers_at = not self._noise, 0.0
        silo.transport.quiet = self._noise
        for warning in weaknesses(recipe):
            silo.warn(warning)
        self._account, self._question = Account(silo.folder), ""
        self._last: Vector | None = None
        self._total = 0  # training samples of all silos, as first reported to this process
        self._opening: Vector | None = None  # computed once: the time would reveal the number of samples
        self._tested: tuple[int, Vector, str] | None = None
        self._data_digest = silo.data_digest  # before the silo connects, for the same reason
        self._sums = SiloSums(
            silo.rank,
            *_identity(silo.transport),
            self._account,
            self._vector,
            self._noisy if self._noise else None,
            silo.send,
            self._warn,
            silo.transport.audit,
            sizes=sizes(recipe),
        )
        self.handlers = {**self.handlers, **dict.fromkeys(wire.STEPS, self._take_step)}

    def hello(self) -> tuple[Facts, Mapping[str, Tensor]]:
        """Facts that are not summed."""
        facts, tensors = super().hello()
        return replace(facts, samples=0, counts=None), tensors

    def join(self, run: str) -> None:
        """Raise LabelSkewError if this silo answers another run."""
        if not self._several_runs:
            self._account.join(run)

    def check_total(self, federation: Any) -> None:
        """Refuse another total than before: a server could lower it until this silo refuses it."""
        total = federation.get("num_samples") if isinstance(federation, dict) else None
        if total and self._total not in (0, total):
            what = "the server reports another number of all training samples than before; restart this silo"
            raise shareable(LabelSkewError(what))
        self._total = total or self._total

    def finished(self) -> None:
        """Allow other runs from now on, if this silo was asked in all rounds, or only some train in each round."""
        run = self.silo.run_name
        if not run:
            return
        federation = self.silo.session.federation
        some = federation.clients_per_round < federation.num_clients  # only with noise
        if some or self._account.asked_rounds(run) == federation.rounds:
            self._account.leave()
        else:
            text = "this silo was not asked in all rounds, so joined_run remains; remove it to join another run"
            self._warn("the end of the run:", text)

    def open(self, session: Session, federation: Federation) -> None:
        """Check and record the data and the number of all samples; nothing else of the federation may change."""
        silo, run = self.silo, self.silo.run_name
        if federation != replace(session.federation, num_samples=federation.num_samples):
            raise shareable(LabelSkewError("the server describes the federation of this run differently than before"))
        comm, before = silo.recipe.comm, self._account.question_of(run, OPENING)
        answers = f"{silo.inputs_digest.hex()} {self._data_digest} {comm.send_contributions} {comm.send_measures}"
        tests, digest = session.reported_tests(silo.client), hashlib.blake2b(answers.encode(), digest_size=16)
        opening = f"{tests} {digest.hexdigest()}"
        if before not in ("", opening):  # the difference of two sums would be this silo's
            what = "this silo's data or settings have changed since it joined the run; begin a new run"
            raise SecureError(f"run {run}: {what}")
        self._account.ask(run, OPENING, opening)
        if samples := federation.num_samples:
            self._account.count(run, samples)
        if samples != session.federation.num_samples:
            silo.use(replace(session, federation=federation, trainer=replace(session.trainer, federation=federation)))

    def asked(self, session: Session, message: Message) -> None:
        """Record the request. Raises SecureError if it has changed in this round."""
        silo, meta, round = self.silo, message.meta, message.round
        if not session.federation.num_samples:
            raise shareable(RunError("the server asks for training before the number of all training samples is known"))
        if self._noise and (silo.upload is None or silo.upload[0] != round):
            self._answers_at = time.monotonic() + silo.recipe.comm.answers_after
        common = {"personalised": meta["personalised"] is True}
        self._question = common_question(session.federation, round, message.tensors, **common)
        before, times = meta["state_round"], meta["times_selected"]  # these differ between silos with noise
        try:
            if not self._noise:
                self._account.check_state(silo.run_name, round, before, times)
            if before >= 0 and not silo.states.has(before):
                what = f"the state of round {before + 1} is missing; begin a new run"
                raise SecureError(f"round {round + 1}: {what}", silo.states.folder)
            self._account.ask(silo.run_name, round, f"{self._question} {before} {times}")
        except SecureError as error:
            silo.transport.audit.note("sum", run=silo.run_name, round=round, reason=str(error))
            raise

    def charge(self, request: str, round: int) -> None:
        """With noise, only check the budget: masked vectors are charged."""
        if not self._noise:
            super().charge(request, round)
        elif self.silo.ledger is not None:
            self.silo.ledger.check(self.silo.revealed().upload, round=round)

    def turn(
        self, take: Callable[..., LocalResult], client: int, round: int, start: Weights, **turn: Any
    ) -> LocalResult:
        """Train; with noise, a failed turn changes nothing, because a failure would reveal data."""
        spare = self.spare_state(take, client, **turn) if self._noise else {}
        train = take if self._noise else partial(super().turn, take)
        try:
            result = train(client, round, start, **turn)
            if self._noise:  # else a private state may make all later rounds fail
                check_upload(result.upload, start, where=f"round {round + 1}")
            return result
        except Exception as error:
            if not self._noise:
                raise self._without_reason(error) from error
            self.log_hidden_failure(error, NOISE)
            return LocalResult(dict(start), {}, spare, {})

    def to_upload(self, round: int, start: Weights, result: LocalResult) -> LocalResult:
        """The vector for the sum."""
        sums, measures = sums_of(self.silo.session), self.silo.recipe.comm.send_measures
        try:
            start = {name: start[name].to(value.device) for name, value in result.upload.items()}
            vector = sums.encode_update(self.silo.client, round, start, result, measures=measures)
        except Exception as error:
            if not self._noise:
                raise self._without_reason(error) from error
            self.log_hidden_failure(error, NOISE)
            vector = sums.round.zeros()
            vector[:] = 0  # touch the memory now, not later
        self._last = vector  # freed in the next turn: the time to free it depends on whether training has failed
        return LocalResult({VECTOR: as_tensor(vector)}, {}, {}, {})

    def send(self, round: int, result: LocalResult) -> None:
        """Report that this silo is ready; with noise, at a fixed time, because the time of training reveals data."""
        key, note = "comm_args.answer_after_s", self.silo.show.note
        if (left := self._answers_at - time.monotonic()) > 0:
            note(f"round {round + 1}: waiting {left:.1f} s before the answer ({key})")
            time.sleep(left)
        elif self._answers_at:
            what = f"training took longer than {self.silo.recipe.comm.answers_after:g} s ({key})"
            use = "so its duration may reveal something to the server; use a larger value"
            note(f"round {round + 1}: {what}, {use}", log.WARNING)
        self._answers_at = 0.0
        self.silo.send(Kind.UPLOAD, SERVER, round=round)

    def may_test(self, session: Session, message: Message) -> bool:
        """With noise, test one model per round: no account covers tests."""
        try:
            if self._noise:
                self._ask_test(session, message)
        except SecureError as error:
            self._warn("no part in a sum:", str(error))
            return False
        return True

    def _ask_test(self, session: Session, message: Message) -> str:
        """Record a test's request. Raises SecureError if it has changed in this round."""
        question = common_question(session.federation, message.round, message.tensors)
        self._account.ask(self.silo.run_name, number_of_test(message.round), question)
        return question

    def tested(self, session: Session, message: Message, answer: dict[str, Any]) -> dict[str, Any]:
        """Keep the right answers for a sum if their number of samples is that of the opening."""
        sums, run, (right, samples) = sums_of(session), self.silo.run_name, answer.get("accuracy", (0, 0))
        self._tested = None
        if sums.right is not None and str(samples) == self._account.question_of(run, OPENING).partition(" ")[0]:
            with contextlib.suppress(SecureError):
                question = self._ask_test(session, message)
                self._tested = number_of_test(message.round), sums.encode_test(self.silo.client, right), question
        return {}

    def handle_verdict(self) -> None:
        """Forget all keys and masks."""
        self._sums.end()

    def _warn(self, about: str, text: str) -> None:
        self.silo.flood.print_event(about, text, most=MAX_LINES, print_line=self.silo.warn)

    def _take_step(self, message: Message) -> None:
        self.silo.check_joined("a sum")
        self._sums.take(self.silo.run_name, message)

    def _vector(self, round: int) -> tuple[Ring, Vector, str] | None:
        """See ``vector`` of :class:`.SiloSums`."""
        session, upload = self.silo.session, self.silo.upload
        sums = sums_of(session)
        if round == OPENING:
            if self._opening is None:
                self._opening = as_vector(self.silo.opening(session)[VECTOR])
            return sums.opening, self._opening, ""
        if round < OPENING:
            if self._tested is None or self._tested[0] != round or sums.right is None:
                return None
            return sums.right, *self._tested[1:]
        if upload is None or upload[0] != round:
            return None
        return sums.round, as_vector(upload[1].upload[VECTOR]), self._question

    def _noisy(self, part: SiloRound, vector: Vector) -> Vector:
        silo, round = self.silo, part.attempt.round
        request = part.roster.hex()
        if silo.guard is not None:
            silo.guard.count_answer(silo.run_name, round, request, kind="sum")  # each masked vector has its own noise
        if silo.ledger is not None:
            silo.ledger.spend(silo.revealed().upload, silo.answer_digest(request), run=silo.run_name, round=round)
        noise = seeds.noise_generator(silo.seed(request), "noise of a sum", round, silo.client)
        return sums_of(silo.session).noisy(vector, noise)

    def _without_reason(self, error: Exception) -> Exception:
        """An error without a reason for the server, see :meth:`.Answers.turn`; the silo takes no further part."""
        self._account.fail()
        again = f"to take part again, remove {self._account.failed}, and restart this silo"
        failed = LabelSkewError(f"{described(error)}; the reason was not sent to the server; {again}")
        failed.frames = getattr(error, "frames", "")
        return shareable(failed, "its training failed")


def sums_of(session: Session) -> Sums:
    """The session's sums."""
    assert session.sums is not None
    return session.sums


def sizes(recipe: Recipe) -> Callable[[int], Sizes]:
    """Numbers of silos by round."""
    silos = recipe.train.client_num_in_total
    settings = hashlib.blake2b(json.dumps(agreed(recipe), sort_keys=True).encode(), digest_size=16).hexdigest()
    rounds = Sizes(fewest_summed(recipe), recipe.train.clients_per_round, silos, settings)
    others = Sizes(fewest_opened(recipe), silos, silos, settings)
    return lambda round: rounds if round > OPENING else others


def weaknesses(recipe: Recipe) -> Iterator[str]:
    """Warnings about sums that can reveal too much."""
    if recipe.privacy.noise_multiplier is not None:
        threshold, clients = fewest_summed(recipe), recipe.train.clients_per_round
        if 2 * threshold - clients < 2:
            what = f"with {threshold} of {clients} silos, a server and one silo that cooperate can see the vector"
            yield f"comm_args.secure_threshold: {what} of another silo, with only its own noise; use a larger value"
        return
    what = "secure aggregation without noise does not protect silos from a server that cheats"
    yield f"{what}; {MULTIPLIER} adds noise to the sums"
    if recipe.train.weight_decay:
        what = "the server can compute numbers of samples of single silos from the sum of changes"
        yield f"train_args.weight_decay: {what}; use 0 if they are confidential"


def common_question(federation: Federation, round: int, tensors: Mapping[str, Tensor], **meta: bool) -> str:
    """Digest of the part of a request that all silos get."""
    federation = replace(federation, rounds=0)  # a run may be resumed with more rounds
    return request_digest(federation, round, meta, tensors, {})


def _identity(transport: ServerTransport | SiloTransport) -> tuple[Identity, Authority]:
    files = transport.tls
    assert files is not None  # or the recipe would have been refused
    authority = Authority(files.ca) if transport.revoked is None else Authority(files.ca, transport.revoked.barred)
    return Identity(files), authority
