"""Starts an ``mpirun`` and says how it ended.

Every rank of this machine begins in :mod:`.rank`, which ties its stderr to this process. So this process learns of
every end, says of it what a person needs, and leaves no process behind; a rank learns of this process's end in the same
way. Rank 0 gets this process's own stdout, so that a terminal stays one (mpirun shows its ranks a terminal in any
case). Ranks of other machines speak through mpirun, which also notices when such a machine is gone.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.machine.files import read_text
from fl_labelskew_plugins.machine.place import DOOR, RANKS, mpi_rank
from fl_labelskew_plugins.machine.signals import ENDING, handled, terminal_closed
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.machine.typed import GO_ON
from fl_labelskew_plugins.recipe.compatibility import OPEN_MPI

ABORT_STEP = 2
"""Seconds that mpirun leaves between noticing a dead rank, ending the others, and killing them."""

TERMINATE_AFTER, KILL_AFTER = 5.0, 8.0
"""Seconds in which the server saves its checkpoint once the job is to end, and in which mpirun ends by itself."""

KEEPALIVE = {"time": 10, "intvl": 5, "probes": 4}
"""Seconds without a word from a node until it is asked, seconds between questions, and their number: one whose network
is cut is given up after 30 s. Open MPI's own are 300, 20 and 9."""

GONE = re.compile(rb"lost communication with a remote daemon.*?Remote daemon: \S+ on node (\S+)", re.DOTALL)
STARTER_GONE = b"unable to reliably start one or more daemons"
"""What mpirun says, first, where a node's ssh ends; also in the midst of a run."""

FIRST = re.compile(rb"process rank (\d+) with PID \d+ on node (\S+)|Process name: \[\[\d+,\d+\],(\d+)\]")
"""Who ended first, as mpirun says it."""

KEPT = 2**16
"""Last bytes kept of what a rank, or mpirun, says."""


def check() -> str:
    """The path of ``mpirun``.

    Raises:
        LabelSkewError: it is not installed, or Slurm has started several processes as if each were alone.
    """
    # each of them would start an mpirun of its own, and all into one folder
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and not any(rank in os.environ for rank, _ in RANKS):
        raise LabelSkewError(
            f"comm_args.backend: MPI: srun started {tasks} processes that do not know of each other; use srun "
            "--mpi=pmix, or a single task that starts the others itself"
        )
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise LabelSkewError(
            f"comm_args.backend: MPI needs mpirun on PATH, which is missing; to install it: {OPEN_MPI}"
        )
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        raise LabelSkewError(f"comm_args.backend: MPI needs Open MPI, and {mpirun} is not; to install it: {OPEN_MPI}")
    return mpirun


def slots(hostfile: str) -> int:
    """How many processes a file of nodes has room for, as ``mpirun --hostfile`` reads it.

    Raises:
        LabelSkewError: it cannot be read, or does not begin with this machine, where the server runs.
    """
    try:
        text = read_text(hostfile)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "no text")
        raise mistake("comm_args.hostfile", f"{hostfile}: {why}", "a file with a line for each node") from None
    lines = [words for line in text.splitlines() if (words := line.partition("#")[0].split())]
    try:
        socket.create_server((lines[0][0], 0)).close()  # which is possible with an address of this machine's alone
    except (IndexError, OSError, TypeError, ValueError):
        first = clean(lines[0][0]) if lines else "none"
        what = f"{hostfile}: its first node, {first}, is not this machine, where the server runs"
        raise mistake("comm_args.hostfile", what, "this machine first") from None
    return sum(int((re.findall(r"\bslots *= *(\d+)", " ".join(words)) or [1])[0]) for words in lines)


def launch(
    command: list[str],
    processes: int,
    *,
    run_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,
    hostfile: str | None = None,
) -> None:
    """Run a command in every rank of a new ``mpirun``, until all of them have ended.

    Args:
        command: what each rank executes; it finds out with :func:`.machine.place.mpi_rank` which one it is, and does
            its work in :func:`.rank.as_rank`.
        processes: the server and its workers.
        run_dir: the run's folder; whether there is something to go on with is seen there.
        environment: variables that each rank gets beside this process's own, :data:`.typed.GO_ON` among them; on
            other machines none of either.
        hostfile: the nodes, this machine first; default: this machine alone.

    Raises:
        LabelSkewError: ``mpirun`` or mpi4py is missing.
        RunError: a rank failed in a way that it could not tell itself.
        SystemExit: a rank failed and has said why; with its exit code.
        KeyboardInterrupt: interrupted, and the server could not say how to go on.
    """
    mpirun, environment = check(), dict(environment or {})
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="labelskew-", dir=_short_folder()) as folder:
        door = f"{folder}/door"
        job = MPIJob(_mpirun(mpirun, processes, command, hostfile), _environment(door) | environment)
        with job, handled(*ENDING, handler=lambda signum, frame: job.interrupt()):
            job.watch()
    job.verdict(run_dir, environment.get(GO_ON, ""))


def _mpirun(mpirun: str, processes: int, command: list[str], hostfile: str | None) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if hostfile is None:
        where = ["--host", f"localhost:{processes}", "--oversubscribe"]
        where += ["--mca", "btl_tcp_if_include", "127.0.0.1/8"]  # else Open MPI 5 warns of interfaces without a partner
    else:
        where = ["--hostfile", hostfile, "-x", "PYTHONSAFEPATH"]
        where += ["-x", "OMP_NUM_THREADS"] if "OMP_NUM_THREADS" in os.environ else []
        for name, value in KEEPALIVE.items():
            where += ["--mca", f"oob_tcp_keepalive_{name}", str(value)]
    return [
        mpirun, "-np", str(processes), *where, "--bind-to", "none",
        "--mca", "odls_base_sigkill_timeout", str(ABORT_STEP), *root,
        sys.executable, "-m", "fl_labelskew_plugins.runtimes.mpi.rank", *command,
    ]  # fmt: skip


def _environment(door: str) -> dict[str, str]:
    inner = mpi_rank() is None and any(rank in os.environ for rank, _ in RANKS[:2])
    # inside `mpirun -np 1`, what that one told its rank would confuse a second one
    kept = {k: v for k, v in os.environ.items() if not (inner and k.startswith(("OMPI_", "PMIX_", "PMI_")))}
    # `python -m` would look for modules in the folder that the user happens to be in; the console script does not
    return kept | {DOOR: door, "PYTHONSAFEPATH": "1"}


def _short_folder() -> str | None:
    """Where temporary folders go; a socket's path has room for about 100 characters."""
    return None if len(tempfile.gettempdir()) < 70 else "/tmp"


@dataclass
class Rank:
    """A rank's process as this one sees it; ``said`` is the end of its stderr."""

    pid: int
    said: bytes = b""


class MPIJob:
    """One ``mpirun`` that starts :func:`.rank.enter` in every rank, those that reported, and how far its end is."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.ranks: dict[int, Rank] = {}
        self.open: dict[int, socket.socket] = {}
        self.first_end: int | None = None
        self.noise = b""
        self.interrupted = False
        self.elsewhere = "--hostfile" in command
        self._aborting = False
        self._ending: float | None = None
        self._steps = 0
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(environment[DOOR])
        self._door.listen(128)
        self._selector.register(self._door, selectors.EVENT_READ, self._admit)
        # Its own session: Ctrl-C on the terminal reaches this process alone, which then decides what ends when.
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ, self._hear)

    def __enter__(self) -> MPIJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        with self.process, self._door, self._selector:  # which waits for the process, and closes all
            for connection in self.open.values():
                connection.close()

    def interrupt(self) -> None:
        """Have everything end within ten seconds; called by a signal."""
        terminal_closed()
        self.interrupted = True
        self._end()

    def watch(self) -> None:
        """Pass on what rank 0 says, until mpirun and all ranks have ended."""
        while True:
            over = self.process.poll() is not None
            ready = self._selector.select(0.1)
            for key, _ in ready:
                key.data()
            if over and not ready:
                if not self.open:
                    return
                self._end()  # those that have outlived mpirun
            if self._ending is not None:
                self._press(time.monotonic() - self._ending)

    def verdict(self, run_dir: Path | None, go_on: str) -> None:
        """Say how the job has ended; see :func:`launch`."""
        code = self.process.returncode
        if code == 0:
            return
        server = self.ranks.get(0, Rank(0)).said
        resumable = run_dir is not None and (run_dir / "recipe.yaml").exists() and go_on.encode() not in server
        go_on = f"; {go_on}" if resumable else ""
        if self.interrupted:
            if b"interrupted" in server:
                raise SystemExit(130)
            raise KeyboardInterrupt(f"interrupted{go_on}")
        gone = GONE.search(self.noise)
        if gone is not None or (self.ranks and STARTER_GONE in self.noise):
            node = f"node {clean(gone[1].decode(errors='replace'))}" if gone else "a node"
            why = "it was switched off, its processes were killed or its network is cut"
            raise RunError(f"{node} is gone: {why}{go_on}")
        if self.first_end is None:
            lines = self.noise.decode(errors="replace").splitlines()
            reason = next((line.strip() for line in lines if line.strip(" -")), "it says nothing")
            raise RunError(f"comm_args.backend: mpirun could not start: {reason}")
        # who ended first is why the others did; mpirun's exit code is that one's, or 128 and the signal that killed it
        rank, number, where = self.first_end, -code if code < 0 else code - 128, ""
        if self.elsewhere and (first := FIRST.search(self.noise)):
            rank = int(first[1] or first[3])
            where = f" on {clean(first[2].decode(errors='replace'))}" if first[2] else ""
        killed = number in list(signal.Signals)
        said = self.ranks[rank].said if rank in self.ranks else b"" if killed else self.noise  # through mpirun
        if rank and said.strip() and said.strip() not in server:
            _show(said)
        if said.strip() and not killed and (rank == 0 or code == LabelSkewError.exit_code):
            raise SystemExit(code)
        name = "mpirun" if code < 0 else f"worker {rank}{where}" if rank else "the server (rank 0)"
        how = f"was killed by signal {number}" if killed else f"ended with exit code {code}"
        error = RunError(f"{name} {how}{go_on}")
        error.exit_code = 1 if killed else code
        raise error

    def _admit(self) -> None:
        """A rank reports: tie its stderr to this process, and the server's stdout to this one's."""
        connection, _ = self._door.accept()
        connection.settimeout(2)  # it says at once who it is
        with contextlib.suppress(OSError, ValueError):  # it died, and mpirun will tell
            rank, pid = map(int, connection.recv(64).split())
            socket.send_fds(connection, [b"!"], [sys.__stdout__.fileno()] if rank == 0 and sys.__stdout__ else [])
            connection.setblocking(False)
            self.ranks[rank], self.open[rank] = Rank(pid), connection
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._listen(rank))
            return
        connection.close()

    def _listen(self, rank: int) -> None:
        """A rank says something, or has ended; all of it at once, so that ends are seen in their order."""
        try:
            while said := self.open[rank].recv(KEPT):
                self.ranks[rank].said = (self.ranks[rank].said + said)[-KEPT:]
                if rank == 0:
                    _show(said)
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        with self.open.pop(rank) as connection:
            self._selector.unregister(connection)
        if self.first_end is None:
            self.first_end = rank

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

    def _end(self) -> None:
        self._ending = self._ending or time.monotonic()

    def _press(self, seconds: float) -> None:
        """End the job: first the server, which saves; then everybody; then, harder, what is left."""
        step = 3 if seconds > KILL_AFTER else 1 if 0 in self.open and seconds <= TERMINATE_AFTER else 2
        if step == self._steps:
            return
        self._steps = step
        if step == 1:
            self._send(signal.SIGTERM, 0)
        elif step == 2:
            self._send(signal.SIGTERM, *self.open)
            if not self._aborting:  # else it is at it, and would crash (4.1.4)
                self.process.terminate()
        else:
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
