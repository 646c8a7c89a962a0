"""What silos are asked for, before the first round and in each: whose answer the server takes, and whose it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_labelskew_registry import Contribution, RunError
from torch import Tensor

from fl_labelskew_plugins.engine.aggregate import check_extra
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.runs.rounds import Rounds
from fl_labelskew_plugins.runs.session import Session
from fl_labelskew_plugins.runtimes.messages import measures, upload
from fl_labelskew_plugins.runtimes.silo.census import Census
from fl_labelskew_plugins.runtimes.silo.members import Members, Poll
from fl_labelskew_plugins.runtimes.silo.outliers import Judge, norms
from fl_labelskew_plugins.runtimes.transport import Kind, Message
from fl_labelskew_plugins.tensors import State, Weights, joined, num_bytes, trim

HEAVY = 0.9
"""Share of a round's weight that one silo alone is warned of from."""
TAKEN: dict[str, Any] = {"taken": True}
LATE: dict[str, Any] = {"taken": False, "reason": "it came too late"}


class Opening:
    """The opening exchange: a round in which everybody who is there is asked, by WELCOME, and nobody trains."""

    def __init__(self, rounds: Rounds, members: Members, census: Census) -> None:
        self._rounds, self._members, self._census = rounds, members, census
        self._sent: dict[int, Contribution] = {}
        self._poll = Poll(members, [], "openings", self._sent)
        self.wanted = rounds.session.method.uses("opening")
        """Whether the method has such an exchange."""

    def exchange(self, *, resumed: bool) -> None:
        """Wait for everybody's opening, then share what is made of them.

        Of a resumed run only where an excluded silo's opening is in what it shares, and everybody else's is at hand.
        """
        opened, excluded, present = set(self._rounds.server.opened), self._members.excluded, self._members.present
        again = opened - excluded < opened and opened - excluded <= present
        if self.wanted and (again or not resumed):
            self._poll = Poll(self._members, sorted(present - excluded), "openings", self._sent)
            for _ in self._poll.take():
                pass
            self._share()

    def catch_up(self) -> None:
        """Share anew where further ones have come; of a resumed run once all are here again whose are in it."""
        opened, excluded = set(self._rounds.server.opened), self._members.excluded
        sent = self._sent.keys() - excluded
        if sent != opened and sent >= opened - excluded:
            self._share()

    def take(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """One has come; raises RunError where it is not what the method sends."""
        session = self._rounds.session
        try:
            shapes = session.method.opening_shapes(session.federation)
            check_extra(tensors, shapes, where=f"opening of silo {client + 1}")
            check_counts(tensors, session)
        except RunError:
            self._poll.settled.add(client)
            raise
        self._members.away.discard(client)
        self._sent[client] = Contribution(client, tensors)

    def _share(self) -> None:
        """Make what all silos share from all that came so far."""
        server, excluded = self._rounds.server, self._members.excluded
        server.federation = self._census.federation(self._rounds.session.federation, excluded)
        server.open([self._sent[client] for client in sorted(self._sent.keys() - excluded)])


class Uploads:
    """What silos are asked for, round by round; ``sizes``: training samples of each."""

    def __init__(self, rounds: Rounds, members: Members, sizes: list[int], send: Callable[..., None]) -> None:
        self._rounds, self._record, self._comm = rounds, rounds.record, members.comm
        self._members, self._sizes, self._send = members, sizes, send
        self._judge = Judge(self._comm.max_update_ratio, rounds.record.norms)
        self._poll: Poll[LocalResult]
        self._news: State
        self.close()
        self._taken: dict[int, int] = {}
        self._heavy: set[tuple[int, int]] = set()

    def of(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Ask these silos; yield what they send, in ascending order, once enough have answered for a quorum.

        Raises:
            RunError: too few sent it in time.
        """
        self._members.round = round
        poll: Poll[LocalResult] = Poll(self._members, clients, "uploads", {})
        self._poll = poll
        self._judge.begin(round)
        self._warn_of_heavy(clients)
        server, states = self._rounds.server, self._record.states
        self._news = joined(model=server.weights, shared=server.shared)
        for client in clients:
            self.ask(client)
        large = num_bytes(self._news.values()) > self._comm.upload_memory_mb * 2**20
        for client in poll.take(self._refuse):
            self._record.progress.client(round, clients.index(client) + 1, len(clients))
            if large:
                trim()  # of what messages took on their way
            result = poll.answers.pop(client)
            states.select(client)
            states.note(client, round)
            yield client, result
            del result
        self.close()

    def close(self) -> None:
        """Nobody is asked any more."""
        self._poll, self._news = Poll(self._members, [], "uploads", {}), {}

    @property
    def personalised(self) -> bool:
        """Whether silos measure their own models in this round."""
        return self._record.personalised and self._record.tests(self._members.round)

    def awaits(self, client: int) -> bool:
        """Whether a silo is asked for an upload that has not come."""
        return self._poll.awaits(client)

    def ask(self, client: int) -> None:
        """Have a silo train."""
        states, round = self._record.states, self._members.round
        self._send(
            Kind.TRAIN,
            client + 1,
            round=round,
            meta={
                "times_selected": states.times_selected(client) + 1,
                "state_round": states.committed.get(client, -1),
                "kept_rounds": states.kept(client),
                "personalised": self.personalised,
            },
            tensors=self._news,
        )

    def take(self, client: int, message: Message) -> dict[str, Any] | None:
        """An upload has come; what is to be said of it, if anything yet."""
        poll, round = self._poll, message.round
        if round != self._members.round or not poll.awaits(client):
            return TAKEN if self._taken.get(client) == round else LATE  # sent twice, because its connection broke
        server, device = self._rounds.server, self._rounds.session.trainer.device
        try:
            result = upload(message.tensors, message.meta)
            if result.state:
                raise RunError("it holds private state")
            result.upload = {k: v.to(device) for k, v in result.upload.items()}
            result.contributions = {k: v.to(device) for k, v in result.contributions.items()}
            server.check(client, round, result)
            check_counts(result.contributions, self._rounds.session)
        except RunError as error:
            poll.settled.add(client)
            self._members.warn(f"round {round + 1}: upload of silo {client + 1} refused: {error}")
            return {"taken": False, "reason": str(error)}
        poll.answers[client], self._taken[client] = result, round
        if self._judge.ratio is not None:
            change = server.optimizer.sends_change
            sends = self._rounds.session.method.sends
            if not self._judge.add(
                client, norms(result, server.weights, server.parameters, sends, sends_change=change)
            ):
                poll.held.add(client)
        return TAKEN

    def _refuse(self, client: int) -> bool:
        """Whether a client's upload is out of all proportion; it is then gone, and both sides are told."""
        why = self._judge.objection(client) if client in self._poll.held else ""
        if why:
            del self._poll.answers[client], self._taken[client]
            limit = f"more than {self._comm.max_update_ratio:g} times as much (comm_args.max_update_ratio)"
            self._members.warn(f"{self._members.where}: upload of silo {client + 1} refused: {why}; that is {limit}")
            meta = {"taken": False, "reason": f"a norm of it is {limit} as at the others and at this silo before"}
            self._send(Kind.VERDICT, client + 1, round=self._members.round, meta=meta)
        return bool(why)

    def _warn_of_heavy(self, clients: Sequence[int]) -> None:
        """Say it where one silo has most of a round's weight, once for each number of samples."""
        sizes = [self._sizes[client] for client in clients]
        shares = self._rounds.server.shares(sizes) if len(clients) > 1 else []
        for client, size, share in zip(clients, sizes, shares, strict=False):
            if share > HEAVY * sum(shares) and (client, size) not in self._heavy:
                self._heavy.add((client, size))
                log.warn(
                    f"silo {client + 1} has {100 * share / sum(shares):.4g} % of the weight of {self._members.where}: "
                    f"it says that it has {size} of {sum(sizes)} training samples"
                )


class ClientTests:
    """How the global model does on silos' own test parts, by their own word; who does not tell is left out of it."""

    def __init__(self, members: Members, send: Callable[..., None], silos: int) -> None:
        self._members, self._send, self._silos = members, send, silos
        self._poll: Poll[dict[str, float]]
        self._model: State
        self._close()

    def of(self, weights: Weights) -> list[dict[str, float]]:
        """Send these to everybody who is here; each silo's measures, empty where none have come in time."""
        members = self._members
        self._model = joined(model=weights)
        clients = sorted(members.present - members.away - members.excluded)
        self._poll = Poll(members, clients, "tests", {}, least=0)
        for client in clients:
            self.ask(client)
        for _ in self._poll.take():
            pass
        answers = self._poll.answers
        self._close()
        return [answers.get(client, {}) for client in range(self._silos)]

    def _close(self) -> None:
        self._poll, self._model = Poll(self._members, [], "tests", {}), {}

    def awaits(self, client: int) -> bool:
        """Whether a silo is asked for a test that has not come."""
        return self._poll.awaits(client)

    def ask(self, client: int) -> None:
        """Have a silo test the model."""
        self._send(Kind.TEST, client + 1, round=self._members.round, tensors=self._model)

    def take(self, client: int, message: Message) -> None:
        """A test has come."""
        if message.round == self._members.round and self._poll.awaits(client):
            try:
                self._poll.answers[client] = measures(message.meta)
            except RunError as error:
                self._poll.settled.add(client)
                self._members.warn(f"{self._members.where}: test of silo {client + 1} refused: {error}")


def check_counts(tensors: Mapping[str, Tensor], session: Session) -> None:
    """Raise RunError for counts of more samples than a silo may have."""
    most = session.recipe.comm.max_samples
    for name, value in tensors.items():
        if session.method.sends.get(name) == "counts" and value.double().sum() > most:
            raise RunError(f"{name} are of more than {most} training samples (comm_args.max_samples of the server)")
