"""Whom a run is shown to: its trackers, each in a process of its own, so that none can end, slow or change the run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.folder import RunFolder

LOG = "trackers.log"
"""What trackers print, and the tracebacks of those that fail; there is none where they say nothing."""
PATIENCE_S = {"begin": 120.0, "on_round": 30.0, "finish": 600.0, "close": 60.0}
"""How long a run waits for each hook."""
COUNTED = ("clients", "left_out", "opening_left_out")
"""Lists of clients, of which a tracker is told how many they are."""
MOST = 100
"""Numbers of a list, such as one for each class, that a tracker is told; of longer ones it is told none."""


class Trackers:
    """All trackers that a recipe names. One that fails or takes too long is switched off with a warning."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._on: dict[str, _Process] = {}

    def begin(self, folder: RunFolder, rounds: int) -> None:
        """Tell them of a run of which so many rounds are complete."""
        named = {name: params for item in self._recipe.tracking.trackers for name, params in item.items()}
        if not named:
            return
        self._folder = folder
        seconds = {line["round"]: line["seconds"] for line in read_lines(folder.timings)}
        run = {
            "id": folder.run_id(),
            "folder": str(folder.path.absolute()),
            "parameters": _parameters(self._recipe.resolved()),
            "earlier": [
                _numbers({**line, "seconds": seconds.get(line["round"])})
                for line in read_lines(folder.metrics)[:rounds]
            ],
        }
        try:
            with (folder.path / LOG).open("ab") as stream:
                self._on = {name: _Process(name, params, stream.fileno()) for name, params in named.items()}
        except OSError as error:
            log.warn(f"no tracker can be started: {error.strerror}")
        self._tell("begin", run)

    def round(self, line: Mapping[str, Any], seconds: float) -> None:
        """Tell them a round's line of metrics."""
        if self._on:
            self._tell("on_round", _numbers(line) | {"seconds": round(seconds, 4)})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tell them what the run came to, once its files are written."""
        if self._on:
            path = self._folder.path.absolute()
            pictures = [path / f"{name}.png" for name in ("curves", "partition", "confusion")]
            pictures += sorted(path.glob("diagnostics/*.png"))
            there = [str(file) for file in pictures if file.exists()]
            self._tell("finish", _numbers(summary), there, str(path / "model.safetensors"))

    def close(self, state: str) -> None:
        """Tell them that it is over, for now at least; the run may begin again."""
        if self._on:
            self._tell("close", state)
            for name in [*self._on]:
                self._on.pop(name).end(PATIENCE_S["close"])
            file = self._folder.path / LOG
            if file.exists() and not file.stat().st_size:
                file.unlink()

    def _tell(self, hook: str, *args: Any) -> None:
        for process in self._on.values():  # all of them first: they then work at the same time
            process.ask(hook, *args)
        for name, process in [*self._on.items()]:
            if why := process.answer(PATIENCE_S[hook]):
                log.warn(f"tracker {name} is switched off: {why}")
                self._on.pop(name).end(5)


class _Process:
    """A tracker's process, see :mod:`.tracked`; ``log``: descriptor of the file that what it prints goes to."""

    def __init__(self, name: str, params: Mapping[str, Any], log: int) -> None:
        # a session of its own: Ctrl-C is for the run, which then tells its trackers that it is over
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fl_labelskew_plugins.runs.tracked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "ignore"},
            start_new_session=True,
        )
        self.ask(name, params)

    def ask(self, *order: Any) -> None:
        """Send it a line; it may have ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> str:
        """Why its hook failed, or took too long; empty where all is well."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return f"it takes longer than {seconds:g} s"
        line = self._process.stdout.readline()
        return str(json.loads(line)) if line else "its process has ended"

    def end(self, seconds: float) -> None:
        """Let it go, and kill it if it stays."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All finite numbers, those of mappings and lists by names such as ``loss_terms.cross_entropy`` and ``recall.3``.

    >>> _numbers({"clients": [4, 7], "accuracy": 0.5, "recall": [1.0, None], "loss_terms": {"ce": math.nan}})
    {'clients': 2, 'accuracy': 0.5, 'recall.0': 1.0}
    """
    flat: dict[str, float] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _numbers(value, f"{name}.")
        elif name in COUNTED:
            flat[name] = len(value)
        elif isinstance(value, list) and len(value) <= MOST:
            flat |= _numbers({str(number): item for number, item in enumerate(value)}, f"{name}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[name] = value
    return flat


def _parameters(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """All values by ``section.key``; what is no plain value is JSON text."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _parameters(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat
