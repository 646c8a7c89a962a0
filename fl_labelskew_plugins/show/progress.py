"""The display during a run."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import TERMS, counted
from fl_labelskew_plugins.runs.progress import Pause, Progress

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console


def progress(quiet: bool, *, plain: bool = False) -> Progress:
    """Choose the display; ``plain``: without a bar."""
    if quiet:
        return Progress()
    moves = log.at_terminal() and os.environ.get("TERM") not in ("dumb", "unknown")
    return Live() if moves and not plain else Plain()


class Plain(Progress):
    """A line per round."""

    def note(self, text: str, level: str = log.INFO) -> None:
        log.note(text, level)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        self._rounds, self._first, self._begun, self._pause = rounds, done, time.monotonic(), pause
        size = f"{counted(rounds, 'round')} of {counted(clients, 'client')}"
        self.note(f"{title}: {size}" + (f", {done} already done" if done else ""))

    def round(self, line: dict[str, Any], seconds: float) -> None:
        self.note(self._text(line, seconds))

    def _left(self, done: float) -> float | None:
        """Estimate of the remaining seconds."""
        if done <= self._first:
            return None
        pause = self._pause or Pause(self._rounds, math.inf)
        now, rounds = time.monotonic(), min(self._rounds, pause.rounds)
        return max(0.0, min((now - self._begun) / (done - self._first) * (rounds - done), pause.at - now))

    def _text(self, line: dict[str, Any], seconds: float) -> str:
        done = line["round"] + 1
        number = f"round {done:>{len(str(self._rounds))}}/{self._rounds}"
        words = [number, in_words(line), f"{seconds:.1f} s", f"left {clock(self._left(done))}"]
        return "  ".join(word for word in words if word)


class Live(Plain):
    """Lines, cut on a narrow terminal, and a bar below."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console()
        self._bar: rich.progress.Progress | None = None

    def note(self, text: str, level: str = log.INFO) -> None:
        self._console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def start(self, title: str, done: int, rounds: int, clients: int, pause: Pause | None = None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        super().start(title, done, rounds, clients, pause)
        words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._bar = Progress(
            BarColumn(bar_width=max(4, min(30, self._console.width - 50))),
            words,
            console=self._console,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # warnings appear above the bar
        )
        self._task = self._bar.add_task("", total=rounds)
        self._show(done, "")
        self._bar.start()
        self._console.show_cursor()  # in case the process is killed

    def client(self, round: int, number: int, clients: int, name: str = "") -> None:
        self._show(round + (number - 1) / clients, f"client {number}/{clients} {name}".rstrip())

    def round(self, line: dict[str, Any], seconds: float) -> None:
        self.note(self._text(line, seconds)[: self._console.width - 1])  # some terminals wrap at the last column
        self._show(line["round"] + 1, "")

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, done: float, client: str) -> None:
        assert self._bar is not None
        words = f"round {min(int(done) + 1, self._rounds)}/{self._rounds}  left {clock(self._left(done))}  {client}"
        self._bar.update(self._task, completed=done, description=words.rstrip())


def in_words(line: dict[str, Any]) -> str:
    """A round's measures."""
    words = []
    if "accuracy" in line:
        words.append(f"accuracy {100 * line['accuracy']:5.2f} %")
        if line.get("personalised_accuracy") is not None:
            words.append(f"own test splits {100 * line['personalised_accuracy']:5.2f} %")
    if "client_accuracy_worst" in line:
        mean, worst = (f"{100 * line[f'client_accuracy_{part}']:5.2f} %" for part in ("mean", "worst"))
        name = line["client_accuracy_worst_client"]
        shown = f"all {mean.strip()}" if worst == mean else f"{mean}, worst {worst} ({name})"
        words.append(f"each client's tests {shown}")
    elif "client_accuracy_pooled" in line:
        words.append(f"all clients' tests {100 * line['client_accuracy_pooled']:5.2f} %")
    if terms := line["loss_terms"]:
        shown = " + ".join(f"{name} {_number(value)}" for name, value in [*terms.items()][:TERMS])
        words.append(f"loss {shown}" + (f" + {len(terms) - TERMS} more" if len(terms) > TERMS else ""))
    if "left_out" in line:
        words.append(f"{len(line['left_out'])} skipped")
    if "opening_left_out" in line:
        words.append(f"{len(line['opening_left_out'])} missing in the opening")
    return "  ".join(words)


def _number(value: float) -> str:
    return f"{value:{'.4f' if abs(value) < 1e6 else '.4g'}}"


def clock(seconds: float | None) -> str:
    """Format seconds as h:mm:ss or m:ss; ``?`` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
