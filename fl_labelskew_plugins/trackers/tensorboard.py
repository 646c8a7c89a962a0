"""TensorBoard, with torch's own writer."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fl_labelskew_registry import TrackedRun, Tracker

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine import extras


class TensorBoard(Tracker):
    """Event files in the folder tensorboard/ of the run's folder; steps are rounds, from 1."""

    class Params(params.Params):
        """None."""

    def begin(self, run: TrackedRun) -> None:
        """Begin an event file; hide repeated rounds in earlier files, or without one add complete rounds."""
        extras.load("tensorboard", "tensorboard", what="it")
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        exists = folder.exists()
        self._writer = SummaryWriter(str(folder), purge_step=len(run.earlier) + 1 if exists else None)
        rows = [f"| {key} | {value} |" for key, value in run.parameters.items()]
        self._writer.add_text("parameters", "\n".join(["| key | value |", "|---|---|", *rows]), 0)
        for line in () if exists else run.earlier:
            self.on_round(run, line)

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        for name, value in line.items():
            if name != "round":
                self._writer.add_scalar(name.replace(".", "/"), value, int(line["round"]) + 1)
        self._writer.flush()

    def finish(self, run: TrackedRun, summary: Mapping[str, float], pictures: Sequence[Path], model: Path) -> None:
        import numpy as np
        from PIL import Image

        last = int(summary["rounds"])
        for file in pictures:
            with Image.open(file, formats=["PNG"]) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(file.stem, pixels, last, dataformats="HWC")
        self._writer.add_text("model", f"`{model}`", last)
        measures = {f"summary/{name}".replace(".", "/"): value for name, value in summary.items()}
        self._writer.add_hparams({**run.parameters}, measures, run_name=".")

    def close(self, run: TrackedRun, state: str) -> None:
        self._writer.close()
