"""The host's ClientTrainer face of the local trainer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from fedml.core import ClientTrainer
from fedml.core.security.attack.label_flipping_attack import LabelFlippingAttack
from fedml.core.security.fedml_attacker import FedMLAttacker
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.samples import ClientBatches, Samples
from fl_labelskew_plugins.tensors import Weights


@dataclass
class Turn:
    """What a client gets for its turn in a round; ``state`` is its own and never leaves it."""

    client: int
    round: int
    shared: Mapping[str, Tensor]
    state: dict[str, Tensor]
    times_selected: int
    personalised: bool = False
    result: LocalResult | None = field(default=None)


class LabelSkewTrainer(ClientTrainer):  # type: ignore[misc]  # the host is untyped
    """Trains whichever client :attr:`turn` names, inside the host's order of hooks.

    Parameters are plain dictionaries that nobody else holds: what the host hands out is never the live module.

    Args:
        local: the local trainer.
        args: the host's arguments.
        hooks: whether a switch of the host (attack, defence, differential privacy) is on.
    """

    def __init__(self, local: LocalTrainer, args: Any, *, hooks: bool = False) -> None:
        super().__init__(local.model, args)
        self.local, self.hooks = local, hooks
        self.turn: Turn | None = None
        self._params: Weights = {}

    def get_model_params(self) -> Weights:
        """The start weights before training, the upload after it."""
        return self._params

    def set_model_params(self, model_parameters: Weights) -> None:
        """Set what :meth:`train` starts from, or replace the upload (the host's local differential privacy)."""
        self._params = model_parameters

    def update_dataset(self, local_train_dataset: Any, local_test_dataset: Any, local_sample_number: int) -> None:
        """The host's hook for data poisoning; what it returns replaces the client's samples for this turn."""
        if self.hooks:
            turn = self._turn
            seeds.seed_globals(self.local.noise_seed, "host's client hooks", turn.round, turn.client)
            tell_attacker(self.local.federation.seed, turn.round, turn.client)
        super().update_dataset(local_train_dataset, local_test_dataset, local_sample_number)
        self.local.replaced.clear()
        if self.local_train_dataset is not local_train_dataset:
            inputs, labels = zip(*self.local_train_dataset, strict=True)
            device = self.local.device
            poisoned = Samples(torch.cat(inputs).to(device), torch.cat(labels).long().to(device), (0.0,), (1.0,))
            self.local.replaced[self._turn.client] = poisoned

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        """One client's local training; the data are the client's own, in memory already."""
        turn = self._turn
        turn.result = self.local.fit(
            turn.client,
            turn.round,
            self._params,
            shared=turn.shared,
            state=turn.state,
            times_selected=turn.times_selected,
            personalised=turn.personalised,
        )
        self._params = turn.result.upload

    def on_after_local_training(self, train_data: Any, device: Any, args: Any) -> None:
        """The host's local differential privacy, on floating-point tensors alone."""
        everything = self._params
        self._params = floating(everything)
        super().on_after_local_training(train_data, device, args)
        self._params = restore(self._params, everything)

    def test(self, test_data: Any, device: Any, args: Any) -> dict[str, float]:
        """The host's measures of the current weights on batches of ``(inputs, labels)``."""
        logits, labels = [], []
        with torch.inference_mode():
            self.local.model.load_state_dict(self._params)
            self.local.model.eval()
            for x, y in test_data:
                logits.append(self.local.model(x.to(self.local.device)))
                labels.append(y.to(self.local.device))
        z, y = torch.cat(logits), torch.cat(labels)
        loss = float(torch.nn.functional.cross_entropy(z, y, reduction="sum"))
        return {"test_correct": int((z.argmax(1) == y).sum()), "test_loss": loss, "test_total": len(y)}

    def take(self, turn: Turn, weights: Weights) -> LocalResult:
        """A client's turn: the host's hooks and the local training, in the host's order.

        Returns:
            What the client leaves behind, with the upload as the host's hooks left it.
        """
        self.turn, local = turn, self.local
        size = local.settings.batch_size
        own = local.indices[turn.client]
        data = ClientBatches(local.train, own, size)
        self.set_id(turn.client)
        self.set_model_params(weights)
        self.update_dataset(data, ClientBatches(local.test, local.test_indices[turn.client], size), len(own))
        self.on_before_local_training(data, local.device, self.args)
        self.train(data, local.device, self.args)
        self.on_after_local_training(data, local.device, self.args)
        assert turn.result is not None  # train() has set it
        turn.result.upload = self.get_model_params()
        self.turn, self._params = None, {}  # or a model would be kept until the next turn
        return turn.result

    @property
    def _turn(self) -> Turn:
        if self.turn is None:
            raise RuntimeError("LabelSkewTrainer.turn is not set: the runtime has to name the client first")
        return self.turn


def tell_attacker(seed: int, round: int, client: int) -> None:
    """Let the host's label flipping know whose turn in which round it is.

    It would count its calls to know the round, and draw from that count whether to poison: of each process apart.
    """
    attack = FedMLAttacker.get_instance().attacker
    if isinstance(attack, LabelFlippingAttack):
        attack.counter = seeds.torch_seed(seed, "host's poisoned clients", round, client) % 2**31
        attack.get_ite_num = lambda: round


def floating(weights: Weights) -> Weights:
    """The floating-point tensors, as the ordered dictionary that the host expects."""
    return OrderedDict((k, v) for k, v in weights.items() if v.is_floating_point())


def restore(changed: Mapping[str, Tensor], everything: Weights) -> Weights:
    """``everything`` with the changed tensors put back, in their own dtype and on their own device."""
    return {k: changed[k].to(v) if k in changed else v for k, v in everything.items()}


def host_dataset(local: LocalTrainer, batch_size: int) -> list[Any]:
    """The host's 8-tuple: sample numbers, global and local batches, number of classes; nothing is copied."""
    clients = list(local.indices)
    every = torch.arange(len(local.train.y), device=local.device)
    tests = torch.arange(len(local.test.y), device=local.device)
    return [
        sum(len(i) for i in local.indices.values()),
        len(local.test.y),
        ClientBatches(local.train, every, batch_size),
        ClientBatches(local.test, tests, batch_size),
        {k: len(local.indices[k]) for k in clients},
        {k: ClientBatches(local.train, local.indices[k], batch_size) for k in clients},
        {k: ClientBatches(local.test, local.test_indices[k], batch_size) for k in clients},
        local.federation.num_classes,
    ]
