"""MLflow, in a folder or on a tracking server."""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, TrackedRun, Tracker
from pydantic import Field, field_validator

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine.files import write_text

INSTALL = "pip install mlflow-skinny"
BESIDE_FEDML = "pip install --no-deps mlflow-skinny==2.12.2 entrypoints pytz sqlparse"
"""FedML's pins are incompatible with MLflow's, but this version works."""
RUN_FILE = "mlflow.json"
MAX_PARAMETERS = 100
QUIET = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}
"""Defaults of the environment: runs in a folder (MLflow 3), no telemetry, and a short wait for a missing server."""
STATES = {"finished": "FINISHED", "failed": "FAILED"}


class MLflow(Tracker):
    """A run of MLflow in an experiment; steps are rounds, from 1."""

    class Params(params.Params):
        """Location of the runs."""

        uri: str | None = Field(
            None, description="folder, or a server's address; default: the folder mlruns next to the run's folder"
        )
        experiment: str = Field("fl-labelskew", min_length=1, description="experiment; created if it is missing")

        @field_validator("uri")
        @classmethod
        def _check_no_secret(cls, uri: str | None) -> str | None:
            if uri is not None and re.search(r"//[^/]*@", uri):
                raise ValueError(
                    "must not contain a name or password; give only the address here, and set name and password in the "
                    "environment variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                )
            return uri

    params: Params

    def begin(self, run: TrackedRun) -> None:
        """Begin a run, or resume the one in ``mlflow.json`` if it exists at this address."""
        os.environ |= QUIET | dict(os.environ)
        finders, distributions = [*sys.meta_path], vars(PathFinder)["find_distributions"]
        try:
            import mlflow
            from mlflow.entities import Param
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            install = BESIDE_FEDML if find_spec("fedml") else INSTALL
            raise LabelSkewError(f"mlflow cannot be imported: {error}; {install}") from None
        finally:  # undo the changes of old importlib_metadata to Python's finder
            sys.meta_path[:] = finders
            PathFinder.find_distributions = distributions  # type: ignore[method-assign]
        uri = self.params.uri or str(run.folder.absolute().parent / "mlruns")
        if "://" not in uri:
            uri = Path(uri).expanduser().absolute().as_uri()
        mlflow.set_tracking_uri(uri)  # file uploads ignore the client's address
        self._client, kept = mlflow.MlflowClient(uri), run.folder / RUN_FILE
        if kept.exists():
            with contextlib.suppress(MlflowException):  # not found: the address has changed
                self._run = str(json.loads(kept.read_text("utf-8"))["run_id"])
                self._client.update_run(self._run, status="RUNNING")
                return
        experiment = self._client.get_experiment_by_name(self.params.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self.params.experiment)
        self._run = self._client.create_run(number, run_name=run.folder.name).info.run_id
        write_text(kept, json.dumps({"uri": uri, "run_id": self._run}) + "\n")
        parameters = [Param(key, str(value)) for key, value in run.parameters.items()]
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[first : first + MAX_PARAMETERS])
        for line in run.earlier:
            self.on_round(run, line)

    def on_round(self, run: TrackedRun, line: Mapping[str, float]) -> None:
        self._log({name: value for name, value in line.items() if name != "round"}, int(line["round"]) + 1)

    def finish(self, run: TrackedRun, summary: Mapping[str, float], pictures: Sequence[Path], model: Path) -> None:
        self._log({f"summary.{name}": value for name, value in summary.items()}, int(summary["rounds"]))
        for file in pictures:
            self._client.log_artifact(self._run, str(file), "pictures")
        self._client.log_artifact(self._run, str(model))

    def close(self, run: TrackedRun, state: str) -> None:
        self._client.set_terminated(self._run, STATES.get(state, "KILLED"))

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        parts = [(name.split(".", 1), v) for name, v in numbers.items()]  # a silo chooses names of loss terms
        metrics = [Metric("/".join(re.sub(r"[.+]", "_", part) for part in p), v, now, step) for p, v in parts]
        self._client.log_batch(self._run, metrics=metrics)
