"""A run in which the server sees sums alone (``comm_args.secure_aggregation``): its server, and a silo of it.

Silos train and say that they are ready; then the sum of their vectors (:mod:`fl_labelskew_plugins.engine.sums`) is made
by :mod:`.secure`, and repeated with new masks where too many are lost meanwhile. Needs cryptography and pycryptodome.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fl_labelskew_registry import Federation, LabelSkewError, RunError, shareable
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.ring import Ring, Vector
from fl_labelskew_plugins.engine.sums import VECTOR, arrived, travelling
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.recipe.conflicts import fewest_opened, fewest_summed
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.privacy import MULTIPLIER
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import Session
from fl_labelskew_plugins.runtimes.messages import SERVER
from fl_labelskew_plugins.runtimes.silo import streams
from fl_labelskew_plugins.runtimes.silo.client import SiloClient, noise_seed
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.silo.exchanges import LATE, TAKEN, Opening, Uploads
from fl_labelskew_plugins.runtimes.silo.facts import Facts
from fl_labelskew_plugins.runtimes.silo.guard import question
from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport
from fl_labelskew_plugins.runtimes.silo.members import Poll
from fl_labelskew_plugins.runtimes.silo.secure import wire
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.answering import Part
from fl_labelskew_plugins.runtimes.silo.secure.asking import Sums
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, SecureError, Sizes, listed, number_of_test
from fl_labelskew_plugins.runtimes.silo.secure.identity import Authority, Identity
from fl_labelskew_plugins.runtimes.silo.secure.masks import POINT
from fl_labelskew_plugins.runtimes.silo.secure.silo import SiloRound
from fl_labelskew_plugins.runtimes.silo.server import SiloServer
from fl_labelskew_plugins.runtimes.transport import Kind, Message
from fl_labelskew_plugins.tensors import Weights, joined

OPENED = "opened.json"
"""In the server's folder: the sums of all silos' training and test samples, and whose they are."""


class SummedOpening(Opening):
    """The opening exchange as one sum, of samples and of what the method opens with; made once in a run.

    A later one, with a silo more, would differ from it by what that silo has.
    """

    def __init__(self, *args: Any, sums: Sums, run: str, share: Callable[[int, int, list[int]], None]) -> None:
        super().__init__(*args)
        self._sums, self._run, self._tell = sums, run, share
        self.wanted = False
        self.known: list[int] = []
        """Whose it is, once it is made."""

    def exchange(self, *, resumed: bool) -> None:
        """Make it, where it is not made yet, or what was made of it is lost: of the same silos then."""
        server, members, method = self._rounds.server, self._members, self._rounds.session.method
        if self.known and (server.opened or not method.uses("opening")):
            return
        made, clock, known = self._rounds.session.sums, members.clock, set(self.known)
        assert made is not None

        def there(without: Collection[int]) -> list[int]:
            until = clock.now + members.comm.quorum_timeout_s
            while True:
                here = members.present - members.excluded - members.away - set(without)
                if (known <= here if known else len(here) >= members.fewest_opened) or not clock.listen(until):
                    return sorted(here & known if known else here)

        clients, vector = self._sums.repeated(self._run, OPENING, there, made.opening)
        samples, tests, _ = made.read_opening(vector, len(clients))
        if (most := len(clients) * members.comm.max_samples) < max(samples, tests) or samples < 1 or tests < 0:
            what = (
                f"{samples} training and {tests} test samples of {listed([client + 1 for client in clients])} together"
            )
            use = f"1 to {most} (comm_args.max_samples of each); begin a new run without the silo that is wrong"
            raise RunError(f"{members.where}: {what}; allowed: {use}")
        self.known = clients
        self._tell(*server.open_sum(vector, self.known), self.known)

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
        about = common_question(server.federation, round, self._news, personalised=self.personalised)

        def ready(without: Collection[int]) -> list[int]:
            waited = [client for client in clients if client not in without]
            for client in [client for client in self._ready if client not in members.present]:
                del self._ready[client]  # until it is back and has trained again
            self._poll = Poll(members, waited, "uploads", self._ready)
            for client in members.present.intersection(waited) - self._ready.keys():
                self.ask(client)
            return list(self._poll.take())

        came, vector = self._sums.repeated(self._run, round, ready, made.round, about)
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
        """A silo's process is another one, so what it had is gone: it is asked again, at the next attempt or now."""
        self._ready.pop(client, None)

    def take(self, client: int, message: Message) -> dict[str, Any] | None:
        """A silo is ready; there is no verdict before the sum."""
        if message.round == self._members.round and client in self._ready:
            return None  # sent twice, because its connection broke
        if message.round != self._members.round or not self._poll.awaits(client):
            return TAKEN if self._taken.get(client) == message.round else LATE
        if message.tensors or message.meta:
            self._poll.settled.add(client)
            what = f"silo {client + 1} sends its upload in the clear; use the same recipe everywhere"
            self._members.warn(f"round {message.round + 1}: {what}")
            return {"taken": False, "reason": what}
        self._poll.answers[client] = LocalResult({}, {}, {}, {})
        return None


class SummedServer(SiloServer):
    """Rank 0 of a federation whose server sees sums alone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        transport = self.transport
        ways = self.members, _identity(transport)[1], self.send, transport.limits, transport.audit
        self._sums = Sums(*ways, sizes=sizes(self.recipe))
        if warning := comparable(self.recipe):
            self.warn(warning)
        self._opened = self.folder.path / OPENED

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """The steps of a secure sum, too."""
        return {**super().handlers(), **dict.fromkeys(wire.STEPS, self._take_step)}

    def total(self, round: int, clients: Sequence[int]) -> tuple[list[int], Vector]:
        """See :meth:`SummedUploads.total`."""
        total = self._summed.total(round, clients)
        self.transport.audit.sync()
        return total

    def tested(self, weights: Weights) -> dict[str, object]:
        """Accuracy over all silos' own test parts together; nothing where not all of the opening are in the sum.

        Of two sums over sets that differ in one silo, the difference would be about that silo's right answers.
        """
        members, made = self.members, self.record.session.sums
        assert made is not None
        assert self.rounds is not None
        self._tests.of(weights)
        tests, everybody, round = self._content().get("test_samples", 0), self._known(), members.round
        missing = set(everybody) - (members.present - members.away - members.excluded)
        if not tests or made.right is None:
            return {}
        try:
            if missing:
                raise SecureError(f"{members.where}: {listed([client + 1 for client in missing])} missing")
            about = common_question(self.rounds.server.federation, round, joined(model=weights))
            _, vector = self._sums.total(self.record.run, number_of_test(round), everybody, made.right, about)
        except SecureError as error:
            self.warn(f"{error}; no accuracy of this round, for its sum is over all silos of the opening only")
            return {}
        right = made.read_tested(vector)
        if not 0 <= right <= tests:
            self.warn(f"{members.where}: {right} right answers of {tests} cannot be; no accuracy of this round")
            return {}
        return metrics.pooled(right, tests)

    def _exchanges(self, rounds: Rounds) -> tuple[Opening, Uploads]:
        run = self.record.run
        opening = SummedOpening(rounds, self.members, self.census, sums=self._sums, run=run, share=self._share)
        opening.known = self._known()
        if opening.known:
            self._tell(rounds, self._content()["samples"])
        self._summed = SummedUploads(rounds, self.members, self.sizes, self.send, sums=self._sums, run=run)
        return opening, self._summed

    def _known(self) -> list[int]:
        """Whose samples are in the sum that this run began with; none before."""
        return list(self._content().get("clients", []))

    def _content(self) -> dict[str, Any]:
        """The file of the opening sum; empty before it."""
        return json.loads(self._opened.read_text(encoding="utf-8")) if self._opened.exists() else {}

    def _share(self, samples: int, tests: int, clients: list[int]) -> None:
        """The opening sum is made: keep it, and tell everybody how many training samples there are."""
        assert self.rounds is not None
        self.folder.write_json(OPENED, {"samples": samples, "test_samples": tests, "clients": clients})
        self._tell(self.rounds, samples)
        made, summed = self.record.session.sums, counted(samples, "training sample")
        if self.recipe.validation.per_client and made is not None and made.noise is None:
            summed += f" and {counted(tests, 'test sample')}"  # 0 if no silo has send_measures
        self.say(f"{summed} of {listed([client + 1 for client in clients])} together")
        for client in sorted(self.members.present):
            self._welcome(client)

    def _tell(self, rounds: Rounds, samples: int) -> None:
        self.census.samples = samples
        sums, server = rounds.session.sums, rounds.server
        assert sums is not None
        server.federation = self.census.federation(server.federation)
        sums.trainer, sums.clients = replace(sums.trainer, federation=server.federation), len(self._known())

    def _welcome(self, client: int) -> None:
        if (known := self._known()) and client not in known:
            why = "the samples of this run were summed without it, and a second sum would tell its own; begin a new run"
            self._turn_away(client, why)
            return
        super()._welcome(client)

    def _returned(self, client: int, *, same_process: bool) -> None:
        if not same_process:
            self._summed.restarted(client)
        self._sums.came(client, same_process=same_process)

    def _take_step(self, message: Message) -> None:
        self.members.away.discard(message.sender - 1)
        self._sums.take(message)


class SummedSilo(SiloClient):
    """A silo that sends nothing but its part of a sum."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        policy = None if self.guard is None else self.guard.policy
        silos = self.recipe.train.client_num_in_total
        self.transport.limits[Kind.CHECKED] = streams.LIMIT + 3 * POINT * silos**2  # of each its commitments
        self._several_runs = policy is not None and policy.several_runs
        if warning := comparable(self.recipe):
            self.show.note(warning, log.WARNING)
        self._account, self._question = Account(self.folder), ""
        self._tested: tuple[int, Vector, str] | None = None
        self._part = Part(
            self.rank,
            *_identity(self.transport),
            self._account,
            self._vector,
            None if self.recipe.privacy.noise_multiplier is None else self._noisy,
            self.send,
            partial(self.show.note, level=log.WARNING),
            self.transport.audit,
            sizes=sizes(self.recipe),
            least=0 if policy is None else policy.min_clients or 0,
        )

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """The steps of a secure sum, too."""
        return {**super().handlers(), **dict.fromkeys(wire.STEPS, self._take_step)}

    def _take_step(self, message: Message) -> None:
        if self.session is None:
            raise shareable(RunError("the server asks for a sum before it has said what the run is"))
        self._part.take(self._run, message)

    def _facts(self) -> Facts:
        return super()._facts().summed()

    def _join(self, run: str) -> None:
        if not self._several_runs:
            self._account.join(run)

    def _finish(self, message: Message) -> None:
        joined = self.session is not None
        super()._finish(message)
        if joined and self.failure is None:
            self._account.leave()

    def _open(self, session: Session, federation: Federation) -> None:
        """Nothing is sent: the server asks for the opening sum. It says once of how many samples that is."""
        comm, before = self.recipe.comm, self._account.question_of(self._run, OPENING)
        answers = f"{self._about.hex()} {comm.send_contributions} {comm.send_measures}"
        opening = (
            f"{session.reported_tests(self.client)} {hashlib.blake2b(answers.encode(), digest_size=16).hexdigest()}"
        )
        if before not in ("", opening):  # the difference of two sums would be this silo's
            what = "this silo's data or settings have changed since it joined the run; begin a new run"
            raise SecureError(f"run {self._run}: {what}")
        self._account.ask(self._run, OPENING, opening)
        samples, known = federation.num_samples, session.federation.num_samples
        if known and samples != known:
            what = f"the server says that all silos have {samples} training samples, and before {known}"
            raise shareable(RunError(what))
        if samples != known:
            self._use(replace(session, federation=federation, trainer=replace(session.trainer, federation=federation)))

    def _vector(self, round: int) -> tuple[Ring, Vector, str] | None:
        """What this silo has for a round's sum, its ring, and the digest of what it was asked."""
        assert self.session is not None
        sums = self.session.sums
        assert sums is not None
        if round == OPENING:
            return sums.opening, arrived(self._opening(self.session)[VECTOR]), ""
        if round < OPENING:
            if self._tested is None or self._tested[0] != round or sums.right is None:
                return None
            return sums.right, *self._tested[1:]
        if self._upload is None or self._upload[0] != round:
            return None
        return sums.round, arrived(self._upload[1].upload[VECTOR]), self._question

    def _noisy(self, part: SiloRound, vector: Vector) -> Vector:
        """A round's vector with noise of this attempt only, which the ledger is charged for."""
        assert self.session is not None
        sums, attempt = self.session.sums, part.attempt
        if sums is None or attempt.round <= OPENING:
            return vector
        request = part.roster.hex()
        if self.ledger is not None:
            self.ledger.spend(self._revealed()[1], self._answer(request), run=self._run, round=attempt.round)
        seed = noise_seed(self._secret, self._about, request)
        return sums.noisy(vector, seeds.noise_generator(seed, "noise of a sum", attempt.round, self.client))

    def _use(self, session: Session) -> None:
        super()._use(session)
        if self.recipe.privacy.noise_multiplier is not None:
            self._take = partial(self._trained, self._take)

    def _trained(
        self, take: Callable[..., LocalResult], client: int, round: int, weights: Weights, **turn: Any
    ) -> LocalResult:
        """A turn, or if it fails one that changes nothing: the failure itself would reveal something of the data."""
        try:
            return take(client, round, weights, **turn)
        except Exception as error:
            self._unchanged(error)
            return LocalResult(dict(weights), {}, dict(turn["state"]), {})

    def _unchanged(self, error: Exception) -> None:
        text = str(error) if isinstance(error, LabelSkewError) else clean(repr(error))
        self.show.note(f"{text}; this silo adds only noise to the sum of this round", log.WARNING)

    def _charge(self, request: str, round: int) -> None:
        """With noise on the sum, the ledger is charged later, for each masked vector that leaves."""
        if self.recipe.privacy.noise_multiplier is None:
            super()._charge(request, round)
        elif self.ledger is not None:
            self.ledger.check(self._revealed()[1], round=round)

    def _train(self, message: Message) -> None:
        if self.session is not None:
            meta, round = message.meta, message.round
            common = {"personalised": meta["personalised"] is True}
            self._question = common_question(self.session.federation, round, message.tensors, **common)
            before, times = meta["state_round"], meta["times_selected"]  # which are not the same for all
            try:
                self._account.check_state(self._run, round, before, times)
                if before >= 0 and not self.states.has(before):
                    what = f"the state of round {before + 1} is not in {self.states.folder}; begin a new run"
                    raise SecureError(f"round {round + 1}: {what}")
                self._account.ask(self._run, round, f"{self._question} {before} {times}")
            except SecureError as error:
                self.transport.audit.note("sum", run=self._run, round=message.round, why=str(error))
                raise
        super()._train(message)

    def _reported(self, message: Message, answer: dict[str, Any]) -> dict[str, Any]:
        """Report nothing; keep the right answers for a sum if they are of the opening's test samples.

        With noise they are never summed, whatever the server asks for: the privacy account does not cover them.
        """
        assert self.session is not None
        made, round = self.session.sums, number_of_test(message.round)
        right, samples = answer.get("accuracy", (0, 0))
        self._tested = None
        if made is None or made.right is None:
            return {}
        if str(samples) == self._account.question_of(self._run, OPENING).partition(" ")[0]:
            question = common_question(self.session.federation, message.round, message.tensors)
            with contextlib.suppress(SecureError):  # it was another model before in this round
                self._account.ask(self._run, round, question)
                self._tested = round, made.tested(self.client, right), question
        return {}

    def _leaving(self, round: int, start: Weights, result: LocalResult) -> LocalResult:
        assert self.session is not None
        sums = self.session.sums
        if sums is None or not self.session.federation.num_samples:
            raise shareable(RunError("the server asks for training before the samples of all silos are summed"))
        try:
            vector = sums.added(self.client, round, start, result, measures=self.recipe.comm.send_measures)
        except Exception as error:
            if self.recipe.privacy.noise_multiplier is None:
                raise
            self._unchanged(error)
            vector = sums.round.zeros()
        return LocalResult({VECTOR: travelling(vector)}, {}, {}, {})

    def _send_upload(self) -> None:
        """Say that this silo is ready; the sum is made once enough are."""
        if self._upload is not None:
            self.send(Kind.UPLOAD, SERVER, round=self._upload[0])

    def _verdict(self, message: Message) -> None:
        super()._verdict(message)
        self._part.end()


def sizes(recipe: Recipe) -> Callable[[int], Sizes]:
    """Numbers of silos of a round's sum; of the opening, and of tests, for rounds up to :data:`OPENING`."""
    silos = recipe.train.client_num_in_total
    rounds = Sizes(fewest_summed(recipe), recipe.train.clients_per_round, silos)
    others = Sizes(fewest_opened(recipe), silos, silos)
    return lambda round: rounds if round > OPENING else others


def comparable(recipe: Recipe) -> str:
    """Warning that sums have no noise; empty if they have."""
    what = "secure aggregation without noise: a server that gets two sums over different silos can compare them"
    return "" if recipe.privacy.noise_multiplier is not None else f"{what}; {MULTIPLIER} adds noise to the sums"


def common_question(federation: Federation, round: int, tensors: Mapping[str, Tensor], **meta: bool) -> str:
    """Digest of what all silos are asked in a round."""
    return question(replace(federation, rounds=0), round, meta, tensors, {})  # a run may be resumed for more rounds


def _identity(transport: ServerTransport | SiloTransport) -> tuple[Identity, Authority]:
    """What this process signs with, and checks others by."""
    files = transport.tls
    assert files is not None  # or the recipe would have been refused
    authority = Authority(files.ca) if transport.revoked is None else Authority(files.ca, transport.revoked.barred)
    return Identity(files), authority
