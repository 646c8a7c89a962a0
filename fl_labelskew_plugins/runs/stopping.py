"""Early stopping: ``train_args.stop``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.recipe.sections import Stop
from fl_labelskew_plugins.runs.measure import main_measure


def reason_to_stop(stop: Stop, lines: Sequence[Mapping[str, Any]]) -> str:
    """Why a run with these lines of ``metrics.jsonl`` stops after the last one; empty if it continues.

    A test improves if it is better than the best earlier improvement by at least ``min_delta``; the first test does.

    >>> reason_to_stop(Stop(patience=2), [{"round": k, "accuracy": share} for k, share in enumerate((0.5, 0.4, 0.5))])
    'accuracy has not improved in 2 tests; the best one is 0.5 in round 1'
    """
    key = main_measure(lines).key if stop.metric == "accuracy" else stop.metric
    sign = -1.0 if stop.metric == "loss" else 1.0  # then, higher is better
    best, at, waited, last = -math.inf, 0, 0, -math.inf
    for line in lines:
        if line.get(key) is None:
            continue
        last = sign * float(line[key])
        if last > best and (at == 0 or last >= best + stop.min_delta):
            best, at, waited = last, int(line["round"]) + 1, 0
        else:
            waited += 1
    if not lines or lines[-1].get(key) is None:
        return ""
    if stop.target is not None and last >= sign * stop.target:
        return f"{stop.metric} {sign * last:.4g} reaches the target {stop.target:g}"
    if stop.patience is not None and waited >= stop.patience:
        tests, least = counted(stop.patience, "test"), f" by {stop.min_delta:g}" if stop.min_delta else ""
        return f"{stop.metric} has not improved{least} in {tests}; the best one is {sign * best:.4g} in round {at}"
    return ""
