"""Weights & Biases, offline by default."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from fl_labelskew_registry import LabelSkewError, TrackedRun, Tracker
from pydantic import Field

from fl_labelskew_plugins import params

QUIET = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "PYTHONWARNINGS": "ignore"}
"""Defaults of the environment."""


class WandB(Tracker):
    """A run of Weights & Biases, in the folder wandb/ of the run's folder; the key is in WANDB_API_KEY."""

    class Params(params.Params):
        """The run's names, and whether it is sent."""

        project: str = Field("fl-labelskew", min_length=1, description="project of the run")
        entity: str | None = Field(None, description="user or team; default: the user's own")
        name: str | None = Field(None, description="name of the run; default: the name of its folder")
        group: str | None = Field(None, description="group of runs")
        mode: Literal["offline", "online"] = Field(
            "offline", description="offline: nothing is sent, `wandb sync` can send it later; online: all is sent"
        )

    params: Params

    def begin(self, run: TrackedRun) -> None:
        """Begin a run, or resume it under the same id; an offline run is written again."""
        os.environ |= QUIET | dict(os.environ)
        try:
            import wandb
        except ImportError:
            raise LabelSkewError("needs wandb; pip install wandb") from None
        args, online = self.params, self.params.mode == "online"
        if online and not wandb.api.api_key:  # it would prompt for one, and block
            raise LabelSkewError("mode: online needs a key; use the environment variable WANDB_API_KEY, or wandb login")
        self._wandb = wandb
        self._run = wandb.init(
            id=run.id,
            name=args.name or run.folder.name,
            project=args.project,
            entity=args.entity,
            group=args.group,
            mode=args.mode,
            dir=str(run.folder),
            config={**run.parameters},
            resume="allow" if online else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="round")
        for line in () if online else run.earlier:
            self.on_round(run, line)

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        self._run.log({name.replace(".", "/"): value for name, value in line.items()} | {"round": line["round"] + 1})

    def finish(self, run: TrackedRun, summary: Mapping[str, float], pictures: Sequence[Path], model: Path) -> None:
        self._run.log({file.stem: self._wandb.Image(str(file)) for file in pictures})
        artifact = self._wandb.Artifact(f"model-{run.id}", type="model")
        artifact.add_file(str(model))
        self._run.log_artifact(artifact)
        self._run.summary.update({**summary})

    def close(self, run: TrackedRun, state: str) -> None:
        self._run.finish(exit_code=int(state == "failed"))
