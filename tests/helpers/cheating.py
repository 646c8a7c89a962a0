"""``labelskew`` with functions replaced: ``cheating.py NAME[+NAME] run ...``; the names are below.

Most cheat only in the second round, so that the first one is an honest one; those that use :func:`replaced` may have
another round: ``NAME@ROUND``.
"""

import hashlib
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import grpc
import numpy as np
import torch
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.engine import sums, turn
from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.ring import Ring, Wide, parts, trim
from fl_labelskew_plugins.runtimes.silo import client as silo_client
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.answering import SiloSums
from fl_labelskew_plugins.runtimes.silo.secure.asking import ServerSums
from fl_labelskew_plugins.runtimes.silo.secure.attempt import SecureError
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert
from fl_labelskew_plugins.runtimes.silo.secure.server import ServerRound
from fl_labelskew_plugins.runtimes.silo.secure.silo import STEPS, SiloRound
from fl_labelskew_plugins.runtimes.silo.server import ClientTests, SiloServer
from fl_labelskew_plugins.runtimes.silo.summed import SummedAnswers, SummedOpening, SummedUploads
from fl_labelskew_plugins.runtimes.transport import Kind
from fl_labelskew_plugins.runtimes.wire import plain
from fl_labelskew_plugins.tensors import joined

ROUND = 1
CHEATS = {}


def cheat(function):
    CHEATS[function.__name__] = function
    return function


def replaces(owner, name):
    """Replace a method by the decorated function of the object, the original's bound method, and the arguments."""

    def decorate(function):
        original = getattr(owner, name)
        setattr(owner, name, lambda self, *args, **kwargs: function(self, partial(original, self), *args, **kwargs))

    return decorate


def replaced(owner, name, by):
    """In that round, have ``by`` make the result of the method: of the object, the original, and the arguments."""
    round = ROUND

    @replaces(owner, name)
    def method(self, honest, *args):
        return by(self, partial(honest, *args), *args) if self.attempt.round == round else honest(*args)


# -- servers


def believes_each_silo(self, rank, advert):
    """Also if it has signed another question than the rest."""
    self._shown[rank] = Advert.unpack(advert)


@cheat
def replaces_a_key():
    def roster(server, honest):
        theirs = dict(honest())
        ours = [masks.public(masks.key_pair(secret)) for secret in (7, 8, 9)]
        shown = Advert.unpack(theirs[2])
        theirs[2] = Advert(*ours, shown.signature, shown.certificate).pack()
        return theirs

    replaced(ServerRound, "roster", roster)


@cheat
def asks_for_both_kinds_of_share():
    """Report to silo 1 that silo 4 is in the sum, and to the others that it is not."""

    @replaces(ServerSums, "_ask")
    def ask(self, honest, client):
        content = self._content
        if self._kind.name == "INCLUDED" and self._attempt.round == ROUND and client:
            self._content = lambda rank: ({"included": [1, 2, 3]}, {})
        honest(client)
        self._content = content

    ServerRound.agreed = lambda self, rank, signature: self._signatures.__setitem__(rank, signature)


@cheat
def shows_one_silo_another_model():
    """Of which the others' changes would be known, and the sum would be that silo's."""

    @replaces(SummedUploads, "ask")
    def ask(self, honest, client):
        news = self._request
        if self.server.members.round == ROUND and client == 3:
            self._request = {name: value / 2 for name, value in news.items()}
        honest(client)
        self._request = news

    ServerRound.advertised = believes_each_silo


@cheat
def asks_for_right_answers_under_noise():
    content = SummedOpening.content.fget

    @replaces(sums.Sums, "__init__")
    def init(self, honest, trainer, *args, bits, **kwargs):
        honest(trainer, *args, bits=bits, **kwargs)
        self.right = Ring({"right": Wide((), sums.SUM_FRACTION_BITS)}, bits, trainer.federation.num_clients)

    SummedOpening.content = property(lambda self: (known := content(self)) and known | {"test_samples": 9})


@cheat
def tests_two_models():
    """In one round; the second one is the first one halved."""

    @replaces(ClientTests, "collect")
    def of(self, honest, weights):
        if self.server.members.round == ROUND:
            honest({name: value / 2 for name, value in weights.items()})
        return honest(weights)


@cheat
def asks_for_training_before_the_opening():
    """The time of an error would reveal when training has ended."""

    def exchange(self, *, resumed):
        news = plain(joined(model=self.rounds.server.weights))
        meta = {"times_selected": 1, "state_round": -1, "kept_rounds": [], "personalised": False}
        for client in sorted(self.server.members.present):
            self.server.send(Kind.TRAIN, client + 1, round=0, meta=meta, tensors=news)
        self.server.members.clock.listen(60)
        raise RunError("no opening")

    SummedOpening.exchange = exchange


@cheat
def floods_and_cuts_in_training():
    """Send silo 3 verdicts of another round, which are harmless but take time to read, and cut silo 2's connection.

    The time of the next HELLO would reveal whether silo 2 still trains.
    """
    verdict = {"taken": True, "x": ["a"] * 60_000}

    @replaces(SummedUploads, "ask")
    def ask(self, honest, client):
        honest(client)
        server = self.server
        if server.members.round == ROUND and client == 1:
            threading.Timer(1, server.transport._open[2].close, (grpc.StatusCode.UNAVAILABLE, "cut")).start()
        if server.members.round == ROUND and client == 2:
            for _ in range(5):
                server.send(Kind.VERDICT, 3, round=7, meta=verdict)


@cheat
def continues_from_another_state():
    """Change one silo, so that only its answer differs."""

    @replaces(SummedUploads, "ask")
    def ask(self, honest, client):
        committed = self.rounds.record.states.committed
        with patch.dict(committed):
            if self.server.members.round == ROUND and client == 3:
                committed.pop(client)
            honest(client)


@cheat
def continues_from_a_sum_that_was_not_opened():
    """All silos mask their vectors of another model; in the next round, only one silo continues from it."""

    def unopened(server):
        raise SecureError("not opened")

    @replaces(SummedUploads, "total")
    def total(self, honest, round, clients):
        if round != ROUND:
            return honest(round, clients)
        server, included, states = self.rounds.server, ServerRound.included, self.rounds.record.states
        weights, server.weights = server.weights, {name: 3 * value for name, value in server.weights.items()}
        ServerRound.included = unopened
        with suppress(RunError):
            honest(round, clients)
        ServerRound.included, server.weights = included, weights
        states.committed[3] = round
        return honest(round + 1, clients)


@cheat
def withholds_the_end_of_a_sum():
    """From all silos except one, so that only this one continues from its new private state."""

    @replaces(ServerSums, "_ask")
    def ask(self, honest, client):
        withheld = self._kind is Kind.REVEALED and self._attempt.round == ROUND
        if not withheld or client == 3:
            honest(client)
        if withheld and client == 3:
            raise RunError("withheld")

    @replaces(SummedUploads, "total")
    def total(self, honest, round, clients):
        if round != ROUND:
            return honest(round, clients)
        with suppress(RunError):
            honest(round, clients)
        states = self.rounds.record.states
        states.committed[3], states.selections[3] = round, states.selections[3] + 1
        ServerRound.advertised = believes_each_silo
        return honest(round + 1, clients)


@cheat
def agrees_with_each_silo():
    """Though all silos but the first one have another learning rate, so that the sum is almost the first one's part."""

    @replaces(SiloServer, "send")
    def send(self, honest, kind, receiver, **content):
        meta = content.get("meta")
        if kind is Kind.WELCOME and receiver != 1:
            settings = meta["settings"]
            train = settings["train_args"] | {"learning_rate": 1e-30}
            content["meta"] = meta | {"settings": settings | {"train_args": train}}
        honest(kind, receiver, **content)

    ServerRound.advertised = believes_each_silo


@cheat
def says_that_all_silos_have_one_sample():
    """So that silos answer why they cannot believe it."""
    honest = SummedOpening._set_samples
    SummedOpening._set_samples = lambda self, samples: honest(self, 1)


@cheat
def begins_a_second_run():
    """After a round, the same question in another run, on the connections that are there, without silo 4."""

    @replaces(SummedUploads, "total")
    def total(self, honest, round, clients):
        server, first = self.server, self.server.record.run
        weights, others = dict(self.rounds.server.weights), clients[:-1]
        came, vector = honest(round, clients)
        if round == ROUND:
            self.rounds.server.weights = weights
            server.record = SimpleNamespace(**{**vars(server.record), "run": "f" * 16})
            for client in others:
                server.welcome(client)
            _, without = honest(round, others)
            server.record.run = first
            ring, difference = self.rounds.session.sums.round, vector.copy()
            for ours, theirs in zip(parts(difference, ring.wide), parts(without, ring.wide), strict=True):
                np.subtract(ours, theirs, out=ours)
            trim(difference, ring.bits, ring.wide)
            print("difference", hashlib.sha256(difference).hexdigest(), flush=True)
        return came, vector


# -- silos


@cheat
def shows_its_vector():
    def mask(silo, honest, vector, sharing):
        print("vector", hashlib.sha256(vector).hexdigest(), flush=True)
        return honest()

    replaced(SiloRound, "mask", mask)


@cheat
def prints_its_openings():
    """An honest silo. The time that an opening takes would reveal its number of samples if it were measured often."""

    @replaces(sums.Sums, "encode_opening")
    def opened(self, honest, *args):
        print("counts its samples", flush=True)
        return honest(*args)


@cheat
def reports_freed_results():
    """An honest silo. Freeing its results after the answer would show the server whether training has failed."""
    kept = []

    @replaces(SummedAnswers, "to_upload")
    def to_upload(self, honest, round, start, result):
        kept.append(weakref.ref(result))
        return honest(round, start, result)

    @replaces(SummedAnswers, "send")
    def send(self, honest, *args):
        print("results are", "kept" if kept[-1]() else "freed", flush=True)
        return honest(*args)

    @replaces(SummedAnswers, "handle_verdict")
    def handle_verdict(self, honest):
        honest()
        print("vector is", "freed" if self.silo.upload is None and self._last is None else "kept", flush=True)


def claims(place, number):
    """Add a number to one of the sums of the opening."""

    @replaces(sums.Sums, "encode_opening")
    def opened(self, honest, *args):
        vector = honest(*args)
        parts(vector, self.opening.wide)[0][place:][:1] += np.uint64((number << sums.SUM_FRACTION_BITS) % 2**64)
        return vector


CHEATS["claims_too_many_samples"] = partial(claims, 0, 5 * 10**11)  # so that no other silo's change counts
CHEATS["claims_many_test_samples"] = partial(claims, 1, 5000)  # to choose the best round by false accuracies
CHEATS["denies_its_opening"] = partial(claims, -1, -5)  # senders of the method's tensor: the sum has no sender


@cheat
def claims_one_more_sample_in_a_second_opening():
    """After a restart, without its own checks."""
    claims(0, 1)
    SummedAnswers.open = lambda self, session, federation: self.silo.use(
        replace(session, federation=federation, trainer=replace(session.trainer, federation=federation))
    )


@cheat
def reveals_wrong_shares():
    replaced(SiloRound, "reveal", lambda silo, honest, signatures: dict.fromkeys(honest(), bytes(32)))


@cheat
def reveals_late():
    """An honest silo with a slow line, so that the server also needs the shares of the others."""
    replaced(SiloRound, "reveal", lambda silo, honest, *_: (time.sleep(2), honest())[1])


@cheat
def sends_values_out_of_range():
    """All bits set, of which a ring of fewer than 32 has not all."""
    replaced(SiloRound, "mask", lambda silo, honest, *_: np.full_like(honest(), -1))


@cheat
def deals_a_wrong_share():
    """The shares of silo 2 do not fit the commitments."""
    honest = shares.dealt

    def dealt(*args):
        good, commitments = honest(*args)
        return {rank: share + (rank == 2) for rank, share in good.items()}, commitments

    def share(silo, honestly, roster):
        with patch.object(shares, "dealt", dealt):
            return honestly()

    replaced(SiloRound, "share", share)


@cheat
def complains_of_others():
    """Though their shares fit."""
    replaced(SiloRound, "check", lambda silo, honest, dealt: {1: silo._share_secret.to_bytes(masks.SECRET, "big")})


@cheat
def shows_the_point_at_infinity():
    def advertise(silo, honest):
        shown = Advert.unpack(honest())
        keys = shown.share_key, b"\4" + bytes(64), shown.seed_key
        silo._advert = silo._identity.advert(silo.rank, *keys, silo.attempt).pack()
        return silo._advert

    replaced(SiloRound, "advertise", advertise)


@cheat
def sends_a_short_teacher():
    """Send shared tensors of 4 classes: training fails only at silos with samples of other classes."""

    @replaces(SummedUploads, "total")
    def total(self, honest, round, clients):
        self.rounds.server.shared = {
            "total": torch.ones(4, 10), "senders": torch.full((4,), 3.0), "round": torch.tensor(0)
        }  # fmt: skip
        return honest(round, clients)


def fails_with(error):
    """In the second round; as a model of the server's making can bring about, or tensors of another shape."""

    @replaces(turn.Turn, "fit")
    def fit(self, honest, *args, **kwargs):
        if self.view.round == ROUND:
            raise error
        return honest(*args, **kwargs)


CHEATS["fails_in_training"] = partial(fails_with, RunError("round 2: client 2: fc.weight is not finite"))
CHEATS["fails_with_a_bug"] = partial(fails_with, IndexError("index 8 is out of bounds for dimension 0 with size 5"))


def after_its_first_training(act):
    trainings = itertools.count()

    @replaces(turn.Turn, "fit")
    def fit(self, honest, *args, **kwargs):
        result = honest(*args, **kwargs)
        if next(trainings) == 1:  # the first one is of a fresh network
            act(result)
        return result


@cheat
def fails_in_its_first_training():
    def fail(result):
        raise RunError("loss term cross_entropy is inf")

    after_its_first_training(fail)


@cheat
def is_not_finite_in_its_first_training():
    def spoil(result):
        for tensors in (result.upload, result.state):
            tensors |= {name: value * float("nan") for name, value in tensors.items()}

    after_its_first_training(spoil)


@cheat
def loses_its_device():
    """As after a failed assertion on a GPU: the process cannot use the network there any more."""
    lost = []

    def fail_if_lost(trainer):
        if trainer.model in lost:
            raise RuntimeError("CUDA error: device-side assert triggered")

    @replaces(turn.Turn, "fit")
    def fit(self, honest, *args, **kwargs):
        if self.view.round == ROUND:
            lost.append(self.trainer.model)
        fail_if_lost(self.trainer)
        return honest(*args, **kwargs)

    @replaces(LocalTrainer, "predict")
    def predict(self, honest, *args, **kwargs):
        fail_if_lost(self)
        return honest(*args, **kwargs)

    counts = LocalTrainer.counts
    LocalTrainer.counts = lambda self, client: (fail_if_lost(self), counts(self, client))[1]
    silo_client.works = lambda device: not lost
    honest_seed = torch.cuda.manual_seed_all  # torch.manual_seed calls it

    def seed_all(seed):
        if lost:
            raise RuntimeError("CUDA error: device-side assert triggered")
        honest_seed(seed)

    torch.cuda.manual_seed_all = seed_all


@cheat
def trains_at_once():
    """What a model does that fails with the first sample; other silos' training is not as fast."""

    @replaces(SummedAnswers, "turn")
    def turn(self, honest, take, client, round, weights, **more):
        if round == ROUND:
            return LocalResult(dict(weights), {}, {}, {})
        return honest(take, client, round, weights, **more)


@cheat
def answers_each_step_late():
    """By two seconds."""
    for step in STEPS:
        replaced(SiloRound, step, lambda silo, honest, *_: (time.sleep(2), honest())[1])


@cheat
def has_a_slow_line():
    """An honest silo: each of its answers to a step leaves 0.2 seconds later."""

    @replaces(SiloSums, "take")
    def take(self, honest, run, message):
        time.sleep(0.2)
        honest(run, message)


def sends_its_vector_late(seconds):
    """An honest silo on a slow line, in that round."""
    replaced(SiloRound, "mask", lambda silo, honest, *_: (honest(), time.sleep(seconds))[0])


for seconds in (1, 5):
    CHEATS[f"sends_its_vector_{seconds}_s_late"] = partial(sends_its_vector_late, seconds)


def before_it_is_ready(act):
    """Call ``act`` with the silo before its upload, in that round."""

    @replaces(SummedAnswers, "send")
    def send(self, honest, round, result):
        if round == ROUND:
            act(self.silo)
        honest(round, result)


@cheat
def is_ready_just_in_time():
    """Half a second before the deadline of the round."""
    before_it_is_ready(lambda silo: time.sleep(silo.recipe.comm.round_deadline_s - 1))


def silent_at(kind):
    """No answer to this step; its connection stays."""

    @replaces(SiloSums, "take")
    def take(self, honest, run, message):
        if (message.kind, message.round) != (kind, ROUND):
            honest(run, message)


for kind in (Kind.KEYS, Kind.MASKED, Kind.REVEALED):
    CHEATS[f"silent_at_{kind.name}"] = partial(silent_at, kind)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


for step in STEPS:
    CHEATS[f"dies_at_{step}"] = partial(replaced, SiloRound, step, die)
CHEATS["dies_before_it_is_ready"] = partial(before_it_is_ready, die)


@cheat
def is_ready_and_pretends_to_restart():
    """Then it is silent."""
    sent = []

    @replaces(SummedAnswers, "send")
    def send(self, honest, round, result):
        if round == ROUND and not sent:
            sent.append(round)
            honest(round, result)
            threading.Timer(0.7, reconnects, [self.silo]).start()
        elif round != ROUND:
            honest(round, result)

    def reconnects(silo):
        silo._process = "f" * 16
        silo.transport._cancel()


if __name__ == "__main__":
    for word in sys.argv.pop(1).split("+"):
        name, _, number = word.partition("@")
        ROUND = int(number or 1)
        CHEATS[name]()
    main()
