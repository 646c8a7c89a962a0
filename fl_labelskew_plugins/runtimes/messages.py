"""What both sides of an exchange say, and who hears it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fl_labelskew_registry import RunError
from fl_labelskew_registry.answers import TERM
from torch import Tensor

from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.runtimes.transport import Kind, Message, Transport
from fl_labelskew_plugins.tensors import group, joined

SERVER = 0
NOT_FINITE = ("nan", "inf", "-inf")


class Manager:
    """One side of an exchange: a handler for each kind of message; what else comes is dropped.

    Messages pass through the host's own manager, where there is a host.
    """

    def __init__(self, host: Host, transport: Transport, rank: int, size: int) -> None:
        self.host, self.transport, self.rank, self.size = host, transport, rank, size
        self._handlers = self.handlers()
        self._manager = host.manager(transport, rank, size, self)

    def handlers(self) -> Mapping[Kind, Callable[[Message], None]]:
        """What to do with a message of each kind."""
        return {}

    def receive_message(self, msg_type: int, msg_params: Message) -> None:
        """Hand a message to its handler."""
        if (handler := self._handlers.get(Kind(msg_type))) is not None:
            handler(msg_params)

    def run(self) -> None:
        """Receive until the transport is stopped."""
        self._manager.run()

    def send(self, kind: Kind, receiver: int, **parts: Any) -> None:
        """Send one message, of the ``parts`` that :class:`.transport.Message` has."""
        self._manager.send_message(Message(kind, self.rank, receiver, **parts))


def upload_tensors(result: LocalResult, *, with_state: bool) -> dict[str, Tensor]:
    """The tensors of an upload on the wire. Private state is among them within one simulation alone."""
    state = result.state if with_state else {}
    return joined(model=result.upload, contribution=result.contributions, state=state)


def upload_meta(result: LocalResult) -> dict[str, Any]:
    """A client's measures on the wire. What is not finite is spelt out, as JSON has no number for it."""
    terms = {name: value if math.isfinite(value) else str(value) for name, value in result.loss_terms.items()}
    return {"loss_terms": terms, "personalised": result.personalised}


def measures(meta: Mapping[str, Any]) -> dict[str, float]:
    """How the global model does on a silo's own test part, in what that silo sent; nothing where it does not tell.

    Raises:
        RunError: that cannot be.
    """
    if not meta:
        return {}
    pair, balanced = _personalised(meta.get("accuracy")), meta.get("balanced_accuracy")
    if pair is None or not isinstance(balanced, float) or not 0 <= balanced <= 1:
        raise RunError("a test without right answers, samples and a balanced accuracy from 0 to 1")
    return {"accuracy": pair[0] / pair[1], "balanced_accuracy": balanced, "samples": pair[1]}


def upload(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> LocalResult:
    """What an upload's tensors and measures were made from.

    Raises:
        RunError: tensors or measures that no client of ours sends.
    """
    parts = {name: group(tensors, name) for name in ("model", "contribution", "state")}
    if sum(map(len, parts.values())) != len(tensors):
        raise RunError("tensors that are neither weights nor contributions")
    return LocalResult(
        parts["model"],
        parts["contribution"],
        parts["state"],
        _loss_terms(meta.get("loss_terms")),
        _personalised(meta.get("personalised")),
    )


def _loss_terms(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > 100 or not all(map(_measure, value.values())):
        raise RunError("loss terms that are no mapping of names to numbers")
    if not all(map(TERM.fullmatch, value)):
        raise RunError("loss terms with a name that is not 1 to 40 letters, digits or ._+-")
    return {name: float(term) for name, term in value.items()}


def _measure(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, str) and value in NOT_FINITE)


def _personalised(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int for v in value):
        raise RunError("an accuracy that is no pair of whole numbers")
    right, total = value
    if not 0 <= right <= total or total == 0:
        raise RunError("an accuracy that is out of range")
    return right, total
