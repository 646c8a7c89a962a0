"""Federations of real processes on 127.0.0.1."""

import contextlib
import json
import socket
import threading

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
        from fl_labelskew_plugins.runtimes.silo.runtime import free_port

        self.address = f"127.0.0.1:{free_port()}"
        self.run_dir = folder / "run"
        self.overrides, self.environment = [], {}
        self.number = 0

    def _start(self, name, *argv):
        sets = [word for override in self.overrides for word in ("--set", override)]
        self.number += 1
        log = self.folder / f"{self.number:02d}-{name}.log"
        return self.forker.start(["run", *argv, *sets, "--server", self.address], log, environment=self.environment)

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


def simulation(recipe):
    """The same for one process."""
    return "\n".join(line for line in recipe.splitlines() if not line.startswith(("common_args", "comm_args")))


@pytest.fixture(scope="session")
def sp_run(tmp_path_factory):
    """The folder of the base recipe's run in one process, with these overrides; each runs once."""
    from fl_labelskew_plugins import plots
    from fl_labelskew_plugins.front import start

    folder, done = tmp_path_factory.mktemp("sp"), {}
    (folder / "recipe.yaml").write_text(simulation(RECIPE))

    def sp(*overrides):
        if overrides not in done:
            out = folder / str(len(done))
            with pytest.MonkeyPatch.context() as patch:  # as no_pictures does, for a whole session
                patch.setattr(plots, "curves", lambda *_, **__: None)
                patch.setattr(plots, "heat_map", lambda *_, **__: None)
                start.start(folder / "recipe.yaml", overrides, run_dir=out, quiet=True)
            done[overrides] = out
        return done[overrides]

    return sp


@pytest.fixture
def sp_weights(sp_run):
    """The model of that run."""
    from safetensors.torch import load_file

    return lambda *overrides: load_file(sp_run(*overrides) / "model.safetensors")


@pytest.fixture(scope="session")
def base_recipe():
    return RECIPE


@pytest.fixture(scope="session")
def base_simulation():
    return simulation(RECIPE)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """The folder of a federation's certificates: a server and three silos."""
    from fl_labelskew_plugins.runtimes.silo import issuing

    folder = tmp_path_factory.mktemp("certs")
    issuing.new(folder, 3)
    return folder


class Proxy:
    """Passes connections on to ``target`` and keeps what each side sent.

    While ``up`` is false nobody gets through; the first ``cuts`` connections break once ``last`` came from the target.
    """

    def __init__(self, target):
        self.target = target
        self.sent, self.received = [], []
        self.open = []
        self.up, self.last, self.cuts = True, b"", 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            inner, _ = self.door.accept()
            host, port = self.target.split(":")
            try:
                if not self.up:
                    raise OSError("the line is down")
                outer = socket.create_connection((host, int(port)))
            except OSError:
                inner.close()
                continue
            self.open += [inner, outer]
            for source, sink, kept in ((inner, outer, self.sent), (outer, inner, self.received)):
                kept.append(bytearray())
                last = self.last if source is outer and self.cuts > 0 else b""
                threading.Thread(target=self._pass, args=(source, sink, kept[-1], last), daemon=True).start()
            self.cuts -= 1

    def cut(self):
        """Break every connection; new ones are passed on again, if ``up``."""
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    @staticmethod
    def _pass(source, sink, kept, last):
        try:
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
                if last and last in kept:
                    source.shutdown(socket.SHUT_RDWR)
                    break
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def make_proxy():
    return Proxy
