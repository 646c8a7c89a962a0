"""Before the first round: whether every worker, on whatever node, has what the server has.

Processes of one machine read the same files. Those of several read their own, each at the path that the recipe names.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from typing import Any

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.recipe.model import different
from fl_labelskew_plugins.recipe.network_file import portable
from fl_labelskew_plugins.runs.environment import environment
from fl_labelskew_plugins.runs.session import Session
from fl_labelskew_plugins.runtimes.mpi.transport import MPITransport
from fl_labelskew_plugins.runtimes.transport import Kind, Message

PACKAGE = "fl-labelskew-plugins"
PATIENCE_S = 60
"""Seconds after which it is said who is waited for."""
LOCAL = "data_args.data_cache_dir"
"""The one key of a recipe in which nodes may differ."""


def facts(session: Session) -> dict[str, Any]:
    """All that the numbers of a rank depend on."""
    known = environment(session.trainer.device)
    assert session.clients is not None  # a simulation
    content = {
        "recipe": portable(session.recipe),
        "samples": session.data,
        "clients": session.clients.digest,
        "of": {"threads": known["threads"], "cpu_capability": known["cpu_capability"], **known["versions"]},
    }
    return dict(json.loads(json.dumps(content)))


def greet(transport: MPITransport, has: Session | LabelSkewError) -> None:
    """A worker's part: tell the server what is here, or why nothing is."""
    meta = facts(has) if isinstance(has, Session) else {"reason": str(has), "frames": has.frames}
    meta["node"] = socket.gethostname()
    transport.send_message(Message(Kind.HELLO, transport.rank, 0, meta=meta))


class Nodes:
    """The server's: hears every worker and refuses those that do not belong to its run.

    Raises:
        LabelSkewError: a worker could not load what it needs, or has other samples, another recipe or another version
            of this package; one line that names the worker and its node.
    """

    def __init__(self, transport: MPITransport, session: Session) -> None:
        self._ours, self._warned = facts(session), set[str]()
        self._nodes = {0: socket.gethostname()}
        transport.add_observer(self)
        while len(self._nodes) < transport.size:
            if not transport.receive(timeout=PATIENCE_S):
                missing = [str(worker) for worker in range(1, transport.size) if worker not in self._nodes]
                log.warn(f"worker {few(missing)} has said nothing yet; still waiting")

    def name(self, worker: int) -> str:
        """A worker in words; on several nodes, with its node."""
        node = self._nodes[worker]
        return f"worker {worker}" if {*self._nodes.values()} == {node} else f"worker {worker} on {node}"

    def __str__(self) -> str:
        """Who is where; empty on one node."""
        here, *others = Counter(self._nodes.values()).items()
        parts = [f"{here[0]} (server, {counted(here[1] - 1, 'worker')})"]
        parts += [f"{node} ({counted(number, 'worker')})" for node, number in others]
        return f"nodes: {', '.join(parts)}" if others else ""

    def receive_message(self, msg_type: int, msg_params: Message) -> None:
        """Compare what a worker tells of itself with what is here; all other messages are for others."""
        if msg_type != Kind.HELLO:
            return
        ours, theirs = self._ours, msg_params.meta
        self._nodes[msg_params.sender] = clean(theirs["node"])
        worker = self.name(msg_params.sender)
        if "reason" in theirs:
            error = LabelSkewError(f"{worker}: {theirs['reason']}")
            error.frames = theirs["frames"]
            raise error
        here, there = (said["of"].get(PACKAGE) for said in (ours, theirs))
        if here != there:
            raise mistake(worker, f"it has {PACKAGE} {there}, and the server {here}", "the same on all nodes")
        if keys := [key for key in different(ours["recipe"], theirs["recipe"]) if key != LOCAL]:
            raise mistake(worker, f"it has another recipe, which differs in {', '.join(keys)}", "the same on all nodes")
        for what in ("samples", "clients"):
            if ours[what] != theirs[what]:
                said = f"the fingerprint of its {what} is {theirs[what]}, and on {self._nodes[0]} {ours[what]}"
                raise mistake(worker, said, "the same data set on all nodes")
        for key in ours["of"] | theirs["of"]:
            here, there = ours["of"].get(key), theirs["of"].get(key)
            line = f"{theirs['node']}: {key} {there}, and {here} where the server is; the last digits may differ"
            if here != there and line not in self._warned:
                self._warned.add(line)
                log.warn(line)
