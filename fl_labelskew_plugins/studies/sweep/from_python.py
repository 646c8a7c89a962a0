"""``fl.sweep``: run ``labelskew sweep`` in its own process.

In the caller's process, each run would import the caller's script, and the sweep would need its signal handlers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.front.run import Run, as_json, overrides_of
from fl_labelskew_plugins.machine.files import read_bytes, read_lines, write_text, writing
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.recipe import shipped, yaml
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.measure import best_test, main_measure
from fl_labelskew_plugins.runtimes.processes import end, how_it_ended
from fl_labelskew_plugins.studies.reproduce import Planned
from fl_labelskew_plugins.studies.sweep import plan, pool

if TYPE_CHECKING:
    from pandas import DataFrame

MARK = "# written by fl.sweep, which overwrites it"  # first line of written files


class Sweep(NamedTuple):
    """The runs that have begun, in the sweep's order, and a table with a row per run, indexed by its name.

    Columns: ``state``, ``rounds``, ``accuracy`` of the last test and ``best`` (0 to 1), ``reason`` of a failure, and
    each ``section.key`` in which the runs differ.
    """

    runs: list[Run]
    table: DataFrame


def sweep(
    sweep: str | Path | Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    only: Sequence[str] = (),
    jobs: int | None = None,
    memory: float | None = None,
    host: Literal["fedml", "none"] | None = None,
    quiet: bool = False,
) -> Sweep:
    """Run every combination of a grid, several at a time; repeat the call to resume unfinished runs.

    Args:
        sweep: path of a sweep's file, or its content as a mapping (docs/sweeps.md).
        changes: values for all runs by ``section.key``.
        out: folder of all runs, instead of the file's.
        only: names of values; an axis that contains any of these names runs only these values.
        jobs: runs at a time; default: as many as cores and GPUs allow.
        memory: GB (10^9 bytes) for all runs together; default: 80 % of the free memory.
        host: ``none``: without FedML.
        quiet: print only warnings and errors.

    Raises:
        LabelSkewError: invalid arguments or settings.
        RunError: the sweep itself failed.
        KeyboardInterrupt: interrupted, after all runs have saved a checkpoint.
    """
    folder, overrides = None if out is None else Path(out), overrides_of(changes)
    if isinstance(sweep, str | Path):
        file = Path(sweep)
    else:
        file = _written(sweep, changes or {}, folder)
        folder = file.parent
    planned = plan.plan(file, overrides, folder, only)
    if any(state != "done" for state in plan.states_of(planned).values()):
        arguments = ["sweep", str(file), "--out", str(planned[0].folder.path.parent), *(["--quiet"] if quiet else [])]
        arguments += [word for override in overrides for word in ("--set", override)]
        arguments += [word for name in only for word in ("--only", name)]
        options = {"--jobs": jobs, "--memory": memory, "--host": host}
        arguments += [word for key, value in options.items() if value is not None for word in (key, str(value))]
        _run(arguments, planned, quiet=quiet)
    runs = [Run(run.folder.path) for run in planned if run.folder.recipe.is_file()]
    return Sweep(runs, _table(planned))


def _written(content: Mapping[str, Any], changes: Mapping[str, Any], out: Path | None) -> Path:
    """Write the sweep with the changes; return the file."""
    if out is None and not isinstance(content.get("out"), str | Path):
        raise mistake("out", "missing", "the folder of all runs, as fl.sweep(..., out='runs/mine')")
    folder = Path(out or content["out"]).expanduser()
    if RunFolder(folder).recipe.exists():
        raise mistake(folder, "is the folder of a run", "another folder")
    texts = {}
    common = content.get("set") or {}  # plan.plan reports a wrong type
    settings = {"set": {**common, **changes}} if changes and isinstance(common, Mapping) else {}
    plain = json.loads(as_json({**content, **settings, "out": str(folder)}))
    base = plain.get("base")
    if isinstance(base, dict):
        texts["base.yaml"], plain["base"] = yaml.write(base), "base.yaml"
    elif isinstance(base, str) and base not in shipped.names():
        plain["base"] = str(Path(base).expanduser().absolute())
    texts["sweep.yaml"] = yaml.write(plain)
    with writing(folder, "; use another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in texts:
            if (file := folder / name).exists() and not read_bytes(file).startswith(MARK.encode()):
                raise mistake(file, "was not written by fl.sweep", "another folder for out=, or remove the file")
        for name, text in texts.items():
            write_text(folder / name, f"{MARK}\n{text}")
    return folder / "sweep.yaml"


def _run(words: Sequence[str], planned: Sequence[Planned], *, quiet: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_labelskew_plugins.cli.main", *words],
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches only this process, which then ends the command
    )
    last = ""
    try:
        source, target = (process.stderr, sys.stderr) if quiet else (process.stdout, sys.stdout)
        assert source is not None
        with source:
            for line in source:
                last = line.strip() or last
                print(line, end="", file=target, flush=True)
        code = process.wait()
    except KeyboardInterrupt:
        done = sum(run.folder.summary.exists() for run in planned)
        raise KeyboardInterrupt(f"interrupted: {done} of {counted(len(planned), 'run')} finished") from None
    finally:
        end([process], pool.GRACE + 10)
    if code == LabelSkewError.exit_code:
        raise LabelSkewError(clean(last, 1000))
    if code and (code != RunError.exit_code or not any(pool.error_in_log(run.log) for run in planned)):
        raise RunError(f"{how_it_ended('labelskew sweep', code)}: {clean(last, 1000)}")


def _table(planned: Sequence[Planned]) -> DataFrame:
    from pandas import DataFrame, Index

    settings = [
        {f"{section}.{key}": value for section, keys in run.recipe.resolved().items() for key, value in keys.items()}
        for run in planned
    ]
    places = dict.fromkeys(setting.partition("=")[0] for run in planned for setting in run.settings)
    columns = {place: [values.get(place) for values in settings] for place in places}
    differing = {place: values for place, values in columns.items() if len(set(map(json.dumps, values))) > 1}
    rows = []
    for run in planned:
        facts, lines = status.read_planned(run.folder.path), read_lines(run.folder.metrics)
        best = (best_test(lines) or {}).get(main_measure(lines).key)
        reason = facts.get("reason") or pool.error_in_log(run.log)
        state = status.FAILED if reason and facts["state"] == status.NOT_BEGUN else facts["state"]
        accuracy = facts.get("accuracy")
        rows.append({"state": state, "rounds": len(lines), "accuracy": accuracy, "best": best, "reason": reason})
    return DataFrame(rows, index=Index([run.name for run in planned], name="run")).assign(**differing)
