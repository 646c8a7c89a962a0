"""Start, resume and read runs from Python."""

from __future__ import annotations

import base64
import contextlib
import copy
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from fl_labelskew_registry import LabelSkewError, Method, Network, Partitioner, mistake

from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.machine.files import read_bytes
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.models.module import Headed
from fl_labelskew_plugins.recipe import compatibility, parse, yaml
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.plugins import from_objects
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.measure import main_measure, main_tests
from fl_labelskew_plugins.runs.progress import OnLine, Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import build
from fl_labelskew_plugins.runs.simulation import Simulation
from fl_labelskew_plugins.runtimes.options import RunOptions
from fl_labelskew_plugins.show import card
from fl_labelskew_plugins.surveys.survey import of_partition
from fl_labelskew_plugins.trained import network
from fl_labelskew_plugins.trained.predict import frame

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


class Callback(Protocol):
    """A per-round callback."""

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        """Called after each round with its line of ``metrics.jsonl``."""


def load(recipe: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load and check a recipe.

    >>> load("quickstart", {"train_args.comm_round": 5}).train.comm_round
    5

    Args:
        recipe: a name of ``labelskew recipes ls``, a file, or a mapping of sections to their keys.
        changes: values by ``section.key``, which override the recipe's.

    Raises:
        LabelSkewError: all mistakes, a line each.
    """
    overrides = overrides_of(changes)
    if isinstance(recipe, Mapping):
        return parse.parse(yaml.write(json.loads(as_json(recipe))), source="recipe.yaml", overrides=overrides)
    return parse.load(recipe, overrides)


def overrides_of(changes: Mapping[str, Any] | None) -> list[str]:
    """Convert changes to overrides ``section.key=value``."""
    return [f"{place}={as_json(value)}" for place, value in (changes or {}).items()]


def as_json(value: Any) -> str:
    """Convert a value to JSON; arrays become lists, other types text."""
    return json.dumps(value, default=lambda other: other.tolist() if hasattr(other, "tolist") else str(other))


def run(
    recipe: Recipe | str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    model: nn.Module | Network | None = None,
    dataset: object = None,
    method: Method | None = None,
    partition: Sequence[Sequence[int]] | Partitioner | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    host: Literal["fedml", "none"] | None = None,
) -> Run:
    """Run a recipe to its end.

    Args:
        recipe: from :func:`load`, or an argument of it.
        folder: new or empty; default: a new one in the recipe's ``tracking_args.run_dir``.
        model: this and the next three arguments replace parts of the recipe, see docs/python.md.
        dataset: ``(train, test)``, each ``(x, y)`` or a torch ``Dataset`` with ``targets``.
        method: an object of a method's class.
        partition: indices of each client's training samples.
        callbacks: called after every round; StopIteration ends the run early with its results; another exception ends
            it with a checkpoint, and is raised here.
        quiet: print only warnings.
        host: ``none``: without FedML; default: with FedML if it is installed.

    Raises:
        LabelSkewError: invalid recipe or arguments.
        RunError: the run failed.
        KeyboardInterrupt: after a checkpoint was saved; ``load_run(folder).resume()`` resumes.
    """
    objects = {"model": model, "dataset": dataset, "method": method, "partition": partition}
    recipe = prepared(recipe, objects)
    place = start.folder_of(recipe, None if folder is None else Path(folder))
    plugins = (recipe.objects, recipe.code)
    start.train(recipe, place, RunOptions(quiet=quiet, host=host), _on_line(callbacks, place.path, *plugins))
    return Run(place.path, *plugins)


def prepared(recipe: Recipe | str | Path | Mapping[str, Any], objects: Mapping[str, Any]) -> Recipe:
    """Load a recipe if necessary, and replace its plugins by the given objects."""
    if not isinstance(recipe, Recipe):
        recipe = load(recipe)
    if given := from_objects(**objects):
        recipe = parse.parse(recipe.dump(), source=recipe.path, objects=given)
    return recipe


def load_run(folder: str | Path, **objects: Any) -> Run:
    """Open the folder of a run.

    Args:
        folder: of the run.
        objects: ``model``, ``dataset``, ``method`` and ``partition`` as given to :func:`run`; docs/python.md lists
            the attributes that need them. If the recipe's network is a function, ``model`` is ``"FILE.py:FUNCTION"``.

    Raises:
        LabelSkewError: not the folder of a run, or the objects differ from the run's.
    """
    code = objects.pop("model") if isinstance(objects.get("model"), str) else None
    return Run(folder, from_objects(**objects), code)


def _on_line(
    callbacks: Sequence[Callback], folder: Path, objects: Mapping[str, Any], code: str | None
) -> OnLine | None:
    def on_line(line: dict[str, Any]) -> None:
        run = Run(folder, objects, code)
        for callback in callbacks:
            callback.on_round(run, line)

    return on_line if callbacks else None


class Run:
    """A finished or unfinished run; see :func:`load_run`."""

    def __init__(self, folder: str | Path, objects: Mapping[str, Any] | None = None, code: str | None = None) -> None:
        self.folder, self._code = Path(folder), code
        self._folder, self._objects = RunFolder(self.folder), dict(objects or {})
        if not self._folder.recipe.is_file():
            use = "one that fl.run or labelskew run has written"
            raise mistake(clean(folder, 4096), "is not the folder of a run", use)
        start.check_objects(self._folder, self._objects, needed=())

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe; raises LabelSkewError if objects of the run are missing."""
        start.check_objects(self._folder, self._objects, then=".recipe")
        return parse.load(self._folder.recipe, objects=self._objects)

    @property
    def finished(self) -> bool:
        """Whether all rounds are complete."""
        return self._folder.summary.exists()

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``; empty before the end."""
        return self._folder.results

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last test, between 0 and 1, or None; ``summary["measure"]`` names the test."""
        lines = self._folder.lines
        tests = main_tests(lines)
        return tests[-1][main_measure(lines).key] if tests else None

    @property
    def metrics(self) -> pd.DataFrame:
        """A row per round, indexed from 0."""
        import pandas as pd

        lines = pd.json_normalize(self._folder.lines)
        return lines.set_index("round") if len(lines) else lines

    @property
    def partition(self) -> pd.DataFrame | None:
        """Training samples ``(K, C)`` by client and class; None if no single process knows them."""
        import pandas as pd

        if (counts := self._folder.partition.get("counts")) is None:
            return None
        frame = pd.DataFrame(counts, columns=pd.Index(self._folder.class_names, name="class"))
        names = self._folder.partition.get("clients", [])
        if names != [str(k) for k in range(len(names))]:
            frame.index = pd.Index(names)
        return frame.rename_axis("client")

    @property
    def model(self) -> nn.Module:
        """The network of the last round, in eval mode; LabelSkewError if the file or a needed object is missing."""
        return self._network(self.folder / "model.safetensors", "it is written after the last round", ".model")

    @property
    def best(self) -> nn.Module:
        """The network of the round with the best accuracy so far, as :attr:`model`."""
        otherwise = "it needs tracking_args.keep_best: true, and test samples of the server or clients"
        return self._network(self._folder.best, otherwise, ".best")

    def predict(
        self, x: Any, *, top: int = 1, best: bool = False, client: int | str | None = None, batch_size: int = 64
    ) -> pd.DataFrame:
        """Predict the classes of samples.

        Args:
            x: one sample or ``(N, ...)``, not normalised, or a DataFrame with the columns of training; or paths of
                pictures, folders of pictures, CSV or Parquet tables, or ``.npz`` files with ``x``.
            top: number of classes per row.
            best: use the model of the best round.
            client: use the own model of this client, by its name or its number from 0.
            batch_size: samples at a time.

        Returns:
            A row per sample: ``class`` and ``probability``; with ``top`` also ``class_2``, ``probability_2`` and so
            on. The index is a DataFrame's own, ``file`` for paths, and otherwise the sample's number.

        Raises:
            LabelSkewError: the model does not exist, the samples do not fit it, or files cannot be read.
        """
        file = network.file_of(self.folder, best=best, client=None if client is None else str(client))
        self._check_network(file, ".predict(...)")
        trained = network.load(file, self._objects.get("model_args"), code=self._code)
        return frame(trained, x, top=top, batch_size=batch_size)

    def personalised(self, client: int | str) -> nn.Module:
        """The own model of a client (number from 0, or name), in eval mode; LabelSkewError if it has none."""
        if isinstance(client, str):
            names = self._folder.partition.get("clients", [])
            if client not in names:
                raise mistake(f"client {clean(client, 40)}", "is not in this run", f"one of {few(names)}, or a number")
            client = names.index(client)
        name = clean(self._folder.environment.get("method"))
        reason = f"client {client} has no own model; methods such as map or fedphp keep one per trained client"
        file = self.folder / "clients" / f"client{client:06d}.safetensors"
        return self._network(file, f"{name}: {reason}", f".personalised({client})")

    def resume(
        self,
        *,
        comm_round: int | None = None,
        early_stopping: bool = True,
        quiet: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Run:
        """Resume the run until its last round, with identical results; raises as :func:`run`.

        ``comm_round``: a new total number of rounds, also for a finished run. ``early_stopping``: if false, remove
        ``train_args.stop``.
        """
        changes = [] if comm_round is None else [f"{start.ROUNDS}={comm_round}"]
        changes += [] if early_stopping else [f"{start.STOP}=null"]
        on_line = _on_line(callbacks, self.folder, self._objects, self._code)
        recipe, folder = start.resumed(None, changes, self.folder, self._objects)
        start.train(recipe, folder, RunOptions(overrides=changes, resume=folder.path, quiet=quiet), on_line)
        return Run(self.folder, self._objects, self._code)

    def _network(self, file: Path, otherwise: str, attribute: str) -> nn.Module:
        if not file.exists():
            raise LabelSkewError(f"{file}: no such file; {otherwise}")
        self._check_network(file, attribute)
        return network.load(file, self._objects.get("model_args"), code=self._code).network

    def _check_network(self, file: Path, attribute: str) -> None:
        """Raise LabelSkewError if the network was an object that was not given."""
        weights = f"; to load only its weights: safetensors.torch.load_file({str(file)!r})"
        start.check_objects(self._folder, self._objects, ["model_args"], attribute + weights)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}): {self._title()}"

    def _title(self) -> str:
        try:
            recipe, done = self._folder.sections, len(self._folder.lines)
            planned = recipe["train_args"]["comm_round"]
            accuracy = "" if self.accuracy is None else f", accuracy {100 * self.accuracy:.2f} %"
            rounds = counted(planned, "round") if done == planned else f"{done} of {counted(planned, 'round')}"
            method, dataset = recipe["method_args"]["method"], recipe["data_args"]["dataset"]
            return f"{clean(method)} on {clean(dataset)}, {rounds}{accuracy}"
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            problem = "damaged: recipe.yaml or metrics.jsonl has unexpected content"
            raise LabelSkewError(f"{clean(self.folder, 4096)}: {problem}") from None

    def _repr_html_(self) -> str:
        """The run's state and pictures, for notebooks."""
        parts = [f"<b>{html.escape(self._title())}</b><br><code>{html.escape(clean(self.folder, 4096))}</code><br>"]
        for name in ("curves", "partition"):
            if (file := self.folder / f"{name}.png").exists():
                image = f"data:image/png;base64,{base64.b64encode(read_bytes(file)).decode()}"
                parts.append(f'<img alt="{name}" style="max-height:18em;max-width:100%" src="{image}">')
        return f"<div>{''.join(parts)}</div>"


def simulate(recipe: Recipe | str | Path | Mapping[str, Any], folder: str | Path | None = None, **objects: Any) -> Loop:
    """Simulate a recipe's federation round by round; the arguments are those of :func:`run`.

    Raise LabelSkewError for invalid arguments, another backend than sp, or a setting that needs FedML.
    """
    recipe = prepared(recipe, objects)
    if not recipe.comm.in_process:
        raise LabelSkewError(f"comm_args.backend: {recipe.comm.backend}: fl.simulate runs in one process; use sp")
    recipe = compatibility.without_host(recipe, "fl.run, which uses FedML if it is installed")
    return Loop(recipe, None if folder is None else Path(folder))


def survey(
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    dataset: object = None,
    partition: Sequence[Sequence[int]] | Partitioner | None = None,
) -> pd.DataFrame:
    """Measure a recipe's label skew without training; the arguments are those of :func:`run`.

    Returns:
        A row per client: training samples of each class and in all, then measures, see docs/survey.md.
    """
    return of_partition(prepared(recipe, {"dataset": dataset, "partition": partition})).frame


class Loop:
    """An iterable over a federation's rounds; each item is a line of ``metrics.jsonl``.

    After an early stop, iterate again or call ``run.resume()``.
    """

    def __init__(self, recipe: Recipe, folder: Path | None) -> None:
        self._folder = start.folder_of(recipe, folder)
        self._folder.check_new()
        with restored():
            session = start.warned(build(recipe))
            self._threads = torch.get_num_threads()
            self._folder.hold()
            try:
                self._record = Record(session, self._folder, Progress(), resume=False)
                self._rounds = Simulation(self._record)
            finally:
                self._folder.release()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        record = self._record
        self._folder.hold()
        try:
            with record.tracked(), contextlib.closing(iter(self._rounds)) as rounds:
                while True:  # between rounds, the caller has its own number of threads and random states
                    with restored(self._threads):
                        if (line := next(rounds, None)) is None:
                            break
                    yield line
                if record.over:
                    with restored(self._threads):
                        record.finish(card.text)
        finally:
            self._folder.release()

    @property
    def run(self) -> Run:
        """The run so far."""
        recipe = self._record.session.recipe
        return Run(self._folder.path, recipe.objects, recipe.code)

    @property
    def model(self) -> nn.Module:
        """A copy of the current global model, in eval mode."""
        model = copy.deepcopy(self._record.session.trainer.model)
        model.load_state_dict(self._record.weights)
        return (model.whole() if isinstance(model, Headed) else model).eval()
