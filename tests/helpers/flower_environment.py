"""Processes of the environment with Flower, which excludes FedML; that of `make test-flower`."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

FOLDER = Path(os.environ["FLOWER_VENV"])


class FlowerEnvironment:
    """Starts commands in a home folder of its own. Each has a process group, which :meth:`end` kills."""

    def __init__(self, home):
        from fl_labelskew_plugins.runtimes.silo.runtime import free_port

        kept = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_", "PYTHON"))}
        self.variables = kept | {
            "HOME": str(home),
            "FLWR_HOME": str(home / ".flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{FOLDER / 'bin'}:{kept['PATH']}",
        }
        self.started = []

    def start(self, *command, log, cwd=None):
        cwd = cwd or log.parent
        with log.open("w") as output:
            process = subprocess.Popen(
                [*map(str, command)],
                env=self.variables, cwd=cwd, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *command, log, cwd=None, timeout=240):
        """The output of a command, which must succeed."""
        code = self.start(*command, log=log, cwd=cwd).wait(timeout)
        assert code == 0, log.read_text()
        return log.read_text()

    def end(self):
        for process in self.started:
            kill(process)


def kill(process):
    """Kill a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def says(log, words, seconds=180):
    """Wait for words in a log."""
    end = time.monotonic() + seconds
    while words not in log.read_text(errors="replace"):
        assert time.monotonic() < end, f"{log.name} has not said {words!r}:\n{log.read_text()}"
        time.sleep(0.1)
