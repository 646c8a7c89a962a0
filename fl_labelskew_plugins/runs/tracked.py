"""The process of one tracker: orders come by standard input, a JSON line each, and answers go by standard output.

The first line is the tracker's name and its parameters, each further one a hook and what it is called with. An answer
is a text: empty, or why the hook failed, after which the process ends. Where the run is killed, the tracker is closed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, TrackedRun, Tracker, catalog

from fl_labelskew_plugins.machine.signals import ENDING
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.mistakes import failure


def main() -> None:
    """Be a tracker until the run is over."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a tracker prints is no answer
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # nor is it lost with its process
    for number in ENDING:  # which are for the run
        signal.signal(number, signal.SIG_IGN)
    orders = map(json.loads, sys.stdin)
    name, params = next(orders)
    tracker: Tracker | None = None
    run: Any = None
    for hook, *args in orders:
        why = ""
        try:
            if hook == "begin":
                kind = catalog.load("trackers", name)
                tracker = kind(kind.Params.model_validate_json(json.dumps(params)))
                run = TrackedRun(**args[0] | {"folder": Path(args[0]["folder"])})
                tracker.begin(run)
            elif tracker is not None and hook == "finish":
                summary, pictures, model = args
                tracker.finish(run, summary, [Path(file) for file in pictures], Path(model))
            else:
                getattr(tracker, hook)(run, *args)
        except BaseException as error:  # SystemExit, too
            traceback.print_exc()
            why = _why(error, tracker)
        answers.write(json.dumps(why) + "\n")
        answers.flush()
        if why or hook == "close":
            return
    if tracker is not None:
        tracker.close(run, "failed")


def _why(error: BaseException, tracker: Tracker | None) -> str:
    """What went wrong, and where in the tracker's own file."""
    if isinstance(error, LabelSkewError):
        return clean(" ".join(str(error).split()), 500)
    file = getattr(sys.modules[type(tracker).__module__], "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(str(file)).name}, line {lines[-1]})" if lines else ""
    return clean(failure(error), 300) + where


if __name__ == "__main__":
    main()
