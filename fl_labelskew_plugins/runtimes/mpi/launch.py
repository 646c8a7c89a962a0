"""Start ``mpirun`` and report its end.

:mod:`.rank` connects the stderr of each rank to this process, so that each side notices the end of the other. Rank 0
inherits this process's stdout, so that it can detect a terminal.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, RunError, mistake

from fl_labelskew_plugins.machine.extras import OPEN_MPI
from fl_labelskew_plugins.machine.place import LAUNCHER, RANKS, RESUME, mpi_rank
from fl_labelskew_plugins.machine.signals import ENDING, handled, terminal_closed

ABORT_STEP = 2  # seconds in which mpirun lets other ranks end after a rank's death
TERMINATE_AFTER, KILL_AFTER = 5.0, 8.0  # seconds for the server's checkpoint, and for mpirun to end by itself
MAX_OUTPUT = 2**16  # bytes kept of an output


def check() -> str:
    """The path of ``mpirun``. Raises LabelSkewError if it is missing, or Slurm has started independent processes."""
    # each of them would start an mpirun, all with the same folder
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and not any(rank in os.environ for rank, _ in RANKS):
        what = f"MPI: srun started {tasks} independent processes"
        use = "srun --mpi=pmix, or srun with one task; this program then starts the ranks with mpirun"
        raise mistake("comm_args.backend", what, use)
    mpirun = shutil.which("mpirun")
    needs, install = "comm_args.backend: MPI needs", f"to install Open MPI: {OPEN_MPI}"
    if mpirun is None:
        raise LabelSkewError(f"{needs} mpirun on PATH, which is missing; {install}")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        raise LabelSkewError(f"{needs} Open MPI, but {mpirun} is from another MPI; {install}")
    return mpirun


def launch(command: list[str], processes: int, *, run_dir: Path, environment: dict[str, str]) -> None:
    """Run a command in every rank of a new ``mpirun`` on this machine; ``environment`` contains :data:`.place.RESUME`.

    Raises:
        LabelSkewError: ``mpirun`` or mpi4py is missing.
        RunError: a rank failed without an error message.
        SystemExit: with the exit code of a rank that printed an error message.
        KeyboardInterrupt: before the server could report how to resume.
    """
    mpirun, root = check(), ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # inside `mpirun -np 1`, its variables would confuse the second mpirun
    inner = mpi_rank() is None and any(rank in os.environ for rank, _ in RANKS[:2])
    kept = {k: v for k, v in os.environ.items() if not (inner and k.startswith(("OMPI_", "PMIX_", "PMI_")))}
    command = [
        mpirun, "-np", str(processes), "--host", f"localhost:{processes}", "--oversubscribe", "--bind-to", "none",
        "--mca", "btl_tcp_if_include", "127.0.0.1/8",  # else Open MPI 5 warns
        "--mca", "odls_base_sigkill_timeout", str(ABORT_STEP), *root,
        sys.executable, "-m", "fl_labelskew_plugins.runtimes.mpi.rank", *command,
    ]  # fmt: skip
    sys.stdout.flush()
    short = None if len(tempfile.gettempdir()) < 70 else "/tmp"  # a socket's path is limited to about 100 characters
    with tempfile.TemporaryDirectory(prefix="labelskew-", dir=short) as folder:
        # unlike the console script, `python -m` would import modules from the current folder
        job = MPIJob(command, kept | {LAUNCHER: f"{folder}/socket", "PYTHONSAFEPATH": "1"} | environment)
        with contextlib.closing(job), handled(*ENDING, handler=lambda signum, frame: job.interrupt()):
            job.watch()
    job.report(run_dir, environment[RESUME])


class MPIJob:
    """One ``mpirun``."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pids: dict[int, int] = {}
        self.outputs: dict[int, bytes] = {}
        """The end of each rank's stderr."""
        self.open: dict[int, socket.socket] = {}
        self.first_end: int | None = None
        self.mpirun_output = b""
        self.interrupted = False
        self._aborting = False
        self._ending: float | None = None
        self._steps = 0
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(environment[LAUNCHER])
        self._listener.listen(128)
        self._selector.register(self._listener, selectors.EVENT_READ, self._admit)
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # as in .processes
        )
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ, self._read_mpirun)

    def close(self) -> None:
        """Kill the remaining processes."""
        self._kill()
        with self.process, self._listener, self._selector:  # waits for the process
            for connection in self.open.values():
                connection.close()

    def interrupt(self) -> None:
        """End all processes within ten seconds."""
        terminal_closed()
        self.interrupted = True
        self._end()

    def watch(self) -> None:
        """Print rank 0's output until all processes have ended."""
        while True:
            over = self.process.poll() is not None
            ready = self._selector.select(0.1)
            for key, _ in ready:
                key.data()
            if over and not ready:
                if not self.open:
                    return
                self._end()  # ranks that have outlived mpirun
            if self._ending is not None:
                self._escalate(time.monotonic() - self._ending)

    def report(self, run_dir: Path, resume: str) -> None:
        """Raise an error if the job failed, see :func:`launch`."""
        code = self.process.returncode
        if code == 0:
            return
        server = self.outputs.get(0, b"")
        resumable = (run_dir / "recipe.yaml").exists() and resume.encode() not in server
        advice = f"; {resume}" if resumable else ""
        if self.interrupted:
            if b"interrupted" in server:
                raise SystemExit(130)
            raise KeyboardInterrupt(f"interrupted{advice}")
        if self.first_end is None:
            lines = self.mpirun_output.decode(errors="replace").splitlines()
            reason = next((line.strip() for line in lines if line.strip(" -")), "it printed nothing")
            raise RunError(f"comm_args.backend: mpirun could not start: {reason}")
        # mpirun's exit code is that of the first rank to end, or 128 and the signal that killed it
        rank, number = self.first_end, -code if code < 0 else code - 128
        killed, output = number in list(signal.Signals), self.outputs[rank]
        if rank and output.strip() and output.strip() not in server:
            _show(output)
        if output.strip() and not killed and (rank == 0 or code == LabelSkewError.exit_code):
            raise SystemExit(code)
        name = "mpirun" if code < 0 else f"worker {rank}" if rank else "the server (rank 0)"
        how = f"was killed by signal {number}" if killed else f"ended with exit code {code}"
        error = RunError(f"{name} {how}{advice}")
        error.exit_code = 1 if killed else code
        raise error

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(2)
        with contextlib.suppress(OSError, ValueError):  # mpirun will report its end
            rank, pid = map(int, connection.recv(64).split())
            socket.send_fds(connection, [b"!"], [sys.__stdout__.fileno()] if rank == 0 and sys.__stdout__ else [])
            connection.setblocking(False)
            self.pids[rank], self.outputs[rank], self.open[rank] = pid, b"", connection
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_rank(rank))
            return
        connection.close()

    def _read_rank(self, rank: int) -> None:
        # all output at once, to keep the order of ends
        try:
            while output := self.open[rank].recv(MAX_OUTPUT):
                self.outputs[rank] = (self.outputs[rank] + output)[-MAX_OUTPUT:]
                if rank == 0:
                    _show(output)
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        with self.open.pop(rank) as connection:
            self._selector.unregister(connection)
        if self.first_end is None:
            self.first_end = rank

    def _read_mpirun(self) -> None:
        assert self.process.stdout is not None
        output = os.read(self.process.stdout.fileno(), MAX_OUTPUT)
        if not output:
            self._selector.unregister(self.process.stdout)
        self.mpirun_output = (self.mpirun_output + output)[-MAX_OUTPUT:]
        if not self._aborting and b"aborted" in self.mpirun_output:
            self._aborting = True
            self._signal(signal.SIGTERM, *self.open.keys() & {0})  # more time for the server to save

    def _end(self) -> None:
        self._ending = self._ending or time.monotonic()

    def _escalate(self, seconds: float) -> None:
        """End the server, which saves; end all processes; kill the rest."""
        step = 3 if seconds > KILL_AFTER else 1 if 0 in self.open and seconds <= TERMINATE_AFTER else 2
        if step == self._steps:
            return
        self._steps = step
        if step == 1:
            self._signal(signal.SIGTERM, 0)
        elif step == 2:
            self._signal(signal.SIGTERM, *self.open)
            if not self._aborting:  # else mpirun 4.1.4 would crash
                self.process.terminate()
        else:
            self._kill()

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._signal(signal.SIGKILL, *self.open)

    def _signal(self, number: int, *ranks: int) -> None:
        # an open connection proves that the process id is still valid
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)


def _show(output: bytes) -> None:
    sys.stderr.buffer.write(output)
    sys.stderr.flush()
