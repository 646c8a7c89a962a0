"""The ledger of clients' answers, their epsilon, and the answers that a budget allows.

Epsilon is the smaller of two bounds (docs/privacy.md). The first is that of Renyi differential privacy (Mironov, CSF
2017). The second is the sum of the pure bounds of Laplace noise and the exact bound of Gaussian noise (Balle and Wang,
ICML 2018). For discrete Gaussian noise only the first bound applies, with the formula of Gaussian noise (Kairouz, Liu,
Steinke, ICML 2021, theorem 1).
"""

import fcntl
import importlib.util
import json
import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from fl_labelskew_registry import LabelSkewError, RunError, shareable
from pydantic import BaseModel

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.files import open_regular, read_bytes
from fl_labelskew_plugins.machine.text import utc
from fl_labelskew_plugins.recipe.conflicts import fewest_summed
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.privacy import BUDGET, Noise, sent_noise
from fl_labelskew_plugins.recipe.sections import Level, PrivacyBudget

NAME = "privacy.jsonl"
LEVELS: tuple[Level, ...] = get_args(Level)
DELTA = 1e-5  # without a budget
MAX_ANSWERS = 10**6
Spent = tuple[tuple[str, float, int], ...]  # kind of noise, strength divided by sensitivity, number of answers


class SpentError(RunError):
    """Another answer would exceed a client's budget."""


class LedgerEntry(BaseModel):
    """A line: an answer, and the total epsilon (None: no bound)."""

    time: str
    run: str
    round: int
    client: int | None = None
    answer: str
    answered: list[Noise]
    delta: float
    epsilon: dict[Level, float | None] = {}


class Ledger:
    """A file of answers, and their budget, if any. Raises LabelSkewError if the file is not a ledger."""

    def __init__(self, file: Path, budget: PrivacyBudget | None = None, level: Level = "silo") -> None:
        self.file, self.budget, self.level = file, budget, level
        if budget is not None:
            require(BUDGET)
        self.entries: list[LedgerEntry] = []
        self._size = -1
        self._spent: dict[int | None, Counter[Noise]] = {}
        self._answers: set[tuple[int | None, str, tuple[Noise, ...]]] = set()
        self._read()

    def spend(
        self, noises: Sequence[Noise], answer: str, *, run: str, round: int = -1, client: int | None = None
    ) -> None:
        """Record an answer before it is computed, unless it is recorded already.

        ``noises``: noise of each part; ``answer``: digest of all its inputs; ``round``: -1 before the first round.

        Raises SpentError if the answer would exceed the budget, and RunError if the ledger cannot be written.
        """
        with self._locked():
            if (client, answer, tuple(noises)) in self._answers:
                return
            delta, with_answer = self._total(noises, round, client)
            entry = LedgerEntry(
                time=utc(),
                run=run,
                round=round,
                client=client,
                answer=answer,
                answered=noises,
                delta=delta,
                epsilon={level: value if math.isfinite(value) else None for level, value in with_answer.items()},
            )
            self._write(entry)
            self._add(entry)

    def check(self, noises: Sequence[Noise], *, round: int) -> None:
        """Raise SpentError if another answer would exceed the budget."""
        with self._locked():
            self._total(noises, round, None)

    def _total(self, noises: Sequence[Noise], round: int, client: int | None) -> tuple[float, dict[Level, float]]:
        """Delta, and epsilon with another answer."""
        delta = DELTA if self.budget is None else self.budget.delta
        spent = self._spent.get(client, Counter()) + Counter(noises)
        with_answer = {level: epsilon(strengths(spent, level), delta) for level in LEVELS} if installed() else {}
        if self.budget is not None and with_answer[self.level] > self.budget.epsilon:
            before = epsilon(strengths(self._spent.get(client, Counter()), self.level), delta)
            refused = "an answer before the first round" if round < 0 else f"an answer to round {round + 1}"
            what = f"epsilon {self.budget.epsilon:g} at delta {delta:g} does not allow {refused}"
            total = f"{before:.3g} is spent, and this answer would increase it to {with_answer[self.level]:.3g}"
            error = SpentError(f"{BUDGET}: {what}: {total}; see {self.file}")
            raise shareable(error, f"{BUDGET} does not allow {refused}")
        return delta, with_answer

    def _add(self, entry: LedgerEntry) -> None:
        self.entries.append(entry)
        self._answers.add((entry.client, entry.answer, tuple(entry.answered)))
        self._spent.setdefault(entry.client, Counter()).update(entry.answered)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file: a silo may be in several runs."""
        try:
            # the ledger may be a link; if its target is not a ledger, reading fails before anything is written
            handle = open_regular(os.path.realpath(self.file), os.O_WRONLY | os.O_CREAT)
        except OSError as error:
            raise self._unwritable(error) from None
        with os.fdopen(handle, "ab") as file:
            with suppress(OSError):  # a network file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            self._read()
            yield

    def _unwritable(self, error: OSError) -> RunError:
        what = f"{self.file}: cannot be written: {error.strerror}"
        return RunError(f"{what}; without its ledger, this silo does not answer")

    def _read(self) -> None:
        """Read the file if it has changed."""
        try:
            if not self.file.exists() or self.file.stat().st_size == self._size:
                return
            # an incomplete line is of an answer that was not given
            whole, newline, _ = read_bytes(self.file).rpartition(b"\n")
            lines = [LedgerEntry.model_validate_json(line) for line in whole.splitlines()]
        except (OSError, ValueError):
            use = "restore the original file, or remove it to start a new one"
            raise LabelSkewError(f"{self.file}: is not a privacy ledger; {use}") from None
        self.entries, self._spent, self._answers = [], {}, set()
        for entry in lines:
            self._add(entry)
        self._size = len(whole) + len(newline)

    def _write(self, entry: LedgerEntry) -> None:
        line = json.dumps(entry.model_dump(exclude_none=True) | {"epsilon": entry.epsilon}) + "\n"
        try:
            with self.file.open("r+b") as file:
                file.seek(self._size)
                file.truncate()
                file.write(line.encode())
                if entry.client is None:  # simulated clients' answers can be reproduced
                    file.flush()
                    os.fsync(file.fileno())
                self._size = file.tell()
        except OSError as error:
            raise self._unwritable(error) from None


def ledger_of(recipe: Recipe, folder: Path) -> Ledger | None:
    """The ledger of a run, if it needs one."""
    args = recipe.privacy
    elsewhere = args.ledger if recipe.common.across_silos else None
    file = folder / NAME if elsewhere is None else Path(elsewhere)
    parts = sent_noise(recipe, 1, 1)
    noisy = any(noise.claim for noise in [*parts.once, *parts.upload])
    if recipe.policy is not None:  # its noise is added to surveys
        noisy = noisy or recipe.policy.least_noise("count_noise") != (0.0, "")
    return Ledger(file, args.budget, args.level) if noisy or args.budget is not None or file.exists() else None


class ClientAccounts:
    """The budgets of a simulation's clients; ``sizes``: training samples of each client."""

    def __init__(self, ledger: Ledger, recipe: Recipe, sizes: Sequence[int], run: str) -> None:
        self.ledger, self.run = ledger, run
        least = min((size for size in sizes if size), default=0)
        self._noises = [sent_noise(recipe, samples, least) for samples in sizes]
        self._least = 1 if recipe.privacy.noise_multiplier is None else fewest_summed(recipe)

    def open(self) -> None:
        """Record the answers before the first round. Raises SpentError."""
        for client, parts in enumerate(self._noises):
            if parts.once:
                self.ledger.spend(parts.once, "opening", run=self.run, client=client)

    def willing(self, round: int, clients: Iterable[int]) -> list[int]:
        """Record an answer of each client with enough budget; return these clients. Raises RunError for too few."""
        willing, refusal = [], None
        for client in clients:
            try:
                upload = self._noises[client].upload
                self.ledger.spend(upload, f"round {round}", run=self.run, round=round, client=client)
                willing.append(client)
            except SpentError as error:
                refusal = error
        if len(willing) < self._least and refusal is not None:
            count = "no selected client" if not willing else f"too few clients ({len(willing)} of {self._least} needed)"
            raise RunError(f"{count} may answer: {refusal}")
        return willing


def strengths(noises: Mapping[Noise, int], level: Level) -> Spent:
    """Counts of answers by kind and strength of noise at one level."""
    spent: Counter[tuple[str, float]] = Counter()
    for noise, times in noises.items():
        spent[noise.kind, getattr(noise, level)] += times
    return tuple(sorted((*key, times) for key, times in spent.items()))


@lru_cache(maxsize=4096)
def epsilon(spent: Spent, delta: float) -> float:
    """Epsilon of answers together."""
    if not all(strength for _, strength, _ in spent):
        return math.inf
    dp = require("epsilon")
    accountant = dp.rdp.RdpAccountant()
    for kind, strength, times in spent:
        event = dp.LaplaceDpEvent if kind == "laplace" else dp.GaussianDpEvent
        accountant.compose(event(strength), times)
    pure = sum(times / strength for kind, strength, times in spent if kind == "laplace")
    # inverse square strengths of Gaussian answers add up
    inverse = sum(times / strength**2 for kind, strength, times in spent if kind == "gaussian")
    exact = dp.get_epsilon_gaussian(1 / math.sqrt(inverse), delta) if inverse else 0.0
    if any(kind == "discrete" for kind, _, _ in spent):
        exact = math.inf
    return float(min(accountant.get_epsilon(delta), pure + exact)) if spent else 0.0


def after(opening: Sequence[Noise], upload: Sequence[Noise], number: int, level: Level, delta: float) -> float:
    """Epsilon of an opening and ``number`` uploads."""
    spent = Counter(opening)
    for noise in upload:
        spent[noise] += number
    return epsilon(strengths(+spent, level), delta)  # + drops zero counts


def answers(opening: Sequence[Noise], upload: Sequence[Noise], budget: PrivacyBudget, level: Level) -> int:
    """Uploads that a budget allows; -1: not even the opening."""

    def spent(number: int) -> float:
        return after(opening, upload, number, level, budget.delta)

    high = 1
    while high < MAX_ANSWERS and spent(high) <= budget.epsilon:
        high *= 2
    return bisect_right(range(high), budget.epsilon, key=spent) - 1


def affordable_uploads(recipe: Recipe, sizes: Iterable[int], budget: PrivacyBudget) -> int:
    """Number of uploads that the budget allows to every client; ``sizes``: their training samples."""
    require(BUDGET)
    sizes = {n for n in sizes if n}
    parts = [sent_noise(recipe, n, min(sizes)) for n in sizes]
    return min(answers(part.once, part.upload, budget, recipe.privacy.level) for part in parts)


def expected(recipe: Recipe) -> int:
    """Expected rounds of a client."""
    train = recipe.train
    return math.ceil(train.comm_round * train.clients_per_round / train.client_num_in_total)


def warnings(recipe: Recipe, sizes: Sequence[int]) -> list[str]:
    """A warning if a budget is spent before a simulation ends."""
    budget = recipe.privacy.budget
    if budget is None or recipe.common.across_silos:
        return []
    most, rounds, number = affordable_uploads(recipe, sizes, budget), recipe.train.comm_round, expected(recipe)
    if most >= number:
        return []
    expectation = "answers all of them" if number == rounds else f"answers about {number}"
    allowed = f"epsilon {budget.epsilon:g} at delta {budget.delta:g} allows {max(most, 0)} answers per client"
    use = "labelskew privacy RECIPE shows how many answers a budget allows"
    return [f"{BUDGET}: {allowed}, but of {rounds} rounds, each client {expectation}; {use}"]


def installed() -> bool:
    """Whether epsilon can be computed."""
    return importlib.util.find_spec("dp_accounting") is not None


def require(what: str) -> Any:
    """Import dp-accounting. Raises LabelSkewError if it is not installed."""
    return extras.load("privacy", "dp_accounting", "dp_accounting.rdp", what=f"{what}:")
