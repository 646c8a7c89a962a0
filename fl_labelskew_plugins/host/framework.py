"""FedML as the framework around a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedml.core.distributed.fedml_comm_manager import FedMLCommManager
from torch import nn

from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.server import Hooks
from fl_labelskew_plugins.host.aggregator import LabelSkewAggregator
from fl_labelskew_plugins.host.start import start
from fl_labelskew_plugins.host.trainer import LabelSkewTrainer
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.host import Host


class FedML(Host):
    """FedML, started for one process of a run."""

    def __init__(self, recipe: Recipe, config_file: Path, *, rank: int = 0) -> None:
        self.args, self._on = start(recipe, config_file, rank=rank), bool(recipe.host_switches)

    def turns(self, local: LocalTrainer) -> Callable[..., LocalResult]:
        """Training inside FedML's hooks."""
        return self.trainer(local).take

    def trainer(self, local: LocalTrainer) -> LabelSkewTrainer:
        """FedML's interface of local training."""
        return LabelSkewTrainer(local, self.args, hooks=self._on)

    def hooks(self, model: nn.Module) -> Hooks | None:
        """FedML's aggregator, if one of its features is on."""
        return LabelSkewAggregator(model, self.args) if self._on else None

    def manager(self, transport: Any, rank: int, size: int, observer: Any) -> Any:
        """FedML's communication manager around our transport."""
        return LabelSkewManager(self.args, transport, rank, size, observer)


class LabelSkewManager(FedMLCommManager):  # type: ignore[misc]
    """Forwards every message; logs no contents and keeps exceptions."""

    def __init__(self, args: Any, transport: Any, rank: int, size: int, observer: Any) -> None:
        self._transport, self._observer = transport, observer
        super().__init__(args, None, rank, size, args.backend)

    def _init_manager(self) -> None:
        self.register_comm_manager(self._transport)
        self._transport.add_observer(self)

    def register_message_receive_handlers(self) -> None:
        """Does nothing: the observer dispatches the messages."""

    def receive_message(self, msg_type: int, msg_params: Any) -> None:
        """Forward a message."""
        self._observer.receive_message(msg_type, msg_params)
