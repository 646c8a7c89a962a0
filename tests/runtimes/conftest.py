"""Federations of real processes on 127.0.0.1."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

RECIPE = """\
common_args: {training_type: cross_silo}
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 4}
model_args: {model: mlp, hidden: [16]}
train_args: {client_num_in_total: 3, comm_round: 3, epochs: 2, batch_size: 32, learning_rate: 0.1}
method_args: {method: fedavg}
device_args: {threads: 1}
comm_args: {backend: GRPC, quorum_timeout_s: 60, reconnect_s: 20}
"""


class Process:
    """A command under way."""

    def __init__(self, forker, argv, log):
        self.forker, self.log = forker, log
        self.pid = forker.fork(argv, log)

    @property
    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait(self, timeout=150):
        """Its exit code."""
        end = time.monotonic() + timeout
        while self.pid not in self.forker.ended:
            assert time.monotonic() < end, f"{self.log.name} still runs after {timeout} s:\n{self.text}"
            time.sleep(0.02)
        return self.forker.ended[self.pid]

    def says(self, words, timeout=120, after=0):
        """Wait until it has said this."""
        end = time.monotonic() + timeout
        while words not in self.text[after:]:
            assert self.pid not in self.forker.ended, (
                f"{self.log.name} has ended without saying {words!r}:\n{self.text}"
            )
            assert time.monotonic() < end, f"{self.log.name} has not said {words!r}:\n{self.text}"
            time.sleep(0.02)

    def kill(self, number=signal.SIGKILL):
        if self.pid not in self.forker.ended:
            os.kill(self.pid, number)


class Forker:
    """See forker.py; every process that it starts has these variables, too."""

    def __init__(self, **environment):
        reports, theirs = os.pipe()
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", **environment}
        script = Path(__file__).with_name("forker.py")
        self.process = subprocess.Popen(
            [sys.executable, script, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[theirs],
            env=self.environment,
        )
        os.close(theirs)
        self.ended, self.started = {}, []
        assert self.process.stdout.readline() == "ready\n"
        self._reports = os.fdopen(reports)
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, argv, log):
        return Process(self, argv, log)

    def fork(self, argv, log):
        self.process.stdin.write(json.dumps({"argv": [str(a) for a in argv], "log": str(log)}) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        self.started.append(pid)
        return pid

    def _listen(self):
        for line in self._reports:
            pid, code = json.loads(line)
            self.ended[pid] = code

    def end_all(self):
        for pid in self.started:
            if pid not in self.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.end_all()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def make_forker():
    made = []

    def make(**environment):
        made.append(Forker(**environment))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(scope="session")
def forker(make_forker):
    return make_forker()


class Federation:
    """A server and silos, each started when a test says so.

    Args:
        forker: what starts processes.
        folder: everything of this federation.
    """

    def __init__(self, forker, folder, recipe=RECIPE):
        self.forker, self.folder = forker, folder
        self.recipe = folder / "recipe.yaml"
        self.recipe.write_text(recipe)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.run_dir = folder / "run"
        self.overrides = []
        self.number = 0

    def _start(self, name, *argv):
        sets = [word for override in self.overrides for word in ("--set", override)]
        self.number += 1
        log = self.folder / f"{self.number:02d}-{name}.log"
        return Process(self.forker, ["run", *argv, *sets, "--server", self.address], log)

    def server(self, *more, resume=False):
        where = ["--resume" if resume else "--run-dir", self.run_dir]
        return self._start("server", self.recipe, "--role", "server", *where, *more)

    def silo(self, rank, *more):
        folder = self.folder / f"silo-{rank}"
        return self._start(f"silo-{rank}", self.recipe, "--role", "client", "--rank", rank, "--run-dir", folder, *more)

    def silos(self, *ranks):
        return [self.silo(rank) for rank in ranks or (1, 2, 3)]

    def lines(self):
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def weights(self):
        from safetensors.torch import load_file

        return load_file(self.run_dir / "model.safetensors")


@pytest.fixture
def federation(forker, tmp_path):
    yield Federation(forker, tmp_path)
    forker.end_all()


@pytest.fixture
def make_federation(forker, tmp_path):
    def make(name, recipe=RECIPE):
        folder = tmp_path / name
        folder.mkdir()
        return Federation(forker, folder, recipe)

    yield make
    forker.end_all()


@pytest.fixture
def sp_weights(tmp_path):
    """The model of the same recipe in one process."""
    from safetensors.torch import load_file

    from fl_labelskew_plugins import run

    def weights(*overrides, recipe=RECIPE):
        path = tmp_path / "sp.yaml"
        kept = [line for line in recipe.splitlines() if not line.startswith(("common_args", "comm_args"))]
        path.write_text("\n".join(kept))
        out = tmp_path / f"sp{len(list(tmp_path.glob('sp*')))}"
        run.start(path, overrides, run_dir=out, quiet=True)
        return load_file(out / "model.safetensors")

    return weights


@pytest.fixture(scope="session")
def base_recipe():
    return RECIPE


class Proxy:
    """Passes connections on to ``target`` and keeps what each side sent."""

    def __init__(self, target):
        self.target = target
        self.sent, self.received = [], []
        self.open = []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            inner, _ = self.door.accept()
            host, port = self.target.split(":")
            try:
                outer = socket.create_connection((host, int(port)))
            except OSError:
                inner.close()
                continue
            self.open += [inner, outer]
            for source, sink, kept in ((inner, outer, self.sent), (outer, inner, self.received)):
                kept.append(bytearray())
                threading.Thread(target=self._pass, args=(source, sink, kept[-1]), daemon=True).start()

    def cut(self):
        """Break every connection; new ones are passed on again."""
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    @staticmethod
    def _pass(source, sink, kept):
        try:
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def make_proxy():
    return Proxy
