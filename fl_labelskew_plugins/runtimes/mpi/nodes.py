"""Compare every worker's recipe, data and package versions with the server's before the first round."""

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
PATIENCE_S = 60  # seconds until a warning lists the missing workers
MAY_DIFFER = "data_args.data_cache_dir"  # the only recipe key that may differ between nodes


def facts(session: Session) -> dict[str, Any]:
    """Facts that determine a rank's results, as JSON types."""
    known = environment(session.trainer.device)
    assert session.clients is not None  # a simulation
    content = {
        "recipe": portable(session.recipe),
        "samples": session.data,
        "clients": session.clients.digest,
        "of": {"threads": known["threads"], "cpu_capability": known["cpu_capability"], **known["versions"]},
    }
    return dict(json.loads(json.dumps(content)))


def greet(transport: MPITransport, result: Session | LabelSkewError) -> None:
    """Send a worker's facts or error."""
    meta = facts(result) if isinstance(result, Session) else {"reason": str(result), "frames": result.frames}
    meta["node"] = socket.gethostname()
    transport.send_message(Message(Kind.HELLO, transport.rank, 0, meta=meta))


class Nodes:
    """The nodes of all workers. Waits for their facts; raises LabelSkewError if a worker failed or differs."""

    def __init__(self, transport: MPITransport, session: Session) -> None:
        self._ours, self._warned = facts(session), set[str]()
        self._nodes = {0: socket.gethostname()}
        transport.add_observer(self)
        while len(self._nodes) < transport.size:
            if not transport.receive(timeout=PATIENCE_S):
                missing = [str(worker) for worker in range(1, transport.size) if worker not in self._nodes]
                log.warn(f"worker {few(missing)} has not reported yet; still waiting")

    def name(self, worker: int) -> str:
        """A worker's name; on several nodes, with its node."""
        node = self._nodes[worker]
        return f"worker {worker}" if {*self._nodes.values()} == {node} else f"worker {worker} on {node}"

    def __str__(self) -> str:
        here, *others = Counter(self._nodes.values()).items()
        parts = [f"{here[0]} (server, {counted(here[1] - 1, 'worker')})"]
        parts += [f"{node} ({counted(number, 'worker')})" for node, number in others]
        return f"nodes: {', '.join(parts)}" if others else ""

    def receive_message(self, msg_type: int, msg_params: Message) -> None:
        """Compare a worker's facts with the server's."""
        if msg_type != Kind.HELLO:
            return
        ours, theirs = self._ours, msg_params.meta
        self._nodes[msg_params.sender] = clean(theirs["node"])
        worker = self.name(msg_params.sender)
        if "reason" in theirs:
            error = LabelSkewError(f"{worker}: {theirs['reason']}")
            error.frames = theirs["frames"]
            raise error
        here, there = (known["of"].get(PACKAGE) for known in (ours, theirs))
        if here != there:
            raise mistake(worker, f"it has {PACKAGE} {there}, and the server {here}", "the same on all nodes")
        if keys := [key for key in different(ours["recipe"], theirs["recipe"]) if key != MAY_DIFFER]:
            raise mistake(worker, f"it has another recipe, which differs in {', '.join(keys)}", "the same on all nodes")
        for part in ("samples", "clients"):
            if ours[part] != theirs[part]:
                what = f"the fingerprint of its {part} is {theirs[part]}, and on {self._nodes[0]} {ours[part]}"
                raise mistake(worker, what, "the same data set on all nodes")
        for key in ours["of"] | theirs["of"]:
            here, there = ours["of"].get(key), theirs["of"].get(key)
            line = f"{theirs['node']}: {key} {there}, and {here} on the server's node; the last digits may differ"
            if here != there and line not in self._warned:
                self._warned.add(line)
                log.warn(line)
