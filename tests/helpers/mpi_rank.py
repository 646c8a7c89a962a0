"""What mpirun starts for a rank: it asks for a process of forker.py, which does the work and says it here."""

import json
import os
import socket
import sys

_, door, script, *argv = sys.argv
mine = f"/proc/{os.getpid()}/fd"
order = {"argv": argv, "log": f"{mine}/1", "errors": f"{mine}/2", "cwd": os.getcwd(), "environment": dict(os.environ)}
with socket.socket(socket.AF_UNIX) as forker:
    forker.connect("\0" + door)
    forker.sendall(json.dumps(order | {"script": script}).encode() + b"\n")
    code = int(forker.makefile().readline())
sys.exit(code if code >= 0 else 128 - code)
