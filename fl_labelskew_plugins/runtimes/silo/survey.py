"""A survey across silos, see docs/survey.md: the server asks each silo for its class counts once."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from fl_labelskew_registry import LabelSkewError, RunError, shareable
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import check_extra
from fl_labelskew_plugins.ledgers.privacy import SpentError
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.methods.fedshift import noisy_counts
from fl_labelskew_plugins.recipe.privacy import count_noises, on_counts
from fl_labelskew_plugins.runtimes.silo.client import Answers, SiloClient
from fl_labelskew_plugins.runtimes.silo.facts import Facts
from fl_labelskew_plugins.runtimes.silo.guard import PolicyError
from fl_labelskew_plugins.runtimes.silo.members import Poll
from fl_labelskew_plugins.runtimes.silo.server import SiloExchange, SiloServer
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message, reason
from fl_labelskew_plugins.surveys.survey import Survey

MAX_NOISE = 1e9  # largest noise that a silo may report; the limit of `count_noise`


class ClassCounts(NamedTuple):
    """Class counts ``(C,)``, if any, and the scale of their noise."""

    counts: NDArray[np.int64] | None
    noise: float = 0.0


class SurveyExchange(SiloExchange):
    """The server's part."""

    def __init__(self, server: SiloServer) -> None:
        super().__init__(server)
        self._answers: dict[int, ClassCounts] = {}
        self._refusals: dict[int, str] = {}
        server.members.opening = "survey"
        self._poll: Poll[ClassCounts] = Poll(server.members, [], "class counts", self._answers)
        self.handlers = {Kind.SURVEY: self._take}

    def survey(self, names: list[str]) -> Survey:
        """Ask all connected silos; ``names``: of their files. Raises RunError for too few silos."""
        server, members = self.server, self.server.members
        server.wait_for_silos()
        members.begin(-1)
        self._poll = Poll(members, sorted(members.present), "class counts", self._answers)
        try:
            list(self._poll.take())
            server.finish(lambda client: {"meta": {"done": True}})
        finally:
            server.flood.close()
        return self._survey([f"silo {rank} ({name})" if name else f"silo {rank}" for rank, name in enumerate(names, 1)])

    def on_hello(self, client: int, message: Message, *, same_process: bool) -> None:
        """Ask a silo that has not answered."""
        if client not in self._answers:
            self.server.send(Kind.SURVEY, client + 1)

    def _survey(self, names: list[str]) -> Survey:
        census, classes = self.server.census, self.server.census.num_classes
        refused = self.server.members.refusal_reasons
        given = {
            k: answer for k, answer in sorted(self._answers.items()) if answer.counts is not None and k not in refused
        }
        counts = np.array([answer.counts for answer in given.values()], np.int64).reshape(len(given), classes)
        if not counts.any():
            raise RunError("no silo has sent class counts above 0, so there is nothing to survey")
        return Survey(
            title=f"{clean(self.server.recipe.data.dataset)}, across silos",
            clients=[names[k] for k in given],
            class_names=census.class_names or [str(c) for c in range(classes)],
            counts=counts,
            noise=[answer.noise for answer in given.values()],
            silent={name: self._reason_for_silence(k) for k, name in enumerate(names) if k not in given},
        )

    def _reason_for_silence(self, client: int) -> str:
        default = "it has not answered" if self.server.sizes[client] else "it has not connected"
        return (
            self._refusals.get(client)
            or self.server.failed.get(client)
            or self.server.members.refusal_reasons.get(client)
            or default
        )

    def _take(self, message: Message) -> None:
        client, server = message.sender - 1, self.server
        if client not in server.members.present or client in self._answers:
            return
        if (refusal := reason(message)) is not None:
            self._answers[client], self._refusals[client] = ClassCounts(None), refusal
            server.print_event(client, f"sends no class counts: {refusal}", server.warn)
            return
        try:
            self._answers[client] = self._checked(client, message)
        except RunError as error:
            self._poll.settled.add(client)
            server.turn_away(client, str(error))

    def _checked(self, client: int, message: Message) -> ClassCounts:
        tensors, noise = message.tensors, message.meta.get("count_noise")
        check_extra(tensors, {"counts": (self.server.census.num_classes,)}, where=f"survey of silo {client + 1}")
        if "counts" not in tensors or tensors["counts"].dtype != torch.int64:
            raise RunError("its class counts are not whole numbers")
        if type(noise) is not float or not 0 <= noise <= MAX_NOISE:
            raise RunError(f"its count_noise is not a number from 0 to {MAX_NOISE:g}")
        counts, most = tensors["counts"].numpy().copy(), self.server.recipe.comm.max_samples
        total = counts.sum(dtype=float)
        if total > most:
            raise RunError(f"its class counts sum to more than {most} training samples (comm_args.max_samples)")
        if not noise and total != (samples := self.server.sizes[client]):
            raise RunError(f"its class counts sum to {total:.0f}, but it has {samples} training samples")
        return ClassCounts(counts, noise)


class SurveyAnswers(Answers):
    """Answers of a silo with ``--survey``."""

    def __init__(self, silo: SiloClient) -> None:
        super().__init__(silo)
        self.handlers = {Kind.WELCOME: self._welcome, Kind.SURVEY: self._answer}

    def hello(self) -> tuple[Facts, Mapping[str, Tensor]]:
        """The part of a run's HELLO that a survey needs."""
        if self.silo.guard is not None:
            self.silo.guard.begin_survey()
        return replace(self.silo.data.facts, counts=None), {}

    def charge_hello(self) -> None:
        """HELLO contains no class counts."""

    def finished(self) -> None:
        """Log the end of the survey."""
        self.silo.show.note("the survey is over; nothing was trained")

    def _welcome(self, message: Message) -> None:
        raise shareable(
            LabelSkewError("the server trains, but this silo was started for a survey; restart it without --survey")
        )

    def _answer(self, message: Message) -> None:
        silo = self.silo
        seed = own = silo.seed()
        scale, kind = count_noises(silo.recipe)[-1]  # a part without noise, such as feddisco, sends no class counts
        least, wanted = (0.0, "") if silo.guard is None else silo.guard.policy.least_noise("count_noise")
        if least > scale or wanted not in ("", kind):
            scale, kind = max(least, scale), wanted or kind
            seed = silo.seed(f"count_noise {scale} {kind}")
        try:
            if silo.guard is not None:
                silo.guard.count_survey(hashlib.sha256(f"{seed} {scale}".encode()).hexdigest()[:32])
            if silo.ledger is not None:
                # a run's opening with these settings reveals the same counts
                answer = silo.answer_digest() if seed == own else silo.answer_digest(f"survey {scale} {kind}")
                silo.ledger.spend([on_counts(scale, kind, silo.data.facts.samples)], answer, run="survey")
        except (PolicyError, SpentError) as error:
            log.warn(f"this silo sends no class counts: {error}")
            silo.send(Kind.SURVEY, SERVER, meta={"reason": error.public})
            return
        counts = torch.from_numpy(silo.data.counts)
        if scale:
            # as in an opening exchange
            noise = seeds.noise_generator(seed, "opening noise", 0, silo.client)
            counts = noisy_counts(counts, scale=scale, noise=kind, generator=noise)
        silo.send(Kind.SURVEY, SERVER, meta={"count_noise": scale}, tensors={"counts": counts})
        how = f"with noise of {scale:g} (count_noise)" if scale else "exact"
        silo.flood.print_event("class counts", f"sent, {how}")
