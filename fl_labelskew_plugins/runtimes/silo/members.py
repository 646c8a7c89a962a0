"""Connected, awaited, skipped and excluded silos, see docs/silo_failures.md."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import read_text, write_text, writing
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.recipe.conflicts import quorum
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.privacy import fewest_opened
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runtimes.transport import Transport

Answer = TypeVar("Answer")

STEP_S = 1.0  # maximum seconds between updates of the status
SETTLE_S = 0.2  # minimum seconds of a wait, even at a deadline: messages may already be on this machine
STALL_S = 0.5
"""If a wait exceeds its plan by more than this, the process was suspended. Only the planned time counts."""
OVERTIME_S = 10.0  # maximum seconds after a deadline to read queued messages, which a peer could send endlessly
NAME = "excluded.json"


class ExcludedSilos:
    """Silos that the operator excludes in a file. ``str()`` appends their ranks to error messages."""

    def __init__(self, folder: Path, silos: int, print_line: Callable[[str], None], note: Callable[..., None]) -> None:
        self.clients: set[int] = set()
        self._folder, self._silos, self._print_line, self._note = folder, silos, print_line, note
        self._mistake = ""

    def __str__(self) -> str:
        ranks = ", ".join(str(client + 1) for client in sorted(self.clients))
        return f", excluded: {ranks} (labelskew silo include {self._folder} RANK)" if ranks else ""

    def read(self) -> bool:
        """Read the file; return whether it has changed. Report an invalid file once."""
        try:
            ranks = read_excluded_ranks(self._folder)
        except LabelSkewError as error:
            if str(error) != self._mistake:
                log.warn(f"{error}; until it is valid, the excluded silos stay the same")
            self._mistake = str(error)
            return False
        self._mistake = ""
        before, self.clients = self.clients, {rank - 1 for rank in ranks if 1 <= rank <= self._silos}
        changed = sorted(before ^ self.clients)
        for client in changed:
            now = "excluded" if client in self.clients else "included"
            self._print_line(f"silo {client + 1} is {now}")
            self._note(now, rank=client + 1)
        return bool(changed)

    def select_clients(self, sampled: Sequence[int], round: int, seed: int) -> list[int]:
        """Return a round's clients, ascending. Random others replace excluded ones."""
        clients = [k for k in sampled if k not in self.clients]
        spare = [k for k in range(self._silos) if k not in self.clients and k not in sampled]
        if missing := min(len(sampled) - len(clients), len(spare)):
            rng = seeds.numpy_generator(seed, "instead of excluded silos", round)
            clients += rng.choice(spare, missing, replace=False).tolist()
        return sorted(clients)


class ListeningClock:
    """A clock that runs only while the server listens. It calls ``before`` before each wait."""

    def __init__(self, transport: Transport, before: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._transport, self._before = transport, before

    def listen(self, until: float) -> bool:
        """Wait for a message, at most :data:`STEP_S`. Return False after ``until`` if no message is queued."""
        wait = min(STEP_S, max(until - self.now, SETTLE_S))
        self._before()
        begun = time.monotonic()
        arrived = self._transport.receive(wait)
        took = time.monotonic() - begun
        stalled = took > wait + STALL_S
        self.now += wait if stalled else took
        return self.now < until + (OVERTIME_S if arrived or stalled else 0.0)


class Members:
    """The silos of a federation. Clients are numbered from 0. Only this class listens for messages.

    It calls ``recount`` when the excluded silos change. ``resume``: how to resume the run, for messages.
    """

    def __init__(
        self,
        recipe: Recipe,
        transport: Transport,
        excluded: ExcludedSilos,
        recount: Callable[[], None],
        warn: Callable[[str], None],
        resume: str,
        set_status: Callable[..., None],
        seen: status.Silos,
    ) -> None:
        self.comm, self.warn, self.resume = recipe.comm, warn, resume
        self.quorum, self.fewest_opened = quorum(recipe), fewest_opened(recipe)
        threshold = recipe.only_sums and self.quorum != self.comm.min_clients
        self.needs = f"comm_args.{'secure_threshold' if threshold else 'min_clients'}"
        """The recipe's key of :attr:`quorum`."""
        self.clock = ListeningClock(transport, self.write_status)
        self._seed, self.excluded, self._recount = recipe.common.random_seed, excluded, recount
        self._set_status, self._seen = set_status, seen
        self.wanted: tuple[str, str, Callable[[], Iterable[int]]] = (status.RUNNING, "", list[int])
        """The run's state, the expected message or action, and the missing clients."""
        self.round, self.opening = -1, "opening exchange"  # -1: outside rounds
        self.present: set[int] = set()
        self.skipped: set[int] = set()
        self.refusal_reasons: dict[int, str] = {}
        """Reason per refused client."""
        self._left_at: dict[int, float] = {}
        self._until = 0.0
        delays_answers = recipe.only_sums and recipe.privacy.noise_multiplier is not None
        self.reconnect_s = self.comm.reconnect_s + (self.comm.answers_after if delays_answers else 0.0)
        """With noise, silos reconnect only to answer, ``answers_after`` seconds after the request."""

    @property
    def where(self) -> str:
        """The current round, for messages."""
        return f"round {self.round + 1}" if self.round >= 0 else self.opening

    @property
    def excluded_clients(self) -> set[int]:
        """Clients that the operator excludes."""
        return set(self.excluded.clients)

    def begin(self, round: int) -> None:
        """Begin a round and its deadline."""
        self.round, self._until = round, self.clock.now + self.comm.round_deadline_s

    def deadline(self) -> float:
        """The round's deadline; at least a quarter of ``round_deadline_s`` from now, to have time for sum and tests."""
        return max(self._until, self.clock.now + self.comm.round_deadline_s / 4)

    def joined(self, client: int) -> None:
        """Record a connected silo with a valid HELLO."""
        self.present.add(client)
        self._left_at.pop(client, None)
        self.skipped.discard(client)
        self.refusal_reasons.pop(client, None)

    def heard(self, client: int) -> None:
        """Record a message: a skipped silo takes part again."""
        if client in self.present:
            self.skipped.discard(client)

    def left(self, client: int) -> None:
        """Record a lost connection."""
        self.present.discard(client)
        self._left_at[client] = self.clock.now

    def expect(self, clients: Iterable[int]) -> None:
        """Give clients ``reconnect_s`` from now on to connect."""
        self._left_at = dict.fromkeys(clients, self.clock.now)

    def turn_away(self, client: int, reason: str) -> None:
        """Refuse a silo until it sends a valid HELLO."""
        self.present.discard(client)
        self.skipped.add(client)
        self.refusal_reasons[client] = reason

    @property
    def uncounted(self) -> set[int]:
        """Excluded or refused clients; the federation's total excludes their samples."""
        return {*self.excluded_clients, *self.refusal_reasons}

    def give_up(self, client: int, reason: str) -> None:
        """Skip a silo."""
        self.skipped.add(client)
        self.warn(f"{self.where}: silo {client + 1} {reason}; skipped until it sends a message")

    def skip_if_gone(self, client: int) -> bool:
        """Return whether a silo may still answer. Skip it if it did not reconnect in time."""
        if client not in self.skipped and not self.reachable(client):
            self.give_up(client, f"did not reconnect within {self.reconnect_s:g} s")
        return client not in self.skipped

    def reachable(self, client: int) -> bool:
        """Whether a silo is connected or may still reconnect."""
        return client in self.present or self._may_return(client)

    def _may_return(self, client: int) -> bool:
        left_at = self._left_at.get(client, -math.inf)
        return client not in self.skipped and self.clock.now - left_at < self.reconnect_s

    def gather(self, expected: set[int]) -> None:
        """Wait for clients, except excluded ones. Raises RunError if too few connect within ``quorum_timeout_s``."""
        seconds = self.comm.quorum_timeout_s
        until = self.clock.now + seconds
        self.wanted = status.WAITING, "to connect", lambda: expected - self.excluded_clients - self.present
        while True:
            self.read_excluded()
            if expected - self.excluded_clients <= self.present or not self.clock.listen(until):
                break
        here = self.present - self.excluded_clients
        if len(here) < self.quorum:
            raise RunError(
                f"{len(here)} of at least {self.quorum} silos connected within {seconds:g} s "
                f"({self.needs}, quorum_timeout_s){self.excluded}"
            )
        self.skipped |= expected - self.present
        for client in sorted(self.skipped - self.excluded_clients):
            self.warn(f"silo {client + 1} has not connected; continuing without it")

    def invite(self, round: int, sampled: list[int]) -> list[int]:
        """Wait for the quorum, and at most ``reconnect_s`` for lost silos; return the round's connected clients.

        Raises RunError if there are too few.
        """
        seconds = self.comm.quorum_timeout_s
        until, reconnect_until, over = self.clock.now + seconds, self.clock.now + self.comm.reconnect_s, False
        clients, needed = sampled, min(self.quorum, len(sampled))
        self.wanted = status.WAITING, "to reconnect", lambda: [k for k in clients if k not in self.present]
        while True:
            self.read_excluded()
            clients = self.excluded.select_clients(sampled, round, self._seed)
            here = [k for k in clients if k in self.present and k not in self.skipped]
            # repeated disconnects of a silo do not extend the wait
            returning = not over and self.clock.now < reconnect_until and any(self._may_return(k) for k in clients)
            if not returning and len(here) >= needed:
                break
            if over:
                raise RunError(
                    f"round {round + 1}: {len(here)} of at least {needed} silos are connected after {seconds:g} s "
                    f"({self.needs}, quorum_timeout_s){self.excluded}; {self.resume}"
                )
            over = not self.clock.listen(until)
        self.round = round
        for client in clients:
            if client in self._left_at and client not in self.skipped:
                self.give_up(client, f"did not reconnect within {self.comm.reconnect_s:g} s")
        return here

    def read_excluded(self) -> None:
        """Read the file of excluded silos; recount after a change."""
        if self.excluded.read():
            self._recount()

    def write_status(self, *, now: bool = False) -> None:
        """Update the status file once per second, or ``now``."""
        if self._seen.due() or now:
            state, what, missing = self.wanted
            ranks = [client + 1 for client in sorted(missing())]
            self._set_status(
                state=state if ranks else status.RUNNING,
                waiting_for={"what": what, "silos": ranks} if ranks else None,
                silos=self._seen.rows(self.present, self.skipped, self.refusal_reasons, self.excluded.clients),
            )


@dataclass
class Poll(Generic[Answer]):
    """A request to clients. The caller fills ``answers``."""

    members: Members
    clients: Sequence[int]  # ascending
    name: str  # plural name of the answers, for messages
    answers: dict[int, Answer]
    least: int | None = None  # minimum number of answers; default: the quorum
    deadline: float | None = None  # on `members.clock`; default: Members.deadline
    settled: set[int] = field(default_factory=set)  # clients with an answer that was taken, refused or too late
    compared_clients: set[int] = field(default_factory=set)  # clients with an answer to compare with all others

    def awaits(self, client: int) -> bool:
        """Whether a client's answer may still be accepted."""
        return client in self.clients and client not in self.settled and client not in self.answers

    def take(self, refused: Callable[[int], bool] = lambda client: False) -> Iterator[int]:
        """Wait for ``least`` answers, then yield their clients, ascending. Drop an answer if ``refused(client)``.

        Raises RunError if too few answers arrive in time.
        """
        members, clients, answers = self.members, self.clients, self.answers
        clock, comm, where = members.clock, members.comm, members.where
        members.wanted = status.RUNNING, self.name, lambda: {*clients} - answers.keys() - self.settled
        needed = min(members.quorum if self.least is None else self.least, len(clients))
        if self.deadline is None:
            deadline, late = members.deadline(), f"missed the deadline of {comm.round_deadline_s:g} s"
        else:
            deadline, late = self.deadline, f"sent no {self.name} in time"
        timeout_begins = deadline
        while len(answers) < needed and any(map(self.awaits, clients)):
            # the wait of quorum_timeout_s begins early if no client can answer any more
            timeout_begins = deadline if self._waiting(clients) else min(timeout_begins, clock.now)
            if not clock.listen(timeout_begins + comm.quorum_timeout_s):
                break
        if len(answers) < needed:
            raise RunError(
                f"{where}: {len(answers)} of at least {needed} {self.name} arrived ({members.needs}, "
                f"round_deadline_s, quorum_timeout_s); {members.resume}"
            )
        over, counted = False, 0
        members.wanted = status.RUNNING, self.name, lambda: {*clients} - answers.keys() - self.settled - members.skipped
        for client in clients:
            while waiting := self._waiting(clients if client in self.compared_clients else [client]):
                if over:
                    for silent in waiting:
                        members.give_up(silent, late)
                else:
                    over = not clock.listen(deadline)
            self.settled.add(client)
            if client in answers and not refused(client):
                counted += 1
                yield client
        members.write_status(now=True)
        if counted < needed:
            raise RunError(
                f"{where}: {counted} of at least {needed} {self.name} remain after refusals "
                f"({members.needs}, max_update_ratio); {members.resume}"
            )

    def _waiting(self, clients: Sequence[int]) -> list[int]:
        return [client for client in clients if self.awaits(client) and self.members.skip_if_gone(client)]


def read_excluded_ranks(folder: Path) -> set[int]:
    """Read the ranks of excluded silos, from 1. Raises LabelSkewError for an invalid file."""
    file = folder / NAME
    try:
        return set(map(int, json.loads(read_text(file))))
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, TypeError) as error:
        raise LabelSkewError(f"{file}: cannot be read: {clean(error)}; delete the file to include all silos") from None


def exclude(folder: Path, rank: int) -> set[int]:
    """Exclude a silo from the next round on; return all excluded ranks."""
    known = _excluded_in_run(folder, rank)
    if rank in known:
        raise mistake(folder, f"silo {rank} is already excluded", "`labelskew silo include` to include it again")
    return _write(folder, known | {rank})


def include(folder: Path, rank: int) -> set[int]:
    """Include a silo from the next round on; return all excluded ranks."""
    known = _excluded_in_run(folder, rank)
    if rank not in known:
        there = f"excluded: {', '.join(map(str, sorted(known)))}" if known else "no silo of this run is excluded"
        raise LabelSkewError(f"{folder}: silo {rank} is not excluded; {there}")
    return _write(folder, known - {rank})


def _excluded_in_run(folder: Path, rank: int) -> set[int]:
    run = RunFolder(folder)
    if not folder.is_dir():
        raise mistake(folder, "no such folder", "the folder of the server's run")
    if not run.recipe.is_file():
        raise mistake(folder, "contains no recipe.yaml", "the folder of a server's run that has begun")
    recipe = recipes.load(run.recipe)
    if not recipe.common.across_silos:
        raise mistake(folder, "is not a cross-silo run", "the folder of a run with training_type: cross_silo")
    if not 1 <= rank <= (silos := recipe.train.client_num_in_total):
        raise LabelSkewError(f"{folder}: the run has no silo {rank}; allowed: 1 to {silos}")
    return read_excluded_ranks(folder)


def _write(folder: Path, known: set[int]) -> set[int]:
    with writing(folder / NAME):
        write_text(folder / NAME, json.dumps(sorted(known)) + "\n")
    return known
