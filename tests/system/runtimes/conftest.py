"""Federations of real processes on 127.0.0.1."""

import json
import os
import sys
from pathlib import Path

import pytest
from recipe_texts import SILOS, simulation


@pytest.fixture
def transports():
    """Those that a test has made; stopped in the end, the last one first."""
    made = []
    yield made
    for transport in reversed(made):
        transport.stop_receive_message()


@pytest.fixture
def start(certificates, transports):
    """Makes servers, and by ``start.silo`` silos; ``tls``: a process's files, or True for its own certificate."""
    from federations import Peer

    from fl_labelskew_plugins.runtimes.silo import certs
    from fl_labelskew_plugins.runtimes.silo.connecting import SiloTransport
    from fl_labelskew_plugins.runtimes.silo.listening import ServerTransport

    def server(address="127.0.0.1:0", *, tls=False, silos=3, **options):
        files = certs.read(certificates, "server") if tls is True else tls or None
        transports.append(ServerTransport(address, silos=silos, tls=files, **options))
        return Peer(transports[-1])

    def silo(address, rank=1, *, tls=False, **options):
        files = certs.read(certificates, f"silo-{rank}") if tls is True else tls or None
        transports.append(SiloTransport(address, rank, tls=files, **options))
        transports[-1].start()
        return Peer(transports[-1])

    server.silo = silo
    return server


CHEATING = Path(__file__).parents[2] / "helpers" / "cheating.py"


class Federation:
    """A server and silos, each started when a test says so; ``cheat``: with one function replaced, see cheating.py."""

    host = "fedml"
    """``none`` for tests in which FedML takes no part: processes start faster without it."""

    def __init__(self, forker, folder, recipe=SILOS):
        self.forker, self.folder = forker, folder
        self.recipe = folder / "recipe.yaml"
        self.recipe.write_text(recipe)
        from fl_labelskew_plugins.runtimes.silo.runtime import free_port

        self.address = f"127.0.0.1:{free_port()}"
        self.run_dir = folder / "run"
        self.overrides, self.environment = [], {}
        self.number = 0

    def _start(self, name, *argv, cheat=None):
        sets = [word for override in self.overrides for word in ("--set", override)]
        self.number += 1
        log = self.folder / f"{self.number:02d}-{name}.log"
        words, script = (["run"], None) if cheat is None else ([cheat, "run"], CHEATING)
        host = ("--host", "none") if self.host == "none" else ()  # else the default
        argv = [*words, *argv, *sets, *host, "--server", self.address]
        return self.forker.start(argv, log, environment=self.environment, script=script)

    def server(self, *more, resume=False, **options):
        where = ["--resume" if resume else "--run-dir", self.run_dir]
        return self._start("server", self.recipe, "--role", "server", *where, *more, **options)

    def silo(self, rank, *more, **options):
        folder = self.folder / f"silo-{rank}"
        role = ("--role", "client", "--rank", rank, "--run-dir", folder)
        return self._start(f"silo-{rank}", self.recipe, *role, *more, **options)

    def silos(self, *ranks):
        return [self.silo(rank) for rank in ranks or (1, 2, 3)]

    def give_files(self, **texts):
        """Give each silo a file of its own with this text, in order."""
        files = ", ".join(f"{name}.yaml" for name in texts)
        with self.recipe.open("a") as recipe:
            recipe.write(f"client_specific_args: {{data_silo_config: [{files}]}}\n")
        for name, text in texts.items():
            (self.folder / f"{name}.yaml").write_text(text)

    def lines(self):
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def weights(self):
        from safetensors.torch import load_file

        return load_file(self.run_dir / "model.safetensors")


@pytest.fixture
def make_federation(forker, tmp_path):
    def make(name, recipe=SILOS):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return Federation(forker, folder, recipe)

    yield make
    forker.end_all()


@pytest.fixture
def federation(make_federation):
    return make_federation("")


@pytest.fixture(scope="session")
def sp_run(tmp_path_factory):
    """The folder of the base recipe's run in one process, with these overrides; each runs once."""
    from federations import cached_runs

    return cached_runs(tmp_path_factory.mktemp("sp"), simulation(SILOS))


@pytest.fixture
def sp_weights(sp_run):
    from safetensors.torch import load_file

    return lambda *overrides: load_file(sp_run(*overrides) / "model.safetensors")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """The folder of a federation's certificates, of a server and seven silos; not to be changed."""
    from fl_labelskew_plugins.runtimes.silo import certs

    folder = tmp_path_factory.mktemp("certificates") / "certs"
    certs.new(folder, 7)
    return folder


@pytest.fixture
def hospitals(certificates, tmp_path):
    """Makes so many silos for rounds of secure aggregation, each with an empty folder."""
    from masked_rounds import Hospital

    return lambda number: [Hospital(certificates, tmp_path, rank) for rank in range(1, number + 1)]


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    """The folder of another authority's certificates."""
    from fl_labelskew_plugins.runtimes.silo import certs

    folder = tmp_path_factory.mktemp("others")
    certs.new(folder, 3)
    return folder


@pytest.fixture
def plugin(federation, write_plugin, monkeypatch):
    """Makes a method ``acme`` that this process and those of the federation find."""

    def make(source, target):
        write_plugin(federation.folder, "fl_labelskew.methods", source, module=target.lower(), target=target)
        monkeypatch.syspath_prepend(federation.folder)
        federation.environment = {"PYTHONPATH": os.pathsep.join(sys.path)}

    return make
