"""FedML's data poisoning before local training, and its noise after it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from fedml.core import ClientTrainer
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.dp.mechanisms import Gaussian, Laplace
from fedml.core.security.attack.label_flipping_attack import LabelFlippingAttack
from fedml.core.security.fedml_attacker import FedMLAttacker
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.samples import ClientBatches, Samples
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.host.start import host_errors
from fl_labelskew_plugins.ops import on_grid
from fl_labelskew_plugins.tensors import Weights


class LabelSkewTrainer(ClientTrainer):  # type: ignore[misc]  # the host is untyped
    """Trains any client; ``hooks``: whether one of FedML's features is on."""

    def __init__(self, local: LocalTrainer, args: Any, *, hooks: bool) -> None:
        super().__init__(local.model, args)
        self.local, self.hooks = local, hooks
        self._params: Weights = {}

    def get_model_params(self) -> Weights:
        """The start weights before training, the upload after it."""
        return self._params

    def set_model_params(self, model_parameters: Weights) -> None:
        """Replace the upload (FedML's local differential privacy)."""
        self._params = model_parameters

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        """Does nothing: :meth:`take` trains."""

    def on_after_local_training(self, train_data: Any, device: Any, args: Any) -> None:
        """Apply FedML's local differential privacy to floating-point tensors."""
        everything = self._params
        self._params = floating(everything)
        with host_errors():
            super().on_after_local_training(train_data, device, args)
        if (noise := local_noise()) is not None:
            self._params = {name: on_grid(value.double(), noise.scale) for name, value in self._params.items()}
        self._params = restore(self._params, everything)

    def test(self, test_data: Any, device: Any, args: Any) -> None:
        """Does nothing: the runtime evaluates."""

    def take(self, client: int, round: int, weights: Weights, **turn: Any) -> LocalResult:
        """:func:`.engine.turn.fit` inside FedML's hooks, which may change the upload."""
        local = self.local
        self.args.round_idx = round
        size, test = local.settings.batch_size, local.test_indices[client]
        data = ClientBatches(local.train, local.indices[client], size)
        self.set_id(client)
        if self.hooks:
            secret = local.noise_seed if turn.get("noise_seed") is None else turn["noise_seed"]
            seeds.seed_globals(secret, "host's client hooks", round, client)
            draw_noise_from(seeds.noise_generator(secret, "host's noise", round, client))
            tell_attacker(local.federation.seed, round, client)
        with host_errors():
            self.update_dataset(data, ClientBatches(local.test, test, size), len(data.index))
        samples = None if self.local_train_dataset is data else poisoned(self.local_train_dataset, local.device)
        self._params = weights
        self.on_before_local_training(data, local.device, self.args)
        result = fit(local, client, round, self._params, samples=samples, **turn)
        if self.hooks and FedMLDifferentialPrivacy.get_instance().is_local_dp_enabled():
            # batch norm's counts show how far a failed training came
            result.upload |= {name: value for name, value in weights.items() if not value.is_floating_point()}
        self._params = result.upload
        self.on_after_local_training(data, local.device, self.args)
        result.upload, self._params = self._params, {}  # free the model before the next turn
        return result


def poisoned(batches: Any, device: torch.device) -> Samples:
    """A client's samples after FedML's data poisoning."""
    inputs, labels = zip(*batches, strict=True)
    return Samples(torch.cat(inputs).to(device), torch.cat(labels).long().to(device), (0.0,), (1.0,))


def tell_attacker(seed: int, round: int, client: int) -> None:
    """Set the round of FedML's label flipping, instead of the number of its calls."""
    attack = FedMLAttacker.get_instance().attacker
    if isinstance(attack, LabelFlippingAttack):
        attack.counter = seeds.torch_seed(seed, "host's poisoned clients", round, client) % 2**31
        attack.get_ite_num = lambda: round


def local_noise() -> Laplace | Gaussian | None:
    """The mechanism of FedML's local differential privacy; None if it is off."""
    noise = getattr(getattr(FedMLDifferentialPrivacy.get_instance().dp_solution, "ldp", None), "dp", None)
    return noise if isinstance(noise, (Laplace, Gaussian)) else None


def draw_noise_from(generator: np.random.Generator) -> None:
    """Make FedML's local differential privacy draw from a generator instead of numpy's or torch's global one.

    The noise is float64: the trainer rounds the result.
    """
    noise = local_noise()
    if isinstance(noise, Laplace):
        noise.compute_noise = lambda size: torch.from_numpy(generator.laplace(0.0, noise.scale, size))
    elif isinstance(noise, Gaussian):
        noise.compute_noise = lambda size: torch.from_numpy(generator.normal(0.0, noise.scale, size))


def floating(weights: Weights) -> Weights:
    """The floating-point tensors in FedML's ordered dictionary."""
    return OrderedDict((k, v) for k, v in weights.items() if v.is_floating_point())


def restore(changed: Mapping[str, Tensor], everything: Weights) -> Weights:
    """``everything`` with the changed tensors in their original dtype and device."""
    return {k: changed[k].to(v) if k in changed else v for k, v in everything.items()}
