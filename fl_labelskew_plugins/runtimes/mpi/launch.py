"""Processes of ``mpirun``: whether this is one, how many there should be, and how they start and end. Knows no host.

:func:`launch` starts every rank through this module's own ``__main__``. It ties the rank's stderr to the launching
process, which thereby learns of every end, says of it what a person needs, and leaves no process behind. Rank 0 gets
the launching process's own stdout, so that a terminal stays one (mpirun shows its ranks a terminal in any case).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.machine.place import DOOR, RANKS, available_cores, launched, mpi_rank
from fl_labelskew_plugins.machine.signals import handled
from fl_labelskew_plugins.machine.typed import GO_ON

if TYPE_CHECKING:
    pass

INSTALL = "apt-get install openmpi-bin libopenmpi-dev; pip install 'fl-labelskew-plugins[mpi]'"

ABORT_STEP = 2
"""Seconds that mpirun leaves between noticing a dead rank, ending the others, and killing them."""

TERMINATE_AFTER, KILL_AFTER = 5.0, 8.0
"""Seconds after a signal in which the server saves its checkpoint, and in which mpirun ends by itself."""

LINGER = 1.0
"""Seconds that a rank may outlive mpirun."""

GRACE = 6.0
"""Seconds that a worker waits for the server to find, and tell, the mistake that the worker has found."""

KEPT = 2**16
"""Last bytes kept of what a rank, or mpirun, says."""


def check() -> str:
    """The path of ``mpirun``.

    Raises:
        LabelSkewError: it, or mpi4py, is not installed, or Slurm has started several processes as if each were alone.
    """
    # each of them would start an mpirun of its own, and all into one folder
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and not any(rank in os.environ for rank, _ in RANKS):
        raise LabelSkewError(
            f"comm_args.backend: MPI: srun started {tasks} processes that do not know of each other; srun --mpi=pmix, "
            "or a single task that starts the others itself, would be right"
        )
    mpirun = shutil.which("mpirun")
    missing = "mpirun on PATH" if mpirun is None else "" if importlib.util.find_spec("mpi4py") else "mpi4py"
    if mpirun is None or missing:
        raise LabelSkewError(f"comm_args.backend: MPI needs {missing}, which is missing; to install it: {INSTALL}")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        raise LabelSkewError(f"comm_args.backend: MPI needs Open MPI, and {mpirun} is not; to install it: {INSTALL}")
    return mpirun


def world() -> Any:
    """MPI's ``COMM_WORLD``.

    Raises:
        LabelSkewError: mpi4py cannot be loaded, or belongs to another MPI than the one that started this process.
    """
    prepare()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise LabelSkewError(f"comm_args.backend: MPI needs mpi4py: {reason}; to install it: {INSTALL}") from None
    place = mpi_rank()
    size = MPI.COMM_WORLD.Get_size()
    if place is not None and size != place[1]:
        raise LabelSkewError(
            f"comm_args.backend: mpi4py sees {size} of the {place[1]} processes, so it was built for another MPI than "
            "the one that started them; pip install --force-reinstall --no-binary mpi4py mpi4py would be right"
        )
    return MPI.COMM_WORLD


def prepare() -> None:
    """Settings of mpi4py that must stand before anybody imports its ``MPI``."""
    if importlib.util.find_spec("mpi4py") is not None:
        import mpi4py

        # At exit MPI_Finalize would wait for all others, so that a rank that fails would hang instead of ending.
        mpi4py.rc.finalize = False
        mpi4py.rc.thread_level = "funneled"


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Around all of a rank's work; does nothing where this process is no rank.

    A worker prints nothing, since the server does, unless it fails alone. A rank that fails ends without waiting for
    the others, whereupon ``mpirun`` ends those; ranks that succeed wait for each other.
    """
    place = mpi_rank()
    if place is None:
        yield
        return
    prepare()
    rank = place[0]
    try:
        with contextlib.ExitStack() as silence:
            if rank:
                nowhere = silence.enter_context(open(os.devnull, "w"))
                silence.enter_context(contextlib.redirect_stdout(nowhere))
                if not launched():  # else the launching process decides what is shown
                    silence.enter_context(contextlib.redirect_stderr(nowhere))
            yield
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(130) from None
        raise
    except LabelSkewError:
        if rank:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(GRACE)  # the server's own end makes mpirun end this process here
        raise
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()


def launch(
    command: list[str], processes: int, *, run_dir: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Run a command in every rank of a new ``mpirun`` on this machine, until all of them have ended.

    Args:
        command: what each rank executes; it finds out with :func:`.machine.place.mpi_rank` which one it is.
        processes: the server and its workers.
        run_dir: the run's folder; whether there is something to go on with is seen there.
        environment: variables that each rank gets beside this process's own, :data:`.typed.GO_ON` among them.

    Raises:
        LabelSkewError: ``mpirun`` or mpi4py is missing.
        RunError: a rank failed in a way that it could not tell itself.
        SystemExit: a rank failed and has said why; with its exit code.
        KeyboardInterrupt: interrupted, and the server could not say how to go on.
    """
    mpirun, environment = check(), dict(environment or {})
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="labelskew-", dir=_short_folder()) as folder:
        job = Job(_mpirun(mpirun, processes, command), _environment(processes, f"{folder}/door") | environment)
        with job, handled(signal.SIGINT, signal.SIGTERM, handler=lambda signum, frame: job.ask()):
            job.watch()
    job.verdict(run_dir, environment.get(GO_ON, ""))


def _mpirun(mpirun: str, processes: int, command: list[str]) -> list[str]:
    enter = [sys.executable, "-m", "fl_labelskew_plugins.runtimes.mpi.launch", *command]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [
        mpirun, "-np", str(processes), "--host", f"localhost:{processes}", "--oversubscribe", "--bind-to", "none",
        "--mca", "odls_base_sigkill_timeout", str(ABORT_STEP), *root, *enter,
    ]  # fmt: skip


def _environment(processes: int, door: str) -> dict[str, str]:
    inner = mpi_rank() is None and any(rank in os.environ for rank, _ in RANKS[:2])
    # inside `mpirun -np 1`, what that one told its rank would confuse a second one
    kept = {k: v for k, v in os.environ.items() if not (inner and k.startswith(("OMPI_", "PMIX_", "PMI_")))}
    kept.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // max(1, processes - 1))))
    # `python -m` would look for modules in the folder that the user happens to be in; the console script does not
    return kept | {DOOR: door, "PYTHONSAFEPATH": "1"}


def _short_folder() -> str | None:
    """Where temporary folders go; a socket's path has room for about 100 characters."""
    return None if len(tempfile.gettempdir()) < 70 else "/tmp"


@dataclass
class Rank:
    """A rank's process as the launching process sees it; ``said`` is the end of its stderr."""

    pid: int
    said: bytes = b""


@dataclass
class Cause:
    """Which rank ended a job, and how: with an exit code, or by a signal (then the code is 1)."""

    rank: int
    code: int
    signal: int | None = None

    def __str__(self) -> str:
        who = f"worker {self.rank}" if self.rank else "the server (rank 0)"
        return f"{who} was killed by signal {self.signal}" if self.signal else f"{who} ended with exit code {self.code}"


def cause(text: str) -> Cause | None:
    """What mpirun says of a job's end, in versions 4 and 5; None where it says nothing known."""
    if found := re.search(r"process rank (\d+) with PID \d+ on\s+node \S+ exited on\s+signal (\d+)", text):
        return Cause(int(found[1]), 1, int(found[2]))
    if found := re.search(r"Process name: \[.*,\s*(\d+)\]\s+Exit code:\s+(\d+)", text):
        return Cause(int(found[1]), int(found[2]))
    if found := re.search(r"MPI_ABORT was invoked on rank (\d+).*?errorcode\s+(\d+)", text, re.DOTALL):
        return Cause(int(found[1]), int(found[2]) or 1)
    if found := re.search(r"process rank (\d+) with PID \d+ on\s+node \S+ exiting improperly", text):
        return Cause(int(found[1]), 0)
    return None


class Job:
    """One ``mpirun``, the ranks that have reported, and how far its end has come.

    Args:
        command: mpirun's, which starts :func:`enter` in every rank.
        environment: of all of them, with :data:`DOOR`.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.ranks: dict[int, Rank] = {}
        self.open: dict[int, socket.socket] = {}
        self.first_end: int | None = None
        self.noise = b""
        self._asked: float | None = None
        self._aborting = False
        self._steps = 0
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(environment[DOOR])
        self._door.listen(128)
        self._selector.register(self._door, selectors.EVENT_READ, self._admit)
        end_with_parent = _end_with_parent()
        # Its own session: Ctrl-C on the terminal reaches this process alone, which then decides what ends when.
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509  # one system call, looked up before the fork
        )
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ, self._hear)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self.process.wait()
        for connection in self.open.values():
            connection.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._door.close()
        self._selector.close()

    def ask(self) -> None:
        """Have everything end within ten seconds; called by a signal."""
        self._asked = self._asked or time.monotonic()

    def watch(self) -> None:
        """Pass on what rank 0 says, until mpirun and all ranks have ended."""
        ended: float | None = None
        while True:
            ready = self._selector.select(0.1)
            for key, _ in ready:
                key.data()
            if self._asked is not None:
                self._press(time.monotonic() - self._asked)
            if self.process.poll() is None:
                continue
            ended = ended or time.monotonic()
            if not ready and not self.open:
                return
            if time.monotonic() - ended > LINGER:
                self._kill()

    def verdict(self, run_dir: Path | None, go_on: str) -> None:
        """Say how the job has ended; see :func:`launch`."""
        if self.process.returncode == 0:
            return
        server = self.ranks.get(0, Rank(0)).said
        resumable = run_dir is not None and (run_dir / "recipe.yaml").exists() and go_on.encode() not in server
        go_on = f"; {go_on}" if resumable else ""
        if self._asked is not None:
            if b"interrupted" in server:
                raise SystemExit(130)
            raise KeyboardInterrupt(f"interrupted{go_on}")
        noise = self.noise.decode(errors="replace")
        if not self.ranks:
            reason = next((line.strip() for line in noise.splitlines() if line.strip(" -")), "it says nothing")
            raise RunError(f"comm_args.backend: mpirun could not start: {reason}")
        found = cause(noise) or self._guess()
        said = self.ranks.get(found.rank, Rank(0)).said
        if found.rank and said.strip() and said.strip() not in server:
            _show(said)
        if said.strip() and found.signal is None and (found.rank == 0 or found.code == LabelSkewError.exit_code):
            raise SystemExit(found.code)
        error = RunError(f"{found}{go_on}")
        error.exit_code = found.code or 1
        raise error

    def _guess(self) -> Cause:
        """Where mpirun's words are no help: the first rank that ended, with mpirun's own code."""
        code = self.process.returncode
        by_signal = code - 128 if code > 128 else -code if code < 0 else None
        return Cause(self.first_end or 0, 1 if by_signal else code, by_signal)

    def _admit(self) -> None:
        """A rank reports: tie its stderr to this process, and the server's stdout to this one's."""
        connection, _ = self._door.accept()
        connection.settimeout(2)  # it says at once who it is
        with contextlib.suppress(OSError, ValueError):  # it died, and mpirun will tell
            rank, pid = map(int, connection.recv(64).split())
            socket.send_fds(connection, [b"!"], [sys.__stdout__.fileno()] if rank == 0 and sys.__stdout__ else [])
            self.ranks[rank], self.open[rank] = Rank(pid), connection
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._listen(rank))
            return
        connection.close()

    def _listen(self, rank: int) -> None:
        """A rank says something, or has ended."""
        try:
            said = self.open[rank].recv(KEPT)
        except ConnectionError:
            said = b""
        if not said:
            connection = self.open.pop(rank)
            self._selector.unregister(connection)
            connection.close()
            if self.first_end is None:
                self.first_end = rank
            return
        self.ranks[rank].said = (self.ranks[rank].said + said)[-KEPT:]
        if rank == 0:
            _show(said)

    def _hear(self) -> None:
        """Mpirun says something."""
        assert self.process.stdout is not None
        said = os.read(self.process.stdout.fileno(), KEPT)
        if not said:
            self._selector.unregister(self.process.stdout)
        self.noise = (self.noise + said)[-KEPT:]
        if not self._aborting and b"aborted" in self.noise:
            self._aborting = True
            self._send(signal.SIGTERM, *self.open.keys() & {0})  # now, so that it has longer to save

    def _press(self, seconds: float) -> None:
        """End the job: first the server, which saves; then the workers; then, harder, what is left."""
        if self._steps == 0 and 0 in self.open:
            self._send(signal.SIGTERM, 0)
            self._steps = 1
        if self._steps < 2 and 0 not in self.open:
            self._send(signal.SIGTERM, *self.open)
            self.process.terminate()
            self._steps = 2
        if self._steps < 3 and seconds > TERMINATE_AFTER:
            self.process.terminate()
            self._steps = 3
        if seconds > KILL_AFTER:
            self._kill()

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._send(signal.SIGKILL, *self.open)

    def _send(self, number: int, *ranks: int) -> None:
        """Signal ranks; an open connection shows that the process is still the one that reported."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ranks[rank].pid, number)


def _show(said: bytes) -> None:
    sys.stderr.buffer.write(said)
    sys.stderr.flush()


def _end_with_parent() -> Any:
    """A function that has this process get SIGTERM when its parent ends, however that ends; None where unknown."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def enter(command: list[str]) -> NoReturn:
    """Become a rank of :func:`launch`: report to the launching process and execute the command."""
    rank = next(os.environ[name] for name, _ in RANKS if name in os.environ)
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[DOOR])
        connection.sendall(f"{rank} {os.getpid()}".encode())
        answer, stdout, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError:
        answer = b""
    if not answer:
        sys.exit(1)  # the launching process is gone
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stdout[0] if stdout else connection.fileno(), 1)
    os.dup2(connection.fileno(), 2)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal may stop those who write to it from the background
    if (end_with_parent := _end_with_parent()) is not None:
        end_with_parent()
    os.execvp(command[0], command)


if __name__ == "__main__":
    enter(sys.argv[1:])
