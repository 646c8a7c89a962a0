"""A silo of a cross-silo federation: it trains one client and keeps its state."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Data, Federation, Images, LabelSkewError, RunError, shareable
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.data.fingerprint import add_array, fingerprint
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.engine.aggregate import check_upload
from fl_labelskew_plugins.engine.client_state import Versions
from fl_labelskew_plugins.engine.devices import works
from fl_labelskew_plugins.engine.local import LocalResult, meta_tensors
from fl_labelskew_plugins.ledgers.privacy import Ledger, SpentError
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import read_bytes, read_lines, read_text, writing
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.network_file import portable
from fl_labelskew_plugins.recipe.privacy import SentNoise, sent_noise
from fl_labelskew_plugins.runs import model_file
from fl_labelskew_plugins.runs.folder import RunFolder, summary
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.session import Session, assemble
from fl_labelskew_plugins.runtimes import wire
from fl_labelskew_plugins.runtimes.silo import facts, keys
from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
from fl_labelskew_plugins.runtimes.silo.facts import Facts, SiloData
from fl_labelskew_plugins.runtimes.silo.flood import MAX_LINES, Flood
from fl_labelskew_plugins.runtimes.silo.guard import Guard, PolicyError, request_digest
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Manager, Message, reason, upload_meta, upload_tensors
from fl_labelskew_plugins.runtimes.transport import upload as parse_upload
from fl_labelskew_plugins.tensors import OPTIMIZER, State, Weights, group, joined, num_bytes, rest, save_atomic, trim


class Answers:
    """Answers of a silo without secure aggregation: the server sees each one."""

    tests_immediately = True
    """If False, tests run later, so that the server cannot see their duration."""

    state_in_digest = True
    """Whether a request's digest contains the private state. False if each masked vector has new noise."""

    def __init__(self, silo: SiloClient) -> None:
        self.silo = silo
        self.hides_failures = any(
            noise.claim for noise in sent_noise(silo.recipe, 1, 1).upload if noise.on == "weights"
        )
        """Whether the server must not see that training or a test has failed."""
        self.handlers: Mapping[Kind, Callable[[Message], None]] = {Kind.SURVEY: self._survey}
        """They override handlers of :class:`SiloClient`."""

    def hello(self) -> tuple[Facts, Mapping[str, Tensor]]:
        """Facts and tensors for HELLO."""
        return self.silo.data.facts, self.silo.data.sent()

    def charge_hello(self) -> None:
        """Charge the ledger for the data in HELLO, which have no noise."""
        silo = self.silo
        if silo.ledger is not None and (parts := sent_noise(silo.recipe, 1, 1).hello):
            silo.ledger.spend(parts, silo.answer_digest("hello"), run="hello")

    def join(self, run: str) -> None:
        """Raise LabelSkewError to refuse a run."""

    def check_total(self, federation: Any) -> None:
        """Raise LabelSkewError to refuse the number of all training samples."""

    def open(self, session: Session, federation: Federation) -> None:
        """Take part in the opening exchange."""
        if session.method.uses("opening"):
            self.silo.send(Kind.OPENING, SERVER, tensors=self.silo.opening(session))

    def asked(self, session: Session, message: Message) -> None:
        """Raise LabelSkewError to refuse a request to train."""

    def charge(self, request: str, round: int) -> None:
        """Charge the ledger, before training."""
        silo = self.silo
        if silo.ledger is not None:
            silo.ledger.spend(silo.revealed().upload, silo.answer_digest(request), run=silo.run_name, round=round)

    def turn(
        self, take: Callable[..., LocalResult], client: int, round: int, start: Weights, **turn: Any
    ) -> LocalResult:
        """Train. If uploads carry noise and training fails, upload the start weights with noise; keep a spare state.

        Otherwise a model that fails only on a certain sample would reveal whether the silo has it. A repeat of the last
        request gets the stored upload. A repeat of an older one gets new noise and is charged: equal noise would cancel
        in the difference of two uploads.
        """
        if not self.hides_failures:
            return take(client, round, start, **turn)
        spare = self.spare_state(take, client, **turn)
        last = LastUpload(self.silo.folder)
        answer = self.silo.answer_digest(self.silo.request)
        if (stored := last.read(answer, start)) is not None:
            return stored
        if answer in last.given:
            turn["noise_seed"] = self._charge_again(round)
        try:
            result = take(client, round, start, **turn)
            check_upload(result.upload, start, where=f"round {round + 1}")
        except Exception as error:
            self.log_hidden_failure(error, "uploads the weights of the server with noise in this round")
            try:
                result = take(client, round, start, **turn, trains=False)
                result.state = spare
            except Exception as second:
                text = f"{described(second)}; the reason was not sent to the server"
                raise shareable(LabelSkewError(text), "it cannot answer") from second
        last.store(answer, result)
        return result

    def spare_state(self, take: Callable[..., LocalResult], client: int, **turn: Any) -> State:
        """The private state after a failed turn: the last one, or a spare one, which the first turn writes to a file.

        Without it, later rounds would be faster, or a repeated request would have the same digest. It is that of a
        fresh network with constant shared tensors, so only their shapes can make it fail; the state is then empty.
        """
        trainer, file = self.silo.session.trainer, self.silo.states.folder / "spare.safetensors"
        if turn["state"] or not (trainer.method.uses("after_round") or trainer.optimizer.uses("finish")):
            return dict(turn["state"])
        if not file.exists():
            given = turn["shared"].items()
            shared = {k: torch.full_like(v, 1 / max(v.numel(), 1) if v.is_floating_point() else 1) for k, v in given}
            try:
                assert trainer.fresh is not None  # round 0: the last one may be a closing exchange
                fresh = trainer.fresh()
                result = take(client, 0, fresh, **{**turn, "shared": shared})
                check_upload(result.upload, fresh, where="a training with constant shared tensors")
                state = result.state
            except Exception as error:
                self.log_hidden_failure(error, "keeps no private state")
                return {}
            file.parent.mkdir(parents=True, exist_ok=True)
            save_atomic(state, file)
        return load_file(file)

    def _charge_again(self, round: int) -> int:
        """Charge a new answer to a repeated request, and return the seed of its noise."""
        silo, again = self.silo, secrets.token_hex(16)
        what = "the server repeats an earlier request; policy and privacy budget count the new answer"
        silo.flood.print_event("request of round", f"{round + 1}: {what}", most=MAX_LINES)
        if silo.guard is not None:
            silo.guard.count_answer(silo.run_name, round, silo.answer_digest(again))
        self.charge(again, round)
        return silo.seed(again)

    def log_hidden_failure(self, error: Exception, answer: str) -> None:
        """Log a failure that the server must not see, and leave a device that has failed."""
        event = f"{described(error)}; this silo {answer}"
        self.silo.flood.print_event("failed:", event, most=MAX_LINES, print_line=self.silo.warn)
        self.silo.leave_failed_device()

    def to_upload(self, round: int, start: Weights, result: LocalResult) -> LocalResult:
        """The part of a result that is uploaded."""
        return result

    def send(self, round: int, result: LocalResult) -> None:
        """Send an upload."""
        meta = upload_meta(result) if self.silo.recipe.comm.send_measures else {}
        tensors = upload_tensors(result, with_state=False)
        self.silo.send(Kind.UPLOAD, SERVER, round=round, meta=meta, tensors=tensors)

    def may_test(self, session: Session, message: Message) -> bool:
        """Whether to test a model."""
        return True

    def tested(self, session: Session, message: Message, answer: dict[str, Any]) -> dict[str, Any]:
        """The part of a test's result that is sent."""
        return answer

    def handle_verdict(self) -> None:
        """Handle a verdict."""

    def finished(self) -> None:
        """Handle the end of a run after all its rounds, or of a survey."""

    def _survey(self, message: Message) -> None:
        what = "the server runs a survey, but this silo was started for training; restart it with --survey"
        raise shareable(LabelSkewError(what))


def described(error: Exception) -> str:
    """An error's text."""
    return str(error) if isinstance(error, LabelSkewError) else clean(repr(error))


def sendable(error: LabelSkewError) -> str:
    """The reason that a silo sends its server: a plugin's exception may contain values of samples."""
    text = error.public or (str(error).partition(": ")[0] if error.frames else "")
    return text or "its own log has the reason"


class LastUpload:
    """File of the last noisy upload, for a repeated request. Raises LabelSkewError if damaged."""

    def __init__(self, folder: Path) -> None:
        self.file, self._metadata = folder / "noisy_upload.safetensors", dict[str, str]()
        if self.file.exists():
            try:
                with safe_open(self.file, "pt") as opened:
                    self._metadata = dict(opened.metadata())
            except (OSError, SafetensorError, TypeError):
                use = "restore the original file, or remove it together with the folder's secret"
                raise LabelSkewError(f"{self.file}: is not a valid record of uploads; {use}") from None
        self.given: list[str] = json.loads(self._metadata.get("given", "[]"))
        """Digests of all answers so far."""

    def read(self, answer: str, start: Weights) -> LocalResult | None:
        """Return the stored upload if its digest is ``answer``, with tensors in the order of ``start``."""
        if self._metadata.get("answer") != answer:
            return None
        result = parse_upload(load_file(self.file), json.loads(self._metadata["measures"]))
        return replace(result, upload={name: result.upload[name].to(value.device) for name, value in start.items()})

    def store(self, answer: str, result: LocalResult) -> None:
        """Replace the upload, before it is sent."""
        given, measures = json.dumps([*self.given, answer]), json.dumps(upload_meta(result))
        with writing(self.file, "; answers with noise need it"):
            metadata = {"answer": answer, "given": given, "measures": measures}
            save_atomic(upload_tensors(result, with_state=True), self.file, metadata)


class SiloClient(Manager):
    """A silo. ``folder`` contains its secret and, per run, its states and measures."""

    transport: SiloTransport

    def __init__(
        self,
        host: Host,
        transport: SiloTransport,
        rank: int,
        recipe: Recipe,
        data: SiloData,
        folder: Path,
        show: Progress,
        guard: Guard | None = None,
        ledger: Ledger | None = None,
        answers: Callable[[SiloClient], Answers] = Answers,
    ) -> None:
        super().__init__(host, transport, rank, recipe.train.client_num_in_total + 1)
        self.recipe, self.data, self.folder, self.show = recipe, data, folder, show
        self.guard, self.ledger = guard, ledger
        self.warn = partial(show.note, level=log.WARNING)
        self.flood = Flood(show.note)
        self.client = rank - 1
        self.failure: LabelSkewError | None = None
        self.session: Session
        self.inputs_digest = digest_inputs(recipe, data)
        self.run_name, self._over = "", False
        """Empty before WELCOME."""
        self.upload: tuple[int, LocalResult] | None = None
        """Round and result of the last round, until the server's verdict."""
        self._secret, self._process = secret(folder), secrets.token_hex(8)
        self._normalisation: State = {}
        self._device: torch.device | None = None
        """The CPU after the recipe's device has failed."""
        self._round = -1
        self.request = ""
        self._postponed: Callable[[], object] | None = None
        """A test to run later; see :attr:`Answers.tests_immediately`."""
        self.answers = answers(self)
        self.handlers = {
            Kind.WELCOME: self._welcome,
            Kind.TRAIN: self._train,
            Kind.VERDICT: self._verdict,
            Kind.TEST: self._test,
            Kind.FINISH: self._finish,
            **self.answers.handlers,
        }
        transport.hello = self._hello
        self.answers.charge_hello()

    def _hello(self) -> Message:
        reported, tensors = self.answers.hello()
        meta = {**reported.meta(), "process": self._process, "round": self._round}
        return Message(Kind.HELLO, self.rank, SERVER, meta=meta, tensors=tensors)

    def receive_message(self, msg_type: int, msg_params: Message) -> None:
        """Handle a message; report an error and stop."""
        try:
            super().receive_message(msg_type, msg_params)
        except LabelSkewError as error:
            self._fail(error)
        except (KeyError, TypeError, ValueError) as error:  # another version or program
            what = "this silo received an invalid message from the server"
            self._fail(shareable(LabelSkewError(f"{what}: {clean(repr(error))}"), what))

    def _fail(self, error: LabelSkewError) -> None:
        self.failure = error
        self.send(Kind.FAILED, SERVER, meta={"reason": sendable(error)})
        self.transport.stop_receive_message()

    def _welcome(self, message: Message) -> None:
        meta = message.meta
        if not isinstance(meta["run"], str) or not re.fullmatch("[0-9a-f]{16}", meta["run"]):  # becomes a folder's name
            raise shareable(LabelSkewError("the server sent an invalid name of the run"))
        facts.check_agreement(meta["settings"], self.recipe)
        self.answers.check_total(meta["federation"])
        federation = facts.federation(meta["federation"], self.recipe, self.data.facts)
        if self.guard is not None:
            self.guard.check_run(federation, meta.get("quorum"))
        self.answers.join(meta["run"])
        if self.run_name != meta["run"]:
            data = self.data
            normal, self._normalisation = data.data, {}
            if self.recipe.pools_moments:
                normal = facts.normalised(normal, message.tensors)
                self._normalisation = joined(normalisation=message.tensors)  # no names that TRAIN and TEST use
                self._check_normalisation(normal)
            indices = data.indices(self.client)
            self._assemble = partial(assemble, self.recipe, normal, *indices, [], secret=self.seed())
            session = self._assemble(federation=federation, device=self._device)
            # every round starts from the server's weights
            self.use(replace(session, start=meta_tensors(session.start)))
            self.run_name, self._round, self.upload = str(meta["run"]), -1, None
            self.transport.audit.note("run", run=self.run_name)
            model = num_bytes(session.start.values())  # shared tensors may have three times its size
            self.transport.limits |= dict.fromkeys((Kind.TRAIN, Kind.TEST, Kind.FINISH), 4 * model + 64 * 2**20)
            self.run_folder = OwnFolder(self.folder, self.recipe.name, self.run_name)
            self._over = self.run_folder.over(federation.rounds, self.recipe.method_name)
            self.states = Versions(self.run_folder.path / "states")
            of_total = f" of {federation.num_samples}" if federation.num_samples else ""
            samples = counted(data.facts.samples, "training sample")
            self.flood.print_event(
                "joined:", f"{samples}{of_total}, {counted(federation.rounds, 'round')}", most=MAX_LINES
            )
        self.answers.open(self.session, federation)
        self._send_upload()  # it may have been lost with the connection

    def _check_normalisation(self, data: Data) -> None:
        assert self.data.sums is not None
        if far := facts.unsuitable((data.mean, data.std), self.data.sums):
            channel, mean, std = far[0]
            more = f" (and {len(far) - 1} more)" if len(far) > 1 else ""
            what = f"channel {channel} has mean {mean:.3g} and std {std:.3g} after normalisation{more}"
            use = "compare the units of all silos' data, or set data_args.mean and std in the server's recipe"
            event = f"do not suit this silo's samples: {what}; {use}"
            self.flood.print_event("the common mean and std", event, print_line=self.warn)

    def check_joined(self, request: str) -> None:
        """Raise RunError if ``request`` arrives before WELCOME."""
        if not self.run_name:
            raise shareable(RunError(f"the server requests {request} before it has described the run"))
        if self._over:
            what = f"the server requests {request} in run {self.run_name}, which is over"
            use = f"to continue it, remove {self.run_folder.path / 'summary.json'}, and restart this silo"
            raise shareable(RunError(f"{what}; {use}"), what)

    def use(self, session: Session) -> None:
        """Replace the session."""
        self.session = session
        self._turns = self.host.turns(session.trainer)

    def leave_failed_device(self) -> None:
        """If the device has failed, use the CPU until a restart, without training and tests, which would be slow."""
        if self._device is None and not works(device := self.session.trainer.device):
            self.warn(f"{device} has failed; this silo trains again after a restart")
            self._device = torch.device("cpu")
            try:
                session = self._assemble(federation=self.session.federation, device=self._device)
                self.use(replace(session, start=meta_tensors(session.start)))
            except Exception as error:  # with noise in sums, a vector of noise needs no session
                self.warn(described(error))

    def _take(
        self, client: int, round: int, start: Weights, *, shared: Weights, trains: bool = True, **turn: Any
    ) -> LocalResult:
        """A client's turn on the device of the samples."""
        device = self.session.trainer.device
        if trains and self._device is not None:
            raise RunError(f"round {round + 1}: no training, because a device has failed; restart this silo")
        start, shared = ({name: value.to(device) for name, value in part.items()} for part in (start, shared))
        return self._turns(client, round, start, shared=shared, trains=trains, **turn)

    def opening(self, session: Session) -> Mapping[str, Tensor]:
        """The silo's opening, charged to the ledger."""
        if self.ledger is not None:
            self.ledger.spend(self.revealed().opening, self.answer_digest(), run=self.run_name)
        return session.opening(self.client).tensors

    def _train(self, message: Message) -> None:
        self.check_joined("training")
        session, round, meta = self.session, message.round, message.meta
        rounds = session.federation.rounds
        facts.number({"round": round}, "round", 0, rounds - 1, "TRAIN")
        before = facts.number(meta, "state_round", -1, round - 1, "TRAIN")
        kept = facts.numbers(meta, "kept_rounds", 0, rounds - 1, "TRAIN")
        times = facts.number(meta, "times_selected", 1, rounds, "TRAIN")
        personalised = meta["personalised"] is True and self.recipe.validation.personalised
        self.answers.asked(session, message)
        if self.upload is not None and self.upload[0] == round:
            self._send_upload()
            return
        begun = time.perf_counter()
        if num_bytes(session.start.values()) > self.recipe.comm.upload_memory_mb * 2**20:
            trim()
        weights, shared = group(message.tensors, "model"), group(message.tensors, "shared")
        if len(weights) + len(shared) != len(message.tensors):  # the digest of the request would include them
            raise shareable(RunError(f"round {round + 1}: the server sent tensors that training does not use"))
        check_upload(weights, session.start, where=f"round {round + 1}: the server's model")
        if self.answers.hides_failures:
            facts.check_shared(shared, session, where=f"round {round + 1}")
        weights = {name: weights[name] for name in session.start}  # the server must not choose an upload's order
        request = ""
        if self.guard is not None or self.ledger is not None or self._draws:  # the digest of a large model takes time
            request_meta = {key: value for key, value in meta.items() if key != "kept_rounds"}
            request_meta |= {"run": self.run_name, "has_state": self.states.has(before)}
            if personalised and self.recipe.comm.send_measures:  # the answer then depends on the test samples
                request_meta["data"] = self.data_digest
            tensors = {**message.tensors, **self._normalisation}
            state = self.states.get(before) if self.answers.state_in_digest else {}
            request = request_digest(session.federation, round, request_meta, tensors, state)
        if self.guard is not None:
            self.guard.count_answer(self.run_name, round, self.answer_digest(request))
        self.answers.charge(request, round)
        self._round, self.request = round, request
        result = self.answers.turn(
            self._take,
            self.client,
            round,
            weights,
            shared=shared,
            state=self._state(before),
            times_selected=times,
            personalised=personalised,
            noise_seed=self.seed(request) if self._draws else None,
        )
        self._do_postponed_test()
        self.states.keep({before, *kept})
        self.states.put(round, result.state)  # before the upload
        if self.guard is not None:
            self.guard.check_contributions(result.contributions, session.method.sends)
        upload = self.answers.to_upload(round, weights, result)
        sent = num_bytes(upload.upload.values()) + num_bytes(upload.contributions.values())
        self.run_folder.trained(round, result, bytes_up=sent, bytes_down=num_bytes(message.tensors.values()))
        self.upload = (round, upload)
        seconds = time.perf_counter() - begun
        self.flood.print_event(f"round {round + 1}:", f"trained in {seconds:.1f} s, {sent / 1e6:.2f} MB to send")
        del result, upload, weights, shared  # freed after the answer, they would show whether training has failed
        self._send_upload()
        self.transport.audit.sync()

    @property
    def _draws(self) -> bool:
        """Whether training draws noise."""
        return self.recipe.method.uses("protect", "contribute") or self.recipe.dp.enable_dp

    def revealed(self) -> SentNoise:
        """Noise of the data that this silo sends."""
        samples = self.data.facts.samples
        return sent_noise(self.recipe, samples, samples)  # as the smallest: others may report wrong numbers

    def seed(self, request: str = "") -> int:
        """See :func:`noise_seed`."""
        return noise_seed(self._secret, self.inputs_digest, request)

    def answer_digest(self, request: str = "opening") -> str:
        """Digest of a request, the samples and settings, and this silo's secret and rank."""
        # silos that share a ledger draw different noise, so their digests must differ
        key = self._secret.to_bytes(16, "big") + self.rank.to_bytes(4, "big")
        return hashlib.blake2b(self.inputs_digest + request.encode(), digest_size=16, key=key).hexdigest()

    @cached_property
    def data_digest(self) -> str:
        """Digest of the training and test samples."""
        digest = hashlib.blake2b(fingerprint(self.data.data).encode(), digest_size=16)
        add_array(digest, _content(self.data.data.test.x))
        return digest.hexdigest()

    def _state(self, round: int) -> State:
        keeps = self.session.method.uses("after_round") or self.session.recipe.optimizer.uses("finish")
        if round >= 0 and keeps and not self.states.has(round):
            event = f"of round {round + 1} is not in {self.states.folder}; continuing without it"
            self.flood.print_event("the state", event, print_line=log.warn)
        return self.states.get(round)

    def _test(self, message: Message) -> None:
        self.check_joined("a test")
        session, round = self.session, message.round
        facts.number({"round": round}, "round", 0, session.federation.rounds - 1, "TEST")
        weights = group(message.tensors, "model")
        check_upload(weights, session.start, where=f"round {round + 1}: the server's model")
        if not self.answers.tests_immediately:
            self.send(Kind.TESTED, SERVER, round=round)
            if self.answers.may_test(session, message):
                self._postponed = partial(self._tested, session, round, weights, self.run_folder)
            return
        answer = self._tested(session, round, weights, self.run_folder)
        if not (answer and self.recipe.comm.send_measures and self._may_report(round, message)):
            answer = {}
        self.send(Kind.TESTED, SERVER, round=round, meta=self.answers.tested(session, message, answer))

    def _do_postponed_test(self) -> None:
        if self._postponed is not None:
            self._postponed()
        self._postponed = None

    def _tested(self, session: Session, round: int, weights: Weights, folder: OwnFolder) -> dict[str, Any]:
        """Test weights on the own test split and record the result; return measures for the server."""
        if not (self.recipe.validation.per_client and len(self.data.data.test.y)):
            return {}
        if self._device is not None:
            return {}  # a test on the CPU would take longer
        try:
            return self._measured(session, round, weights, folder)
        except Exception as error:
            if not self.answers.hides_failures:
                raise
            self.answers.log_hidden_failure(error, f"has no test result of round {round + 1}")
            return {}

    def _measured(self, session: Session, round: int, weights: Weights, folder: OwnFolder) -> dict[str, Any]:
        trainer = session.trainer
        logits, labels = trainer.predict(trainer.test_indices[self.client], weights)
        matrix = metrics.confusion(logits.argmax(1), labels, session.federation.num_classes).cpu()
        measures = {**metrics.measures(matrix), "loss": float(cross_entropy(logits, labels))}
        folder.tested(round, measures)
        right = [int(matrix.diag().sum()), int(matrix.sum())]
        return {"accuracy": right, "balanced_accuracy": measures["balanced_accuracy"]}

    def _may_report(self, round: int, message: Message) -> bool:
        """Charge a test; return whether policy and budget allow the silo to report it."""
        if self.guard is None and self.ledger is None:
            return True
        tensors = {**message.tensors, **self._normalisation}
        request = request_digest(self.session.federation, round, {"run": self.run_name}, tensors, {})
        answer = self.answer_digest(f"test {self.data_digest} {request}")
        try:
            if self.guard is not None:
                self.guard.count_answer(self.run_name, round, answer, kind="test")
            if self.ledger is not None:
                self.ledger.spend(self.revealed().test, answer, run=self.run_name, round=round)
        except (PolicyError, SpentError) as error:
            refusal = f"{round + 1}: the test result is not sent: {error}"
            self.flood.print_event("test of round", refusal, most=MAX_LINES, print_line=self.warn)
            return False
        return True

    def _send_upload(self) -> None:
        if self.upload is not None:
            self.answers.send(*self.upload)

    def _verdict(self, message: Message) -> None:
        round = message.round
        if self.upload is None or self.upload[0] != round:
            return
        self.upload, self._round = None, -1  # so that HELLO does not announce this upload
        if not message.meta.get("taken"):
            event = f"{round + 1}: the server did not use this silo's upload: {reason(message)}"
            self.flood.print_event("round", event, most=MAX_LINES, print_line=self.warn)
        self.answers.handle_verdict()

    def _finish(self, message: Message) -> None:
        meta = message.meta
        if meta["done"] is not True:
            # class names stay in this silo
            names = wire.cleaned(list(self.data.data.class_names))  # received names are cleaned, too
            names = facts.differing(names, meta.get("class_names"), "at the server")
            self.failure = LabelSkewError(names or f"the server turned this silo away: {reason(message)}")
            self.transport.stop_receive_message()
            return
        if self.run_name:
            total = self.session.federation.rounds
            rounds = facts.number({"rounds": total, **meta}, "rounds", 0, total, "FINISH")
        if self.run_name and not self._over:
            self.run_folder.create()
            weights = group(message.tensors, "model")
            check_upload(weights, self.session.start, where="the server's final model")
            last = facts.number(meta, "state_round", -1, total - 1, "FINISH")
            if not self.answers.tests_immediately:  # disconnect first: a test's duration reveals data
                self.send(Kind.FINISH, SERVER)
                self.transport.stop_receive_message()
                self._do_postponed_test()
            metadata = model_file.about(self.session, round=rounds)
            model_file.save(weights, self.run_folder.path / "model.safetensors", metadata)
            state = rest(self.states.get(last), OPTIMIZER)
            personalised = self.session.method.personalised(state)
            if personalised is not None:
                name = f"silo {self.client + 1}"
                metadata = model_file.about(self.session, round=last + 1, client=self.client, client_name=name)
                file = self.run_folder.path / "personalised.safetensors"
                model_file.save(personalised, file, metadata, private=True)
            method, samples = self.recipe.method_name, self.data.facts.samples
            summary_facts = {"run": self.run_name, "comm_round": rounds, "silo": self.rank}
            summary_facts |= {"method": method, "samples": samples, "data": fingerprint(self.data.data)}
            result = self.run_folder.finish(self.session, **summary_facts)
            if (accuracy := result.get("final_accuracy")) is not None:
                tests = counted(len(self.data.data.test.y), "test sample")
                self.show.note(f"accuracy of the last tested model on this silo's own {tests}: {100 * accuracy:.2f} %")
        if self.run_name:
            end = "the run is over" if rounds == total else f"the server paused after {rounds} of {total} rounds"
            self.show.note(f"{end}; results: {self.run_folder.path}")
        if not self.run_name or self._over or self.answers.tests_immediately:
            self.send(Kind.FINISH, SERVER)
        self.transport.stop_receive_message()
        if not self.run_name or rounds == total:
            self.answers.finished()


class OwnFolder(RunFolder):
    """A run's folder in a silo's folder, found by ``run``, 16 hexadecimal digits; created when something is written."""

    def __init__(self, folder: Path, name: str, run: str) -> None:
        earlier = sorted(folder.glob(f"*{run}"))
        super().__init__(earlier[0] if earlier else folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{run}")

    def over(self, rounds: int, method: str) -> bool:
        """Whether this run has already ended after at least ``rounds`` rounds, or with another ``method``."""
        try:
            summary = json.loads(read_text(self.path / "summary.json"))
            return int(summary["comm_round"]) >= rounds or summary["method"] != method
        except (FileNotFoundError, ValueError, KeyError):  # not at its end; KeyError: of an earlier version
            return False

    def trained(self, round: int, result: LocalResult, **sizes: int) -> None:
        """Record training and message sizes; drop the records of later rounds."""
        line: dict[str, Any] = {"round": round, "loss_terms": result.loss_terms}
        if result.personalised is not None:
            line["personalised_accuracy"] = result.personalised[0] / result.personalised[1]
        self.create()
        self.truncate(round)
        self.append(self.metrics, line | sizes)

    def tested(self, round: int, measures: Mapping[str, Any]) -> None:
        """Record a test in the line of the round's training, if any; ignore a test of an earlier round."""
        lines = read_lines(self.metrics)
        if lines and lines[-1]["round"] > round:
            return
        line = next((line for line in lines if line["round"] == round), {"round": round})
        self.create()
        self.truncate(round)
        self.append(self.metrics, {**line, **measures})

    def finish(self, session: Session, **facts: Any) -> dict[str, Any]:
        """Write ``curves.png``, and ``summary.json`` with ``facts`` first."""
        lines, file, recipe = read_lines(self.metrics), self.path / "curves.png", session.recipe
        result = summary(lines, recipe.validation.last_rounds)
        result["rounds"] = sum("loss_terms" in line for line in lines)
        title = f"{recipe.method_name} on {recipe.data.dataset}, silo {facts['silo']}"
        options = {"title": title, "client_models": session.client_models, "tests": "own test part"}
        plots.of_run(file, lambda: plots.curves(lines, file, **options))
        self.write_json("summary.json", facts | result)
        return result


def secret(folder: Path) -> int:
    """The silo's seed of noise, created once: different noise on one update could be averaged out."""
    file = folder / "secret"
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        keys.write(file, secrets.token_hex(16).encode(), 0o600)
    for warning in keys.readable_by_others(file):
        log.warn(warning)
    try:
        return int(read_bytes(file), 16)
    except ValueError as error:
        raise LabelSkewError(f"{file}: is not a silo's secret; delete the file to create a new secret") from error


def digest_inputs(recipe: Recipe, data: SiloData) -> bytes:
    """Digest of the samples and settings that affect this silo's answers."""
    resolved = portable(recipe)
    for key in ("comm_round", "stop"):  # a run can be resumed with other ones
        del resolved["train_args"][key]
    sections = ("common_args", "model_args", "train_args", "method_args", "dp_args")
    settings: list[Any] = [{name: resolved[name] for name in sections}, recipe.device.precision]
    settings += [data.data.mean, data.data.std]
    if recipe.comm.secure_aggregation:
        ring = {key: value for key, value in resolved["comm_args"].items() if key.startswith("secure_")}
        settings += [recipe.privacy.noise_multiplier, recipe.privacy.clip, ring]
    if isinstance(data.data.train.x, Images):  # settings such as the crop apply when a file is read
        settings.append({key: value for key, value in resolved["data_args"].items() if key != "data_cache_dir"})
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=32)
    for array in (data.data.train.x, data.data.train.y):
        add_array(digest, _content(array))
    return digest.digest()


def _content(array: NDArray[Any] | Images) -> NDArray[Any]:
    """The samples, or the sizes and modification times of their files."""
    if not isinstance(array, Images):
        return array
    stats = [os.stat(file) for file in array.files]
    return np.array([(stat.st_size, stat.st_mtime_ns) for stat in stats], np.int64).reshape(-1, 2)


def noise_seed(secret: int, inputs: bytes, request: str = "") -> int:
    """Seed of noise: equal for a repeated request, different after any change that affects the answer.

    Otherwise noise would cancel in the difference of answers before and after a sample was added.
    """
    digest = hashlib.blake2b(secret.to_bytes(16, "big") + inputs + request.encode(), digest_size=16)
    return int.from_bytes(digest.digest(), "big")
