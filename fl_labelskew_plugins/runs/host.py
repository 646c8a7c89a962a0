"""What a run asks of the framework around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.server import Hooks
from fl_labelskew_plugins.engine.turn import fit


class Host:
    """As it stands, there is no framework: everything is ours. FedML's is :class:`.host.framework.FedML`."""

    def turns(self, local: LocalTrainer) -> Callable[..., LocalResult]:
        """What trains a client in one round; takes what :func:`.engine.turn.fit` does after its first argument."""
        return partial(fit, local)

    def hooks(self, model: nn.Module) -> Hooks | None:
        """What stands around the mean of a round; None for nothing."""
        return None

    def manager(self, transport: Any, rank: int, size: int, observer: Any) -> Any:
        """What receives and sends by ``run`` and ``send_message``, and tells the observer of each message.

        Args:
            transport: a :class:`.runtimes.transport.Transport`.
            rank: of this process, 0 for the server.
            size: how many processes there are.
            observer: has ``receive_message``.
        """
        transport.add_observer(observer)
        return transport
