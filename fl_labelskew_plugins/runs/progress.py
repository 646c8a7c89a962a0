"""What a person sees while a run goes on: a line a round, on a terminal a bar below them, nothing if quiet."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import TERMS, counted

if TYPE_CHECKING:
    import rich.live
    from rich.console import Console, RenderableType

Hear = Callable[[dict[str, Any]], None]
"""Told of a round's line of metrics."""
COLUMNS = ("round", "accuracy", "own", "clients", "loss", "total", "seconds", "left", "left_out", "opening_left_out")
"""Of a round's line; ``total`` is all of the loss, for where its terms do not fit."""
NARROW = ("left", "loss", "seconds", "clients", "own", "total", "opening_left_out", "left_out", "accuracy")
"""What a terminal too narrow for all columns does without, first things first: the bar says, too, what is left."""
DUMB = ("dumb", "unknown")
"""Terminals, as TERM names them, that can only print."""
BAR = range(8, 31)
"""Columns of the bar itself."""
PAUSE = "FL_LABELSKEW_PAUSE"
"""Environment variable with a :class:`Pause`, for the processes that a command has started."""


@dataclass(frozen=True)
class Pause:
    """When a run stops before its last round, with a checkpoint to go on from.

    Args:
        rounds: as soon as so many are complete.
        at: at this time, in seconds of :func:`time.monotonic`, a clock that all processes of a machine share. A run in
            one process stops before its next batch, discards the round, and repeats it when it resumes; another one
            begins no further round.
        within: so many seconds after the first batch of this process, likewise, once some batches are timed.
    """

    rounds: int
    at: float
    within: float = math.inf

    @classmethod
    def inherited(cls) -> Pause | None:
        """The one of the command that has started this process."""
        rounds, *times = os.environ.get(PAUSE, "").split() or [""]
        return cls(int(rounds), *map(float, times)) if times else None

    def __str__(self) -> str:
        return f"{self.rounds} {self.at} {self.within}"


class Progress:
    """Told of every client and round; as it is, it says nothing."""

    hear: Hear | None = None
    """Told of every round once it is written and shown; what it raises ends the run."""

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line."""

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Begin: rounds done already, rounds in all, clients of a round, and when it stops early."""

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        """A round's client is about to train; ``number`` counts from 1, ``name`` is empty where it has none."""

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """A round has ended, with its line of metrics."""

    def stop(self) -> None:
        """End of the display, also after a failure."""


def progress(quiet: bool, *, plain: bool = False) -> Progress:
    """The display that fits: none, lines with a bar below, or lines alone; ``plain``: these in any case."""
    if quiet:
        return Progress()
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return Notebook()
    return Live() if log.at_terminal() and os.environ.get("TERM") not in DUMB and not plain else Plain()


class Plain(Progress):
    """A line a round, with columns that stand below each other."""

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line."""
        log.note(text, level)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Say what begins."""
        self._done, self._rounds, self._left = done, rounds, Left(done, rounds, pause)
        self._widths: dict[str, int] = {}
        what = f"{counted(rounds, 'round')} of {counted(clients, 'client')}"
        self.note(f"{title}: {what}" + (f", {done} done already" if done else ""))

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """Say how the round went."""
        self._done = line["round"] + 1
        number = f"round {self._done:>{len(str(self._rounds))}}/{self._rounds}"
        left = f"left {clock(self._left(self._done))}"
        row = {"round": number, **in_cells(line), "seconds": f"{seconds:5.1f} s", "left": left}
        for name, text in row.items():
            self._widths[name] = max(len(text), self._widths.get(name, 0))
        columns = self._columns(row, self._room())
        self.note("  ".join(row.get(name, "").ljust(self._widths[name]) for name in columns).rstrip())

    def _room(self) -> float:
        """How long a round's line may be."""
        return math.inf

    def _columns(self, row: dict[str, str], room: float) -> list[str]:
        """Those that fit; one that a round has nothing for, such as a test, is left blank."""
        kept = {name for name in self._widths if name in row or not name.endswith("left_out")} - {"total"}
        for name in NARROW:
            if sum(self._widths[column] + 2 for column in kept) - 2 <= room:
                break
            kept.discard(name)
            if name == "loss" and "total" in self._widths:
                kept.add("total")
        return [name for name in COLUMNS if name in kept]


class Notebook(Plain):
    """A line of a notebook's cell that is written anew, at most twice a second."""

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Write the line."""
        from IPython.display import display

        self._title, self._rounds, self._left, self._shown = title, rounds, Left(done, rounds, pause), 0.0
        self._how = f"{done} of {counted(rounds, 'round')}"
        text = {"text/plain": f"{title}: {self._how}"}
        self._line = display(text, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        """Say which client trains."""
        if time.monotonic() - self._shown > 0.5:
            left = clock(self._left(round + (number - 1) / clients))
            self._update(f"{self._how}, {turn(number, clients, name)}, left {left}")

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """Say how the round went."""
        done = line["round"] + 1
        self._how = f"{done} of {counted(self._rounds, 'round')}  {in_words(line)}"
        if done == self._rounds or time.monotonic() - self._shown > 0.5:
            self._update(f"{self._how}  left {clock(self._left(done))}")

    def _update(self, text: str) -> None:
        self._shown = time.monotonic()
        self._line.update({"text/plain": f"{self._title}: {text}"}, raw=True)


class Live(Plain):
    """The same lines, as far as the terminal is wide, and below them a bar with round, client and time left."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console()
        self._bar: rich.live.Live | None = None

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line above the bar."""
        self._console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Say what begins, and show the bar."""
        from rich.live import Live

        super().start(title, done, rounds, clients, pause)
        self._client = ""
        self._moved(done)
        self._bar = Live(
            console=self._console,
            get_renderable=self._below,
            refresh_per_second=4,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # a warning goes above the bar, but into a file where stderr is one
        )
        self._bar.start()
        self._console.show_cursor()  # whoever is killed, or held with Ctrl-Z, leaves the terminal as it was

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        """Say which client trains, in the bar."""
        self._client = turn(number, clients, name)
        self._moved(round + (number - 1) / clients)

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """Say how the round went, above the bar."""
        super().round(line, seconds)
        self._moved(self._done)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _moved(self, done: float) -> None:
        left = self._left(done)
        self._at, self._end = done, None if left is None else time.monotonic() + left

    def _room(self) -> float:
        return self._console.width - 1  # some terminals begin a new line at the last column

    def _below(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        left = None if self._end is None else max(0.0, self._end - time.monotonic())
        texts = [f"round {min(self._done + 1, self._rounds)}/{self._rounds}", self._client, f"left {clock(left)}"]
        texts = [text for text in texts if text]
        room = self._console.width - 3  # where a terminal shows ^C as it is typed
        while len("  ".join(texts)) > room and len(texts) > 1:
            texts.pop(1)
        text = Text("  ".join(texts))  # in which brackets mean nothing
        line = Table.grid(padding=(0, 2, 0, 0))
        width = min(room - len(text) - 2, BAR[-1])
        if width < BAR[0]:
            line.add_row(text)
        else:
            line.add_row(ProgressBar(self._rounds, self._at, width=width), text)
        return line


class Left:
    """Seconds that are left once so many rounds are done, a fraction of one included; None where nothing shows it.

    ``first``: rounds that were done before; ``rounds``: all of them; ``pause``: when the run stops early.
    """

    def __init__(self, first: int, rounds: int, pause: Pause | None) -> None:
        self._begun, self._first = time.monotonic(), first
        self._last = rounds if pause is None else min(rounds, pause.rounds)
        self._until = math.inf if pause is None else pause.at

    def __call__(self, done: float) -> float | None:  # noqa: D102
        if done <= self._first:
            return None
        now = time.monotonic()
        return max(0.0, min((now - self._begun) / (done - self._first) * (self._last - done), self._until - now))


def turn(number: int, clients: int, name: str) -> str:
    """Whose turn it is: ``client 3/10``, and its name if it has one."""
    return f"client {number}/{clients} {name}".rstrip()


def in_words(line: dict[str, Any]) -> str:
    """A round's measures in a few words."""
    return "  ".join(text for name, text in in_cells(line).items() if name != "total")


def in_cells(line: dict[str, Any]) -> dict[str, str]:
    """A round's measures, each in a few words, by the names of :data:`COLUMNS`."""
    words = {}
    if "accuracy" in line:
        words["accuracy"] = f"accuracy {100 * line['accuracy']:5.2f} %"
        if line.get("personalised_accuracy") is not None:
            words["own"] = f"own test splits {100 * line['personalised_accuracy']:5.2f} %"
    if "client_accuracy_worst" in line:
        mean, worst = (f"{100 * line[f'client_accuracy_{part}']:5.2f} %" for part in ("mean", "worst"))
        name = line["client_accuracy_worst_client"]
        shown = f"all {mean.strip()}" if worst == mean else f"{mean}, worst {worst} ({name})"
        words["clients"] = f"each client's tests {shown}"
    if line["loss_terms"]:
        terms = [f"{name} {_number(value)}" for name, value in line["loss_terms"].items()]
        more = f" + {len(terms) - TERMS} more" if len(terms) > TERMS else ""
        words["loss"] = "loss " + " + ".join(terms[:TERMS]) + more
        words["total"] = f"loss {_number(sum(line['loss_terms'].values()))}"
    if "left_out" in line:
        words["left_out"] = f"{len(line['left_out'])} left out"
    if "opening_left_out" in line:
        words["opening_left_out"] = f"{len(line['opening_left_out'])} left out of the opening"
    return words


def _number(value: float) -> str:
    return f"{value:{'.4f' if abs(value) < 1e6 else '.4g'}}"


def clock(seconds: float | None) -> str:
    """Seconds as h:mm:ss or m:ss."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
