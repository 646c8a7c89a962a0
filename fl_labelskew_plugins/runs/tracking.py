"""Call trackers' hooks so that they cannot end, block or change the run."""

import json
import math
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, TrackedRun, Tracker, catalog

from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import open_regular, read_lines
from fl_labelskew_plugins.machine.text import clean, failure
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.folder import RunFolder

LOG = "trackers.log"  # tracebacks
PATIENCE_S = {"begin": 120.0, "on_round": 30.0, "finish": 600.0, "close": 60.0}  # maximum duration of each hook
COUNTED = ("clients", "left_out", "opening_left_out")  # lists that are reported by their lengths
MAX_LIST = 100  # longer lists are skipped


class Trackers:
    """A recipe's trackers, see docs/trackers.md."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._on: dict[str, Tracker] = {}

    def begin(self, folder: RunFolder, rounds: int) -> None:
        """Begin after ``rounds`` complete rounds."""
        named = {name: params for item in self._recipe.tracking.trackers for name, params in item.items()}
        if not named:
            return
        self._path = folder.path.absolute()
        seconds = {line["round"]: line["seconds"] for line in read_lines(folder.timings)}
        earlier = [_numbers({**line, "seconds": seconds.get(line["round"])}) for line in folder.lines[:rounds]]
        self._run = TrackedRun(folder.environment["run"], self._path, _parameters(self._recipe.resolved()), earlier)

        def make(name: str, params: Mapping[str, Any]) -> None:
            kind = catalog.load("trackers", name)
            self._on[name] = kind(kind.Params.model_validate_json(json.dumps(params)))
            self._on[name].begin(self._run)

        for name, params in named.items():
            self._call(name, "begin", make, name, params)

    def round(self, line: Mapping[str, Any], seconds: float) -> None:
        """Report a round's line of metrics."""
        if self._on:
            self._call_all("on_round", _numbers(line) | {"seconds": round(seconds, 4)})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Report the run's summary and files."""
        if self._on:
            pictures = [self._path / f"{name}.png" for name in ("curves", "partition", "confusion")]
            pictures += sorted(self._path.glob("diagnostics/*.png"))
            existing = [file for file in pictures if file.exists()]
            self._call_all("finish", _numbers(summary), existing, self._path / "model.safetensors")

    def close(self, state: str) -> None:
        """Report the end of the run, or a pause."""
        self._call_all("close", state)
        self._on = {}

    def _call_all(self, hook: str, *args: Any) -> None:
        for name, tracker in [*self._on.items()]:
            self._call(name, hook, getattr(tracker, hook), self._run, *args)

    def _call(self, name: str, hook: str, function: Callable[..., None], *args: Any) -> None:
        raised: list[BaseException] = []

        def work() -> None:
            try:
                function(*args)
            except BaseException as error:  # SystemExit, too
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True, name=f"tracker {name}")
        with restored(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            thread.start()
            thread.join(PATIENCE_S[hook])
        if thread.is_alive():
            reason = f"it takes longer than {PATIENCE_S[hook]:g} s"
        elif raised:
            reason = _reason(raised[0], self._on.get(name))
            try:
                with open(self._path / LOG, "a", encoding="utf-8", opener=open_regular) as stream:
                    traceback.print_exception(raised[0], file=stream)
            except OSError as error:
                reason += f"; no {LOG}: {error.strerror}"
        else:
            return
        self._on.pop(name, None)
        log.warn(f"tracker {name} is switched off: {reason}")


def _reason(error: BaseException, tracker: Tracker | None) -> str:
    if isinstance(error, LabelSkewError):
        return clean(" ".join(str(error).split()), 500)
    file = getattr(sys.modules[type(tracker).__module__], "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(str(file)).name}, line {lines[-1]})" if lines else ""
    return clean(failure(error), 300) + where


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """All finite numbers with flattened names.

    >>> _numbers({"clients": [4, 7], "accuracy": 0.5, "recall": [1.0, None], "loss_terms": {"ce": math.nan}})
    {'clients': 2, 'accuracy': 0.5, 'recall.0': 1.0}
    """
    flat: dict[str, float] = {}
    for name, value in _flat(values).items():
        if name in COUNTED:
            flat[name] = len(value)
        elif isinstance(value, list) and len(value) <= MAX_LIST:
            flat |= _numbers({f"{name}.{number}": item for number, item in enumerate(value)})
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[name] = value
    return flat


def _parameters(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    return {k: v if isinstance(v, bool | int | float | str) else json.dumps(v) for k, v in _flat(values).items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
