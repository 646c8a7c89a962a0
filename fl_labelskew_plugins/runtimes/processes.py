"""Start and end the processes of a run together, and prefix their output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import IO, NamedTuple

from fl_labelskew_registry import RunError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.signals import interrupting
from fl_labelskew_plugins.machine.text import room

GRACE = 6.0
"""Seconds between asking a process to end and killing it."""

Process = subprocess.Popen[str] | BaseProcess


class ProcessPart(NamedTuple):
    """One process: the prefix of its output, and its command."""

    name: str
    command: Sequence[str]


def together(parts: Sequence[ProcessPart], *, environment: Mapping[str, str]) -> None:
    """Run all parts until the first one and then the others have succeeded, or until one fails.

    Raises RunError with the exit code of a failed part, or KeyboardInterrupt.
    """
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    running: list[tuple[ProcessPart, subprocess.Popen[str]]] = []
    readers: list[threading.Thread] = []
    try:
        with interrupting():
            for part in parts:
                width = room() - len(f"{part.name} | ")
                process = subprocess.Popen(
                    part.command,
                    env=env if room() == sys.maxsize else {**env, "COLUMNS": str(max(width, 20))},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # so that Ctrl-C reaches only this process, which ends them in order
                )
                running.append((part, process))
                for pipe, out, level in (
                    (process.stdout, sys.stdout, log.INFO),
                    (process.stderr, sys.stderr, log.WARNING),
                ):
                    assert pipe is not None
                    reader = threading.Thread(target=_prefix, args=(part.name, pipe, out, level), daemon=True)
                    reader.start()
                    readers.append(reader)
            _watch(running)
    finally:
        end([process for _, process in running], GRACE)
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


def _watch(running: Sequence[tuple[ProcessPart, subprocess.Popen[str]]]) -> None:
    first = running[0][1]
    while True:
        for part, process in running:
            if process.poll():
                error = RunError(how_it_ended(part.name, process.returncode))
                error.exit_code = process.returncode if process.returncode > 0 else 1
                raise error
        if first.returncode == 0:
            break
        time.sleep(0.1)
    until = time.monotonic() + 4 * GRACE
    while any(process.poll() is None for _, process in running) and time.monotonic() < until:
        time.sleep(0.05)


def _runs(process: Process) -> bool:
    return process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()


def _prefix(name: str, pipe: IO[str], out: IO[str], level: str) -> None:
    with pipe:
        for line in pipe:
            with contextlib.suppress(ValueError, OSError):  # the output was closed
                out.write(log.named(name, line.rstrip("\r\n"), level) + "\n")
                out.flush()
