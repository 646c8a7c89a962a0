"""Check that a method gives the same numbers in every runtime, and in a run that was stopped and resumed."""

import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fl_labelskew_registry import LabelSkewError, RunError, catalog
from safetensors.torch import load_file

from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import compatibility, parse, yaml
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.progress import Pause
from fl_labelskew_plugins.runtimes.mpi import launch
from fl_labelskew_plugins.runtimes.options import RunOptions

QUICK = "quickstart"
DEFAULT_OVERRIDES = (
    "train_args.client_num_in_total=4",
    "train_args.client_num_per_round=3",
    "train_args.epochs=1",
    "partition_args.classes_per_client=4",
)
COMMON_OVERRIDES = (
    "train_args.comm_round=2",
    "validation_args.frequency_of_the_test=1",
    "validation_args.personalised=true",
    "tracking_args.checkpoint_every=1",
    "device_args.threads=1",
)
RUNTIMES = {
    "resumed": (),
    "MPI": ("comm_args.backend=MPI", "comm_args.workers=2"),
    "silos": ("common_args.training_type=cross_silo", "comm_args.backend=GRPC", "comm_args.send_measures=true"),
}
"""Overrides for each run that is compared with one in ``sp``."""
MAX_SILOS = 16
REASONS = {
    "resumed": "a hook keeps numbers outside client.state and the tensors of combine",
    "MPI": "clients share an object that processes do not share, such as a global variable or a separate generator",
    "silos": "a hook uses a value that only one process has, such as a global variable, or draws from client.noise, "
    "whose seed only the silo knows",
}


@dataclass(frozen=True)
class Outcome:
    """The verdict on a runtime: ``ok``, ``same``, ``differs``, ``failed`` or ``skipped``, and its reason."""

    method: str
    runtime: str
    verdict: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        """Whether the method must be fixed."""
        return self.verdict in ("differs", "failed")

    def __str__(self) -> str:
        return f"{self.method}, {self.runtime}: {self.verdict}: {self.detail}"


def check(method: str) -> list[str]:
    """Return the bad outcomes of :func:`outcomes_of`, as lines."""
    return [str(outcome) for outcome in outcomes_of(method) if outcome.bad]


def outcomes_of(
    method: str,
    recipe: str | Path = QUICK,
    overrides: Sequence[str] = (),
    *,
    runtimes: Sequence[str] = tuple(RUNTIMES),
    print_line: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcome]:
    """Run a method in every way; raise LabelSkewError for an unknown method or an invalid recipe.

    ``method_args`` of another method in the recipe are replaced, and ``comm_args`` ignored.
    """
    for part in method.split("+"):
        catalog.load("methods", part)
    base = parse.load(recipe)  # first, so that errors name the user's file
    content, _ = yaml.read(parse.read_text(recipe))
    if base.method_name != method:
        content["method_args"] = {"method": method}
    content.pop("comm_args", None)
    (content.get("common_args") or {}).pop("training_type", None)
    settings = (*(DEFAULT_OVERRIDES if recipe == QUICK else ()), *COMMON_OVERRIDES, *overrides)
    with tempfile.TemporaryDirectory(prefix="labelskew-check-") as temporary:
        place = Path(temporary)
        file = place / f"{method}.yaml"
        file.write_text(yaml.write(content), encoding="utf-8")
        parsed = parse.load(file, settings)
        print_line(f"{method}: sp")
        reason = _run(file, settings, place / "sp")
        yield Outcome(method, "sp", "failed" if reason else "ok", reason)
        for runtime in runtimes if not reason else ():
            if obstacle := _missing(runtime, parsed):
                yield Outcome(method, runtime, "skipped", obstacle)
                continue
            print_line(f"{method}: {runtime}")
            reason = _run(file, (*settings, *RUNTIMES[runtime]), place / runtime, resumed=runtime == "resumed")
            if reason:
                yield Outcome(method, runtime, "failed", reason)
            elif divergence := difference(place / "sp", place / runtime, partial=runtime == "silos"):
                yield Outcome(method, runtime, "differs", f"{divergence}; likely: {REASONS[runtime]}")
            else:
                yield Outcome(method, runtime, "same")


def _missing(runtime: str, recipe: Recipe) -> str:
    """Return the reason if a recipe cannot run in this way here."""
    backend = {"MPI": "MPI", "silos": "GRPC"}.get(runtime, "sp")
    if backend not in recipe.method.runtimes:
        return f"its runtimes are {', '.join(recipe.method.runtimes)}"
    clients = recipe.train.client_num_in_total
    if runtime == "silos" and clients > MAX_SILOS:
        return f"{clients} silos would be {clients} processes; use --set train_args.client_num_in_total={MAX_SILOS}"
    try:
        if runtime == "MPI":
            launch.check()
        elif runtime == "silos":
            compatibility.grpc()
    except LabelSkewError as error:
        return str(error)
    return ""


def _run(file: Path, settings: Sequence[str], out: Path, *, resumed: bool = False) -> str:
    """Run a recipe; return the reason if it fails."""
    try:
        pause = Pause(1, math.inf) if resumed else None
        start(RunOptions(file, settings, run_dir=out, quiet=True, host="none", pause=pause))
        if resumed:
            start(RunOptions(resume=out, quiet=True, host="none"))
    except SystemExit as end:
        return f"exit code {end.code}; see its processes' messages above"
    except LabelSkewError as error:
        of_process = isinstance(error, RunError) and "exit code" in str(error)
        return f"{error}; see its processes' messages above" if of_process else str(error)
    return ""


def difference(one: Path, other: Path, *, partial: bool = False) -> str:
    """Find the first difference between two runs; ``partial``: ``other`` may lack numbers and clients' models."""
    lines, others = (read_lines(folder / "metrics.jsonl") for folder in (one, other))
    for number, (line, other_line) in enumerate(itertools.zip_longest(lines, others, fillvalue=dict[str, Any]()), 1):
        for key in line | other_line:  # in the file's order
            compared = not (partial and line and other_line) or (key in line and key in other_line)
            if compared and line.get(key) != other_line.get(key):
                values = (clean(json.dumps(numbers.get(key)), 60) for numbers in (line, other_line))
                return f"metrics.jsonl, round {number}: {clean(key, 60)} is {' in one process and '.join(values)} here"
    for file in [Path("model.safetensors"), *sorted(path.relative_to(one) for path in one.glob("clients/*"))]:
        if (other / file).exists():
            tensors, found = load_file(one / file), load_file(other / file)
            for name in sorted(tensors.keys() | found.keys()):
                if name not in tensors or name not in found or not torch.equal(tensors[name], found[name]):
                    return f"{file}: {clean(name, 60)} differs"
        elif not partial or not file.parent.name:
            return f"{file} is missing"
    return ""
