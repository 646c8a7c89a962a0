"""For every test: one thread, as in the reference runs, and no window system. Throw-away environments; processes."""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("FL_LABELSKEW_PICTURES", "no")  # most of the time of a short run
os.environ["FL_LABELSKEW_LOG"] = "plain"  # lines as at a terminal; without times, which differ from run to run

import pytest

# make test-flower runs these in an environment of their own
collect_ignore = [] if find_spec("flwr") else ["unit/runtimes/flower"]
collect_ignore += [] if "FLOWER_VENV" in os.environ else ["system/runtimes/flower"]

for _name in ("COLUMNS", "LINES"):  # readline sets them for child processes; output into a pipe is not wrapped
    os.environ.pop(_name, None)
    os.unsetenv(_name)

# background processes of a shell ignore Ctrl-C, and so would every process that a test starts
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
HELPERS = ROOT / "tests" / "helpers"
FORKED_PYTHON = HELPERS / "forked_python.py"
UNIT = ROOT / "tests" / "unit"


PROCESSES = {"forker", "fork_children", "make_venv", "wheels", "slurm"}
"""Fixtures that start processes."""
LONGEST = (
    *("test_secure_runs.py", "test_benchmarks.py", "test_faults.py", "test_launch.py"),
    *("test_export.py", "test_packaging.py", "test_site.py"),
)
"""Files that take minutes: they start first, so that no worker runs alone at the end."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    """Order the tests, skip those that cannot run here, and keep processes out of unit tests.

    Files go to workers whole (``--dist loadfile``): the longest come first, then all other system tests, so that the
    last ones are short. Tests marked host are skipped without FedML, which they import in their functions only.

    Raises:
        UsageError: a unit test uses a fixture that starts processes.
    """
    for item in items:
        if UNIT in item.path.parents and (starts := PROCESSES & {*item.fixturenames}):
            raise pytest.UsageError(f"{item.nodeid}: {min(starts)} starts processes; move the file to tests/system")
        if item.get_closest_marker("host") and find_spec("fedml") is None:
            item.add_marker(pytest.mark.skip("FedML is not installed"))
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path.name, len(place)), UNIT in item.path.parents))
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]


class Venv:
    """A virtual environment without this checkout; :meth:`add_dependencies` shows it everybody else's packages."""

    def __init__(self, path):
        self.path = path
        self.home = path.parent / f"{path.name}-home"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
        self.python = path / "bin" / "python"
        self.site = next(path.glob("lib/python*/site-packages"))

    def install(self, *wheels):
        """Install wheels, before the dependencies are added: pip would take this checkout's install for theirs."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", *wheels], check=True)

    def add_dependencies(self):
        """Python reads no .pth files in a path that a .pth file adds: the checkout's editable install stays unseen."""
        paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        (self.site / "zz_dependencies.pth").write_text("\n".join(paths) + "\n")
        fedml = self.path / "bin" / "fedml"  # as pip would have made it
        fedml.write_text(f"#!{self.python}\nimport sys\nfrom fedml.cli.cli import cli\nsys.exit(cli())\n")
        fedml.chmod(0o755)

    def run(self, *command, cwd=None, check=True, timeout=120, **environment):
        """A command of this environment, with an empty home and nothing of ours in the environment variables."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_", "PYTHON", "FL_"))}
        kept |= {"HOME": str(self.home), "PATH": f"{self.path / 'bin'}:{kept['PATH']}", **environment}
        program = self.path / "bin" / command[0]
        done = subprocess.run(
            [program, *command[1:]],
            cwd=cwd or self.home,
            env=kept,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def labelskew(self, *commands, **options):
        """The result of these commands of ``labelskew``, run in one process, because each start takes seconds."""
        script = "import shlex, sys\nfrom fl_labelskew_plugins.cli.main import main\n"
        script += "for words in sys.argv[1:]:\n    main(shlex.split(words), standalone_mode=False)"
        return self.run("python", "-c", script, *commands, **options)


@pytest.fixture(scope="session")
def make_venv(tmp_path_factory):
    """Makes a new, empty environment."""
    return lambda: Venv(tmp_path_factory.mktemp("venv") / "env")


@pytest.fixture(scope="session")
def build():
    """Builds the wheel of a folder that holds a pyproject.toml, without a network: ``build(source, out)``."""

    def build(source, out):
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return max(out.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime_ns)

    return build


@pytest.fixture(scope="session")
def wheels(build, tmp_path_factory):
    """Our two wheels, the registry's first."""
    out = tmp_path_factory.mktemp("wheels")
    return [build(ROOT / "registry", out), build(ROOT, out)]


@pytest.fixture(scope="session")
def fashion_mnist(tmp_path_factory):
    """A small copy of Fashion-MNIST, for recipes that would read the real files; as an override."""
    from fl_labelskew_plugins.data.idx import FashionMNIST

    folder = tmp_path_factory.mktemp("data") / "fashion-mnist"
    FashionMNIST().fake(folder, samples=1000, seed=0)
    return f"data_args.data_cache_dir={folder}"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pictures(monkeypatch):
    """Runs of this test draw their pictures."""
    monkeypatch.setenv("FL_LABELSKEW_PICTURES", "yes")


@pytest.fixture
def drawn(monkeypatch):
    """Pictures as they are saved."""
    from fl_labelskew_plugins import plots

    made = []
    monkeypatch.setattr(plots, "save", lambda picture, path, *dpi: made.append(picture))
    return made


NUMBERS = itertools.count()


def make_plugin(folder, group, source, *, name="acme", module="acme", target="A"):
    """A distribution ``acme`` of one plugin, as pip would have installed it into ``folder``."""
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{target}\n")
    (folder / f"{module}.py").write_text(source)


@pytest.fixture(scope="session")
def write_plugin():
    """Makes a plugin in a folder, for other processes to find: ``write_plugin(folder, group, source)``."""
    return make_plugin


@pytest.fixture
def register(tmp_path_factory, monkeypatch):
    """Makes a plugin that this process finds: ``register(group, source)``; returns its module's name."""

    def register(group, source, **more):
        folder, module = tmp_path_factory.mktemp("plugin"), f"acme{next(NUMBERS)}"
        make_plugin(folder, group, source, module=module, **more)
        monkeypatch.syspath_prepend(folder)
        return module

    return register


class Process:
    """A command under way."""

    def __init__(self, forker, argv, log, **more):
        self.forker, self.log = forker, log
        self.pid = forker.fork(argv=argv, log=log, **more)

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
        return self


class Forker:
    """See forker.py."""

    def __init__(self):
        reports, theirs = os.pipe()
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        if "coverage" in sys.modules and sys.modules["coverage"].Coverage.current() is not None:
            self.environment["MEASURED"] = str(ROOT / "pyproject.toml")
        script = HELPERS / "forker.py"
        self.process = subprocess.Popen(
            [sys.executable, script, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[theirs],
            env=self.environment,
        )
        os.close(theirs)
        self.environment.pop("MEASURED", None)
        self.ended, self.started = {}, []
        assert self.process.stdout.readline() == "ready\n"
        self._reports, self._listener, self._turn = os.fdopen(reports), socket.socket(socket.AF_UNIX), threading.Lock()
        self._listener.bind("")  # a name that the system makes up, and no file
        self._listener.listen(64)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._admit, daemon=True).start()

    def start(self, argv, log, *, fork_children=False, **more):
        """Start ``labelskew`` with these arguments; its output goes to ``log``; forker.py describes ``more``.

        Args:
            fork_children: whether the processes that it starts are forked, too: see forked_python.py.
        """
        if fork_children:
            more |= {"python": FORKED_PYTHON, "environment": more.get("environment", {}) | self.forked_python()}
        return Process(self, [str(a) for a in argv], log, **more)

    def forked_python(self):
        """Variables for forked_python.py."""
        from forked_python import FORKER, REAL

        return {FORKER: self._listener.getsockname()[1:].decode(), REAL: sys.executable}

    def fork(self, **order):
        with self._turn:
            self.process.stdin.write(json.dumps(order, default=str) + "\n")
            self.process.stdin.flush()
            pid = int(self.process.stdout.readline())
        self.started.append(pid)
        return pid

    def mpirun(self, script, argv, *, ranks=3, options=(), environment=None, cwd=None, timeout=240):
        """A hand-typed mpirun of a script (None: labelskew), to its end. Its ranks are forked, see mpi_rank.py."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", *options, "-np", ranks]
        command += [sys.executable, "-ES", HELPERS / "mpi_rank.py"]
        command += [self._listener.getsockname()[1:].decode(), script or "", *argv]
        env = self.environment | {"OMPI_MCA_btl_tcp_if_include": "127.0.0.1/8"}  # as launch.py has it
        env |= environment or {}
        return subprocess.run(
            [*map(str, command)], env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
        )

    def _admit(self):
        while True:
            peer, _ = self._listener.accept()
            threading.Thread(target=self._play, args=(peer,), daemon=True).start()

    def _play(self, peer):
        """Fork the process that a forked_python.py requests, and end it at the end."""
        with peer, peer.makefile() as orders:
            pid = self.fork(**json.loads(orders.readline()))
            peer.sendall(b"%d\n" % pid)
            while pid not in self.ended:
                if select.select([peer], [], [], 0.02)[0]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    return
            peer.sendall(b"%d\n" % self.ended[pid])

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
def forker():
    started = Forker()
    yield started
    started.stop()


@pytest.fixture
def fork_children(forker, monkeypatch):
    """Processes that are started by runs of this process are forked: see forked_python.py."""
    for name, value in forker.forked_python().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", str(FORKED_PYTHON))


@pytest.fixture
def slurm(tmp_path):
    """A Slurm with two nodes of two cores each."""
    from slurm import Slurm, missing

    if why := missing():
        pytest.skip(why)
    with Slurm(tmp_path) as started:
        yield started
