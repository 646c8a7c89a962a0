"""A run's interface to its framework."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.server import Hooks
from fl_labelskew_plugins.engine.turn import fit


class Host:
    """The default: no framework."""

    def turns(self, local: LocalTrainer) -> Callable[..., LocalResult]:
        """:func:`.engine.turn.fit` for ``local``, with the framework's hooks."""
        return partial(fit, local)

    def hooks(self, model: nn.Module) -> Hooks | None:
        """Replacement for the mean of a round."""
        return None

    def manager(self, transport: Any, rank: int, size: int, observer: Any) -> Any:
        """A message manager with ``run`` and ``send_message`` that calls the observer's ``receive_message``."""
        transport.add_observer(observer)
        return transport
