"""A run's folder, readable after a kill at any time."""

import contextlib
import json
import math
import os
import shutil
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.data.stats import Moments
from fl_labelskew_plugins.engine.client_state import StateStore
from fl_labelskew_plugins.ledgers import audit
from fl_labelskew_plugins.machine import locks
from fl_labelskew_plugins.machine.files import copied, open_regular, read_lines, read_text, write_text
from fl_labelskew_plugins.machine.text import clean, utc
from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.runs import checkpoint, status
from fl_labelskew_plugins.runs.checkpoint import CPU, Checkpoint
from fl_labelskew_plugins.runs.measure import best_test, main_measure, main_tests
from fl_labelskew_plugins.runs.reader import RunReader
from fl_labelskew_plugins.tensors import joined, save_atomic

ABANDONED = "abandoned"  # prefix of numbered folders, see RunFolder.go_back
RESULTS = (
    *("summary.json", "model.safetensors", "curves.png", "clients", "MODEL_CARD.md"),
    *("confusion.csv", "confusion.png"),
)
"""Files that a run writes at its end."""
UNTESTED_KEYS = ("round", "clients", "loss_terms", "left_out", "opening_left_out", "bytes_up", "bytes_down")
"""Keys of a line of metrics without a test of the global model."""
SERVER_FILES = ("fedml.yaml", status.NAME, "revoked.crl", "silos")
"""Files, in addition to an audit log, before a server has silos."""
FILES_BEFORE_RECIPE = {"fedml.yaml", status.NAME, "environment.json", "partition.json", "partition.png"}
"""Files, in addition to the data set's notes, that a run writes before its recipe."""


class RunFolder(RunReader):
    """One run's folder, for reading and writing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.diagnostics = path / "diagnostics"
        self.checkpoint = path / "checkpoint" / "latest.safetensors"
        self.states = path / "checkpoint" / "clients"
        self.best = path / "best.safetensors"
        self._stack = contextlib.ExitStack()
        self._check_lock: Callable[[], None] | None = None
        self._facts: dict[str, Any] = {"process": os.getpid(), "machine": socket.gethostname(), "began": utc()}

    def moments(self) -> Moments | None:
        """Mean and std that normalise the samples; None before the run begins."""
        known = self.environment.get("normalisation") if self.recipe.exists() else None
        return (tuple(known["mean"]), tuple(known["std"])) if known and known["mean"] is not None else None

    def exact(self) -> bool:
        """Whether the run has begun and its samples have dtype uint8."""
        return self.recipe.exists() and self.environment.get("dtype") == "uint8"

    def check_new(self) -> None:
        """Raise LabelSkewError unless a new run may begin here."""
        if self.path.exists() and not self.path.is_dir():
            raise LabelSkewError(f"run directory {self.path} is a file; use a new or empty folder")
        names = [file.name.removesuffix(".part") for file in self.path.iterdir()] if self.path.is_dir() else []
        if any(name not in SERVER_FILES and not locks.belongs(name) and not audit.belongs(name) for name in names):
            raise LabelSkewError(
                f"run directory {self.path} is not empty; use a new or empty folder, or --resume {self.path}"
            )
        parent = next(p for p in [self.path, *self.path.absolute().parents] if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise LabelSkewError(f"run directory {self.path} cannot be written: {parent} is not a writable folder")

    def check_resumable(self) -> None:
        """Raise LabelSkewError unless this is the folder of a run."""
        if not self.path.is_dir():
            raise mistake(f"--resume {self.path}", "no such folder", "the folder of an earlier run")
        if not self.recipe.is_file():
            raise LabelSkewError(f"--resume {self.path}: recipe.yaml is missing, so it is not the folder of a run")
        inside = os.path.join(os.path.realpath(self.path), "")
        for file in self.path.rglob("*"):
            escapes = file.is_symlink() and not os.path.realpath(file).startswith(inside)
            if escapes or not (file.is_symlink() or file.is_file() or file.is_dir()):
                kind = "a link to a path outside of the folder" if escapes else "a FIFO or device, not a regular file"
                raise LabelSkewError(f"--resume {self.path}: {clean(file, 4096)} is {kind}; remove it")
        environment = self.environment
        if environment and (not environment.get("run") or "source" not in environment.get("optimizer", {})):
            raise self.damaged(self.path / "environment.json")
        for file in (self.metrics, self.timings):
            if any(type(line.get("round")) is not int or _has_text(line) for line in read_lines(file)):
                raise self.damaged(file)

    def remove_aborted(self) -> None:
        """Remove the files of a run that ended before its recipe was written."""
        files = [file for file in self.path.iterdir() if not locks.belongs(file.name)]
        names = {file.name.removesuffix(".part") for file in files}
        with contextlib.suppress(LabelSkewError):
            names -= set(self.environment.get("notes", []))
        if names <= FILES_BEFORE_RECIPE:
            for file in files:
                file.unlink(missing_ok=True)

    @property
    def stopped(self) -> str:
        """Why the run has stopped early; empty for other runs, or if its results are damaged."""
        try:
            return str(self.results.get("stopped", ""))
        except LabelSkewError:
            return ""

    def is_whole(self, rounds: int) -> bool:
        """Whether the results of a run of ``rounds`` rounds exist, or of one that has stopped early."""
        try:
            if self.results.get("rounds") != rounds and not self.stopped:
                return False
        except LabelSkewError:
            return False
        local = self.sections.get("train_args", {}).get("reference") == "local"
        return (self.path / ("clients" if local else "model.safetensors")).exists()

    def create(self) -> None:
        """Create the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabelSkewError(f"run directory {self.path} cannot be written: {error.strerror}") from error

    def hold(self, *, patience: float = locks.PATIENCE_S) -> None:
        """Lock the folder until :meth:`release`, see :func:`.locks.hold`."""
        if self._check_lock is None:
            self.create()
            self._check_lock = self._stack.enter_context(locks.hold(self.path, patience=patience))

    def release(self) -> None:
        """Unlock the folder, if this process holds it."""
        self._check_lock = None
        self._stack.close()

    def still_held(self) -> None:
        """Raise RunError if another process has taken over the folder."""
        if self._check_lock is not None:
            self._check_lock()

    def set_status(self, **facts: Any) -> None:
        """Add facts to the run's status; write it if this process holds the folder."""
        with contextlib.suppress(RunError):
            self.still_held()
            self._facts |= facts
            if self._check_lock is not None:
                with contextlib.suppress(OSError):
                    text = json.dumps({**self._facts, "time": utc()}, indent=1) + "\n"
                    write_text(self.path / status.NAME, text)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        self.still_held()
        write_text(self.path / name, text)

    def append(self, file: Path, value: Mapping[str, Any]) -> None:
        """Append a line of JSON, see :func:`finite`."""
        self.still_held()
        with open(file, "a", encoding="utf-8", opener=open_regular) as stream:
            stream.write(json.dumps(finite(value), allow_nan=False) + "\n")

    def change_rounds(self, rounds: int, stop: dict[str, Any] | None, *, tested: bool, observed: bool) -> None:
        """Change the number of rounds, to more than are complete, or ``train_args.stop``; move earlier results aside.

        ``tested``, ``observed``: whether the previously last round is still tested, and observed by diagnostics.
        """
        text = read_text(self.recipe)
        content, _ = yaml.read(text)
        last = content["train_args"]["comm_round"] - 1
        if rounds == last + 1 and stop == content["train_args"].get("stop") and not self.stopped:
            return
        aside = self.path / f"after-{len(self.lines)}-rounds"
        for file in (self.path / name for name in RESULTS):
            if file.exists():
                aside.mkdir(exist_ok=True)
                shutil.rmtree(aside / file.name, ignore_errors=True)  # from an attempt that was killed
                file.rename(aside / file.name)
        if not tested:
            lines = [
                {key: line[key] for key in line if line["round"] != last or key in UNTESTED_KEYS} for line in self.lines
            ]
            self._write_lines(self.metrics, lines)
        for file in () if observed else sorted(self.diagnostics.glob("*.jsonl")):
            self._write_lines(file, [line for line in read_lines(file) if line["round"] != last])
        content["train_args"] |= {"comm_round": rounds, "stop": stop}
        self.write_text("recipe.yaml", text.partition("\n")[0] + "\n" + yaml.write(content))

    def truncate(self, rounds: int) -> None:
        """Remove lines of rounds from ``rounds`` on, and incomplete lines."""
        for file in self._by_round():
            self._write_lines(file, [line for line in read_lines(file) if line["round"] < rounds])

    def _by_round(self) -> list[Path]:
        return [self.metrics, self.timings, *sorted(self.diagnostics.glob("*.jsonl"))]

    def _write_lines(self, file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        self.write_text(str(file.relative_to(self.path)), "".join(json.dumps(line) + "\n" for line in lines))

    def save_checkpoint(self, state: Checkpoint, states: StateStore, *, keep: int = 1) -> None:
        """Save a run's state, also of the store; keep at most ``keep`` checkpoints."""
        self.still_held()
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        clients = {"states": checkpoint.table(states.flush()), "selections": checkpoint.table(states.selections)}
        clients |= {name: torch.tensor(np.array(getattr(state, name), int)) for name in ("sizes", "opened")}
        tensors = joined(model=state.weights, shared=state.shared, memory=state.memory, clients=clients)
        if keep > 1 and (before := checkpoint.round_of(self.checkpoint)) is not None:
            copied(self.checkpoint, self._earlier(before))
        meta = {"round": state.round, "seconds": state.seconds, "medians": state.medians}
        save_atomic(tensors, self.checkpoint, {"labelskew": json.dumps(meta)})
        states.checkpointed(keep)
        rounds = [at for at in self.earlier() if at < state.round]
        for at in self.earlier().keys() - set(rounds[max(0, len(rounds) - keep + 1) :]):
            self._earlier(at).unlink()

    def earlier(self) -> dict[int, Path]:
        """Earlier checkpoints by their number of rounds, ascending."""
        files = sorted(self.checkpoint.parent.glob("round*.safetensors"))
        return {int(name): file for file in files if (name := file.stem.removeprefix("round")).isdecimal()}

    def _earlier(self, round: int) -> Path:
        return self.checkpoint.with_name(f"round{round:06d}.safetensors")

    def indices(self, round: int) -> list[dict[int, int]]:
        """Client to the round of its state, for each checkpoint before ``round``, oldest first."""
        files = [file for at, file in self.earlier().items() if at < round and checkpoint.round_of(file) is not None]
        return [checkpoint.read(file, tensors=False).states for file in files]

    def go_back(self, round: int) -> str:
        """Go back to the end of ``round``, from 1, and move data of later rounds aside; return a message about it.

        Raises LabelSkewError if the checkpoint does not exist.
        """
        last, files = checkpoint.round_of(self.checkpoint), self.earlier()
        rounds = [
            at for at, file in files.items() if (last is None or at < last) and checkpoint.round_of(file) is not None
        ]
        rounds += [] if last is None else [last]
        if not rounds:
            raise mistake(f"--from-round {round}", f"{self.path} has no checkpoint yet", "only --resume")
        if round not in rounds:
            ends = f"{', '.join(map(str, rounds[:-1]))} and {rounds[-1]}" if len(rounds) > 1 else f"only {rounds[0]}"
            raise LabelSkewError(
                f"--from-round {round}: {self.path} has no checkpoint of the end of round {round}; existing ones: "
                f"{ends} (tracking_args.keep_checkpoints, checkpoint_every)"
            )
        if round == last:
            return ""
        number = 1 + sum(1 for _ in self.path.glob(f"{ABANDONED}-*"))
        aside = self.path / f"{ABANDONED}-{number}"
        aside.mkdir()
        for file in self._by_round():
            if lines := [line for line in read_lines(file) if line["round"] >= round]:
                self._write_lines(aside / file.name, lines)
        best = best_test(read_lines(self.metrics))
        of_later = best is not None and best["round"] >= round and self.best.exists()
        for name in (*RESULTS, *([self.best.name] if of_later else ())):
            if (self.path / name).exists():
                (self.path / name).rename(aside / name)
        files[round].replace(self.checkpoint)
        for at in files:
            if at > round:
                files[at].unlink()
        self.truncate(round)
        return f"back at the end of round {round}; data of later rounds were moved to {aside}"

    def load_checkpoint(self, device: torch.device = CPU, *, tensors: bool = True) -> Checkpoint | None:
        """The last checkpoint, if any, see :func:`.checkpoint.read`."""
        return checkpoint.read(self.checkpoint, device, tensors=tensors) if self.checkpoint.exists() else None


def summary(lines: list[dict[str, Any]], last: int) -> dict[str, Any]:
    """Final and best value of the main measure, its mean and std over the ``last`` tests, and further totals."""
    key, tests = main_measure(lines).key, main_tests(lines)
    result: dict[str, Any] = {"rounds": len(lines)}
    tail = tests[-last:]
    if (best := best_test(tests)) is not None:
        result |= {
            "measure": key,
            "final_accuracy": tests[-1][key],
            "best_accuracy": best[key],
            "rounds_to_best": best["round"] + 1,  # from 1; ``round`` counts from 0
            "last_tests": len(tail),
            "last_mean": statistics.fmean(line[key] for line in tail),
            "last_std": statistics.pstdev(line[key] for line in tail),
        }
        if "balanced_accuracy" in best:
            result["balanced_last_mean"] = statistics.fmean(line["balanced_accuracy"] for line in tail)
    if by_client := [line for line in lines if any(key.startswith("client_accuracy") for key in line)]:
        result |= {key: value for key, value in by_client[-1].items() if key.startswith("client_")}
    result |= {key: sum(line.get(key, 0) for line in lines) for key in ("bytes_up", "bytes_down")}
    if late := sorted({client for line in lines for client in line.get("opening_left_out", ())}):
        result["opening_left_out"] = late
    if personal := [v for line in tail if (v := line.get("personalised_accuracy")) is not None]:
        result["personalised_last_mean"] = statistics.fmean(personal)
    return result


def finite(value: Any) -> Any:
    """Replace numbers that are not finite, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _has_text(value: object) -> bool:
    """Whether a line of measures contains text, except for the worst client's name."""
    if isinstance(value, dict):
        return any(_has_text(entry) for key, entry in value.items() if not key.endswith("_worst_client"))
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str)
