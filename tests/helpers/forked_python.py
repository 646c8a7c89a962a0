#!/usr/bin/env -S python3 -ES
"""Replaces the Python of ``python -m fl_labelskew_plugins.cli.main ...``: the work is done by a fork of forker.py.

This process passes on signals and the exit code; a fork ends with it. Everything else is for the real Python.
"""

import contextlib
import os
import signal
import sys

REAL, FORKER = "FORKED_PYTHON_REAL", "FORKED_PYTHON_FORKER"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def forked(address, order):
    """Exit code of a process that the forker at ``address`` has started for this one."""
    import json
    import socket

    def forward(number, frame):
        with contextlib.suppress(ProcessLookupError):  # it may have had the same signal
            os.kill(pid, number)

    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    order |= {"process": os.getpid(), "cwd": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as forker:
        forker.connect("\0" + address)
        forker.sendall(json.dumps(order).encode() + b"\n")
        answers = forker.makefile()
        pid = int(answers.readline())
        for number in PASSED_ON:
            signal.signal(number, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        code = int(answers.readline())
    return code


def main():
    if sys.argv[1:3] == ["-m", "fl_labelskew_plugins.cli.main"]:
        code = forked(os.environ[FORKER], {"argv": sys.argv[3:], "python": os.path.abspath(__file__)})
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)
    os.execv(os.environ[REAL], [os.environ[REAL], *sys.argv[1:]])


if __name__ == "__main__":
    main()
