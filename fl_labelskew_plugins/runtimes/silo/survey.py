"""A survey across silos: each is asked for its class counts, once, and nothing is trained; no weights travel.

A silo answers where its own command says ``--survey``, and its policy allows it. What it sends has the noise of its
own ``count_noise``, or of its policy's where that is more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import LabelSkewError, RunError, shareable
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import check_extra
from fl_labelskew_plugins.ledgers.privacy import SpentError
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import clean, without_paths
from fl_labelskew_plugins.methods.fedshift import noisy_counts
from fl_labelskew_plugins.recipe.privacy import count_noise, on_counts
from fl_labelskew_plugins.runtimes.messages import SERVER
from fl_labelskew_plugins.runtimes.silo.client import SiloClient, noise_seed
from fl_labelskew_plugins.runtimes.silo.guard import PolicyError
from fl_labelskew_plugins.runtimes.silo.members import Poll
from fl_labelskew_plugins.runtimes.silo.server import SiloServer
from fl_labelskew_plugins.runtimes.transport import Kind, Message, reason
from fl_labelskew_plugins.surveys.survey import Survey

MOST_NOISE = 1e9
"""Strength of noise that a silo may say; that of ``count_noise``."""


@dataclass(frozen=True)
class Answer:
    """Class counts of a silo, ``(C,)``, and the strength of their noise; None: it gives none."""

    counts: NDArray[np.int64] | None
    noise: float = 0.0


class SurveyServer(SiloServer):
    """The server of a survey: waits for silos as for a run, asks them, and tells them that it is over."""

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """The answers, too."""
        return {**super().handlers(), Kind.SURVEY: self._take}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._answers: dict[int, Answer] = {}
        self._why: dict[int, str] = {}
        self._ended = False
        self._poll: Poll[Answer] = Poll(self.members, [], "class counts", self._answers)
        self.members.opening = "survey"
        self.pools_moments = False

    def survey(self, names: list[str]) -> Survey:
        """What all silos that are there say; ``names``: of their own files, or empty.

        Raises:
            RunError: too few came, or none gives its counts.
        """
        self.meet()
        here = self.members.present - self.members.excluded
        self._poll = Poll(self.members, sorted(here), "class counts", self._answers)
        try:
            for _ in self._poll.take():
                pass
            self._ended = True
            self.dismiss()
        finally:
            self._flood.close()
        return self._survey([f"silo {rank} ({name})" if name else f"silo {rank}" for rank, name in enumerate(names, 1)])

    def _survey(self, names: list[str]) -> Survey:
        recipe, classes = self.recipe, self.census.num_classes
        given = {k: answer for k, answer in sorted(self._answers.items()) if answer.counts is not None}
        counts = np.array([answer.counts for answer in given.values()], np.int64).reshape(len(given), classes)
        if not counts.any():
            raise RunError("no silo has given class counts above 0, so there is nothing to survey")
        silent = {name: self._silence(k) for k, name in enumerate(names) if k not in given}
        return Survey(
            title=f"{clean(recipe.data.dataset)}, across silos",
            clients=[names[k] for k in given],
            class_names=self.census.class_names or [str(c) for c in range(classes)],
            counts=counts,
            noise=[answer.noise for answer in given.values()],
            silent=silent,
        )

    def _silence(self, client: int) -> str:
        members = self.members
        if client in members.excluded:
            return "it is excluded"
        there = "it has not answered" if self.sizes[client] else "it has not come"
        return self._why.get(client) or members.turned.get(client) or there

    def _hello(self, message: Message) -> None:
        super()._hello(message)
        client = message.sender - 1
        if client not in self.members.present:
            return
        if self._ended:
            self.bid_farewell(client)
        elif client not in self.members.excluded and client not in self._answers:
            self.send(Kind.SURVEY, client + 1)

    def _take(self, message: Message) -> None:
        client = message.sender - 1
        if client not in self.members.present or client in self._answers:
            return
        if (why := reason(message)) is not None:
            self._answers[client], self._why[client] = Answer(None), why
            self._say(client, f"gives no class counts: {why}", self.warn)
            return
        try:
            self._answers[client] = self._checked(client, message)
        except RunError as error:
            self._poll.settled.add(client)
            self._turn_away(client, str(error))

    def _checked(self, client: int, message: Message) -> Answer:
        """An answer; raises RunError where it is none."""
        tensors, noise = message.tensors, message.meta.get("count_noise")
        check_extra(tensors, {"counts": (self.census.num_classes,)}, where=f"survey of silo {client + 1}")
        if "counts" not in tensors or tensors["counts"].dtype != torch.int64:
            raise RunError("its class counts are not whole numbers")
        if type(noise) is not float or not 0 <= noise <= MOST_NOISE:
            raise RunError(f"its count_noise is not a number from 0 to {MOST_NOISE:g}")
        counts, most = tensors["counts"].numpy().copy(), self.recipe.comm.max_samples
        total = counts.sum(dtype=float)
        if total > most:
            raise RunError(f"its class counts are of more than {most} training samples (comm_args.max_samples)")
        if not noise and total != self.sizes[client]:
            raise RunError(f"its class counts sum to {total:.0f}, and it has {self.sizes[client]} training samples")
        return Answer(counts, noise)

    def _failed(self, message: Message) -> None:
        super()._failed(message)
        self._why[message.sender - 1] = reason(message) or "it cannot go on"

    def bid_farewell(self, client: int) -> None:
        """The survey is over."""
        self.send(Kind.FINISH, client + 1, meta={"done": True})


class SurveyedSilo(SiloClient):
    """A silo that was started for a survey, and takes part in nothing else."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # of what a run's HELLO may have, only what a survey needs
        self.data = replace(self.data, facts=replace(self.data.facts, counts=None), sums=None)

    def _welcome(self, message: Message) -> None:
        what = "the server trains, and this silo was started for a survey; leave --survey away"
        raise shareable(LabelSkewError(what))

    def _survey(self, message: Message) -> None:
        scale, kind = count_noise(self.recipe)
        seed = self._seed
        least, wanted = (0.0, "") if self.guard is None else self.guard.policy.least_noise("count_noise")
        if least > scale or wanted not in ("", kind):
            scale, kind = max(least, scale), wanted or kind
            seed = noise_seed(self._secret, self._about, f"count_noise {scale} {kind}")
        try:
            if self.guard is not None:
                self.guard.survey(hashlib.sha256(f"{seed} {scale}".encode()).hexdigest()[:32])
            if self.ledger is not None:
                # the method's own noise: what the opening of a run of these settings reveals
                answer = self._answer() if seed == self._seed else self._answer(f"survey {scale} {kind}")
                self.ledger.spend([on_counts(scale, kind, self.data.facts.samples)], answer, run="survey")
        except (PolicyError, SpentError) as error:
            log.warn(f"no class counts leave this silo: {error}")
            self.send(Kind.SURVEY, SERVER, meta={"reason": without_paths(error.public)})
            return
        counts = torch.from_numpy(self.data.counts)
        if scale:
            # the stream of an opening exchange: what a run of these settings sends is this answer again
            noise = seeds.noise_generator(seed, "opening noise", 0, self.client)
            counts = noisy_counts(counts, scale=scale, noise=kind, generator=noise)
        self.send(Kind.SURVEY, SERVER, meta={"count_noise": scale}, tensors={"counts": counts})
        self.show.note(f"class counts sent, {f'with noise of {scale:g} (count_noise)' if scale else 'exact'}")

    def _finish(self, message: Message) -> None:
        super()._finish(message)
        if self.failure is None:
            self.show.note("the survey is over; nothing was trained")
