"""The interface of a run to the framework around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.server import Hooks
from fl_labelskew_plugins.engine.turn import fit


class Host:
    """The default without a framework. FedML's is :class:`.host.framework.FedML`."""

    def turns(self, local: LocalTrainer) -> Callable[..., LocalResult]:
        """A function that trains a client in one round, called like :func:`.engine.turn.fit` without ``local``."""
        return partial(fit, local)

    def hooks(self, model: nn.Module) -> Hooks | None:
        """Hooks around the mean of a round; None for none."""
        return None

    def manager(self, transport: Any, rank: int, size: int, observer: Any) -> Any:
        """A message manager with ``run`` and ``send_message`` that passes each received message to the observer.

        Args:
            transport: a :class:`.runtimes.transport.Transport`.
            rank: of this process, 0 for the server.
            size: number of processes.
            observer: has ``receive_message``.
        """
        transport.add_observer(observer)
        return transport
