"""What a person sees while a run goes on: a live display on a terminal, plain lines elsewhere, nothing if quiet."""

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
    from rich.console import Console

Hear = Callable[[dict[str, Any]], None]
"""Told of a round's line of metrics."""
PAUSE = "FL_LABELSKEW_PAUSE"
"""Environment variable with a :class:`Pause`, for the processes that a command has started."""


@dataclass(frozen=True)
class Pause:
    """When a run stops before its last round, with a checkpoint to go on from.

    Args:
        rounds: as soon as so many are complete.
        at: before the first round that would begin after this, in seconds of :func:`time.monotonic`, a clock that all
            processes of a machine share.
    """

    rounds: int
    at: float

    @classmethod
    def inherited(cls) -> Pause | None:
        """The one of the command that has started this process."""
        rounds, _, at = os.environ.get(PAUSE, "").partition(" ")
        return cls(int(rounds), float(at)) if at else None

    def __str__(self) -> str:
        return f"{self.rounds} {self.at}"


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
    """The display that fits: none, live, or plain lines; ``plain``: these in any case."""
    if quiet:
        return Progress()
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return Notebook()
    return Live() if sys.stdout.isatty() and log.form == log.PLAIN and not plain else Plain()


class Plain(Progress):
    """A line a round."""

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line."""
        log.note(text, level)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Say what begins."""
        self._rounds, self._left = rounds, Left(done, rounds, pause)
        what = f"{counted(rounds, 'round')} of {counted(clients, 'client')}"
        self.note(f"{title}: {what}" + (f", {done} done already" if done else ""))

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """Say how the round went."""
        done = line["round"] + 1
        number = f"{done:>{len(str(self._rounds))}}/{self._rounds}"
        self.note(f"round {number}  {in_words(line)}  {seconds:.1f} s  left {clock(self._left(done))}")


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


class Live(Progress):
    """A bar with the round, the client, the last accuracy and the time left."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console or Console()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[turn]}"),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=self._console,
        )

    def note(self, text: str, level: str = log.INFO) -> None:
        """Say one line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        """Show the bar."""
        self._left = Left(done, rounds, pause)
        self._task = self._bar.add_task(title, total=rounds, completed=done, turn="", told="", left="?")
        self._bar.start()

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        """Move the bar within the round."""
        done = round + (number - 1) / clients
        self._bar.update(self._task, turn=turn(number, clients, name), left=clock(self._left(done)))

    def round(self, line: dict[str, Any], seconds: float) -> None:
        """Move the bar to the next round."""
        done = line["round"] + 1
        self._bar.update(self._task, completed=done, told=in_words(line), left=clock(self._left(done)))

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


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
    words = []
    if "accuracy" in line:
        words.append(f"accuracy {100 * line['accuracy']:.2f} %")
        if line.get("personalised_accuracy") is not None:
            words.append(f"own test splits {100 * line['personalised_accuracy']:.2f} %")
    if "client_accuracy_worst" in line:
        mean, worst = (f"{100 * line[f'client_accuracy_{part}']:.2f} %" for part in ("mean", "worst"))
        words.append(f"each client's tests {mean}, worst {worst} ({line['client_accuracy_worst_client']})")
    if line["loss_terms"]:
        terms = [f"{name} {value:{'.4f' if abs(value) < 1e6 else '.4g'}}" for name, value in line["loss_terms"].items()]
        more = f" + {len(terms) - TERMS} more" if len(terms) > TERMS else ""
        words.append("loss " + " + ".join(terms[:TERMS]) + more)
    if "left_out" in line:
        words.append(f"{len(line['left_out'])} left out")
    if "opening_left_out" in line:
        words.append(f"{len(line['opening_left_out'])} left out of the opening")
    return "  ".join(words)


def clock(seconds: float | None) -> str:
    """Seconds as h:mm:ss or m:ss."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
