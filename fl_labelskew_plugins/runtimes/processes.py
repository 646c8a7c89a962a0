"""Start and end the processes of a run together, and prefix their output."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import IO

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.signals import interrupting
from fl_labelskew_plugins.machine.text import room

GRACE = 6.0  # seconds between SIGTERM and SIGKILL

Process = subprocess.Popen[str] | BaseProcess


def together(commands: Mapping[str, Sequence[str]], *, environment: Mapping[str, str]) -> None:
    """Run commands, by the prefix of their output, until the first one and then the others have succeeded.

    Raises RunError with the exit code of a failed one.
    """
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    running: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    try:
        with interrupting():
            for name, command in commands.items():
                width = room() - len(f"{name} | ")
                process = subprocess.Popen(
                    command,
                    env=env if room() == sys.maxsize else {**env, "COLUMNS": str(max(width, 20))},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # so that Ctrl-C reaches only this process, which ends them in order
                )
                running[name] = process
                for pipe, out, level in (
                    (process.stdout, sys.stdout, log.INFO),
                    (process.stderr, sys.stderr, log.WARNING),
                ):
                    assert pipe is not None
                    reader = threading.Thread(target=_prefix, args=(name, pipe, out, level), daemon=True)
                    reader.start()
                    readers.append(reader)
            _watch(running)
    finally:
        end([*running.values()], GRACE)
        for reader in readers:
            reader.join(1.0)


def end(processes: Sequence[Process], grace: float) -> None:
    """Terminate processes; kill those that still run after ``grace`` seconds."""
    for process in processes:
        if _runs(process):
            process.terminate()
    until = time.monotonic() + grace
    while any(map(_runs, processes)):
        if time.monotonic() > until:
            for process in processes:
                process.kill()
        time.sleep(0.05)


def how_it_ended(name: str, code: int) -> str:
    """Description of a process's end."""
    if code < 0:
        return f"{name} was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"{name} ended with exit code {code}"


def _watch(running: Mapping[str, subprocess.Popen[str]]) -> None:
    first = next(iter(running.values()))
    while True:
        for name, process in running.items():
            if process.poll():
                error = RunError(how_it_ended(name, process.returncode))
                error.exit_code = process.returncode if process.returncode > 0 else 1
                raise error
        if first.returncode == 0:
            break
        time.sleep(0.1)
    until = time.monotonic() + 4 * GRACE
    while any(process.poll() is None for process in running.values()) and time.monotonic() < until:
        time.sleep(0.05)


def _runs(process: Process) -> bool:
    return process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()


def _prefix(name: str, pipe: IO[str], out: IO[str], level: str) -> None:
    with pipe:
        for line in pipe:
            with contextlib.suppress(ValueError, OSError):  # the output was closed
                out.write(log.named(name, line.rstrip("\r\n"), level) + "\n")
                out.flush()
