"""The rounds of a recipe in a loop of one's own, in this process and without FedML."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.engine.globals import restored
from fl_labelskew_plugins.front import start
from fl_labelskew_plugins.front.run import Run, prepared
from fl_labelskew_plugins.models.module import Headed
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.progress import Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import build
from fl_labelskew_plugins.runs.simulation import Simulation

if TYPE_CHECKING:
    from torch import nn

    from fl_labelskew_plugins.recipe.model import Recipe


def simulate(recipe: Recipe | str | Path | Mapping[str, Any], folder: str | Path | None = None, **objects: Any) -> Loop:
    """A recipe's federation, to be run round by round.

    Args:
        recipe: as :func:`.run.run` takes it; with ``backend: sp``, and without FedML's attacks, defences and noise.
        folder: the run's own, new or empty; default: a new one under the recipe's ``tracking_args.run_dir``.
        objects: ``model``, ``dataset``, ``method`` and ``partition``, as :func:`.run.run` takes them.

    Raises:
        LabelSkewError: a mistake in what was asked for, or only FedML can do it.
    """
    recipe = prepared(recipe, objects)
    if not recipe.comm.in_process:
        raise LabelSkewError(f"comm_args.backend: {recipe.comm.backend}: a loop runs in one process; use sp")
    recipe = compatibility.without_host(recipe, "fl.run, which has FedML where it is installed")
    return Loop(recipe, None if folder is None else Path(folder))


class Loop:
    """A federation whose rounds are iterated over; each gives its line of metrics, whose ``round`` counts from 0.

    Whoever stops early leaves a checkpoint, and may iterate again, or go on with ``run.resume()``. After the last
    round the run's folder is complete.
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
                while True:  # the code of the loop's body runs between rounds, with its own threads and generators
                    with restored(self._threads):
                        if (line := next(rounds, None)) is None:
                            break
                    yield line
                if record.next_round == record.session.federation.rounds:
                    with restored(self._threads):
                        record.finish()
        finally:
            self._folder.release()

    @property
    def run(self) -> Run:
        """The run so far."""
        recipe = self._record.session.recipe
        return Run(self._folder.path, recipe.objects, recipe.code)

    @property
    def model(self) -> nn.Module:
        """A copy of the global model as it is now, in eval mode."""
        network = copy.deepcopy(self._record.session.trainer.model)
        network.load_state_dict(self._record.weights)
        return (network.whole() if isinstance(network, Headed) else network).eval()
