"""Messages between processes, their transports, and the content of uploads."""

import math
import queue
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from fl_labelskew_registry import RunError
from fl_labelskew_registry.answers import TERM
from torch import Tensor

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.tensors import group, joined

SERVER = 0
NOT_FINITE = ("nan", "inf", "-inf")
LARGEST = 1e30  # larger loss terms become NaN, because pictures cannot scale them


class Kind(IntEnum):
    """Types of messages, see docs/wire.md; from 100 on, a transport's events, which are never sent."""

    HELLO = 1
    WELCOME = 2
    OPENING = 3
    TRAIN = 4
    UPLOAD = 5
    VERDICT = 6
    FINISH = 7
    FAILED = 8
    TEST = 9
    LOGITS = 10  # an MPI worker's answer to TEST, for a part of the test set
    TESTED = 11
    SURVEY = 12
    KEYS = 13
    SHARES = 14
    MASKED = 15
    INCLUDED = 16
    REVEALED = 17
    CHECKED = 18
    JOINED = 100
    LEFT = 101
    REFUSED = 102
    """A peer's message was discarded unread; ``meta["reason"]`` is a predicate."""


@dataclass
class Message:
    """One message; ``connection`` and ``failure`` are never sent. ``round``: from 0; -1 outside rounds."""

    kind: Kind
    sender: int
    receiver: int
    round: int = -1
    meta: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    connection: Any = None
    failure: Exception | None = None


def reason(msg: Message) -> str | None:
    """The sender's reason in one line, if any. Repeated spaces and combining marks could fill more lines."""
    text = msg.meta.get("reason")
    if text is None:
        return None
    marks = "".join("?" if unicodedata.category(letter)[0] == "M" else letter for letter in str(text)[:1000])
    return clean(re.sub(r"\s+", " ", marks), 300)


class Transport(ABC):
    """A queue of received messages, with the interface of FedML's communication managers."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[Message] = queue.Queue()
        self.running = True
        self._observers: list[Any] = []

    def add_observer(self, observer: Any) -> None:
        """Call ``observer.receive_message(kind, message)`` in :meth:`receive`."""
        self._observers.append(observer)

    def receive(self, timeout: float | None = None) -> bool:
        """Pass the next message to the observers; False after ``timeout`` seconds."""
        try:
            arrived = self._next(timeout)
        except queue.Empty:
            return False
        for observer in self._observers:
            observer.receive_message(arrived.kind, arrived)
        return True

    @abstractmethod
    def send_message(self, msg: Message) -> None:
        """Start sending a message."""

    def run(self) -> None:
        """Receive until :meth:`stop_receive_message`."""
        while self.running:
            self.receive()

    handle_receive_message = run

    def stop_receive_message(self) -> None:
        """End the loop and close connections; may be called twice."""
        self.running = False

    def _next(self, timeout: float | None) -> Message:
        """The next message, or ``queue.Empty``."""
        return self.arrived.get(timeout=timeout)


class Manager:
    """One side of an exchange; messages without a handler are dropped."""

    def __init__(self, host: Host, transport: Transport, rank: int, size: int) -> None:
        self.host, self.transport, self.rank, self.size = host, transport, rank, size
        self.handlers: Mapping[Kind, Callable[[Message], None]] = {}
        self._manager = host.manager(transport, rank, size, self)

    def receive_message(self, msg_type: int, msg_params: Message) -> None:
        """Pass a message to its handler."""
        if (handler := self.handlers.get(Kind(msg_type))) is not None:
            handler(msg_params)

    def run(self) -> None:
        """Receive until the transport is stopped."""
        self._manager.run()

    def send(self, kind: Kind, receiver: int, **parts: Any) -> None:
        """Send a message with these fields of :class:`Message`."""
        self._manager.send_message(Message(kind, self.rank, receiver, **parts))


def upload_tensors(result: LocalResult, *, with_state: bool) -> dict[str, Tensor]:
    """An upload's tensors; private state only within a simulation."""
    state = result.state if with_state else {}
    return joined(model=result.upload, contribution=result.contributions, state=state)


def upload_meta(result: LocalResult) -> dict[str, Any]:
    """An upload's measures; numbers that are not finite become text for JSON."""
    terms = {name: value if math.isfinite(value) else str(value) for name, value in result.loss_terms.items()}
    return {"loss_terms": terms, "personalised": result.personalised}


def measures(meta: Mapping[str, Any]) -> dict[str, float]:
    """Parse the result of a test, which may be empty. Raises RunError for wrong values."""
    if not meta:
        return {}
    pair, balanced = _personalised(meta.get("accuracy")), meta.get("balanced_accuracy")
    if pair is None or not isinstance(balanced, float) or not 0 <= balanced <= 1:
        raise RunError("the test result must have right answers, samples and a balanced accuracy from 0 to 1")
    return {"accuracy": pair[0] / pair[1], "balanced_accuracy": balanced, "samples": pair[1]}


def upload(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> LocalResult:
    """Parse an upload. Raises RunError if it is malformed."""
    parts = {name: group(tensors, name) for name in ("model", "contribution", "state")}
    if sum(map(len, parts.values())) != len(tensors):
        raise RunError("tensors that are neither weights nor contributions")
    measures = _loss_terms(meta.get("loss_terms")), _personalised(meta.get("personalised"))
    return LocalResult(parts["model"], parts["contribution"], parts["state"], *measures)


def _loss_terms(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > 100 or not all(map(_measure, value.values())):
        raise RunError("loss terms that are not a mapping of names to numbers")
    if not all(map(TERM.fullmatch, value)):
        raise RunError(
            "loss terms with a name that is not 1 to 40 letters, digits or _+-, with single dots between them"
        )
    return {name: float(term) if abs(float(term)) <= LARGEST else math.nan for name, term in value.items()}


def _measure(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, str) and value in NOT_FINITE)


def _personalised(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int for v in value):
        raise RunError("an accuracy that is not a pair of whole numbers")
    right, total = value
    if not 0 <= right <= total or total == 0:
        raise RunError("an accuracy that is out of range")
    return right, total
