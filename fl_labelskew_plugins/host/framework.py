"""FedML as the framework of a run, with its attacks, defences and noise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fedml.core import ClientTrainer, ServerAggregator
from fedml.core.distributed.fedml_comm_manager import FedMLCommManager
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.dp.mechanisms import Gaussian, Laplace
from fedml.core.security.attack.label_flipping_attack import LabelFlippingAttack
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from torch import Tensor, nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import weighted_mean
from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.samples import ClientBatches, Samples
from fl_labelskew_plugins.engine.server import Hooks, Server
from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.host.start import host_errors, start
from fl_labelskew_plugins.ops import on_grid
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.host import Host
from fl_labelskew_plugins.tensors import Weights


class FedML(Host):
    """FedML, started for one process of a run."""

    def __init__(self, recipe: Recipe, config_file: Path, *, rank: int = 0) -> None:
        self.args, self._on = start(recipe, config_file, rank=rank), bool(recipe.host_switches)

    def turns(self, local: LocalTrainer) -> Callable[..., LocalResult]:
        """Clients' turns inside FedML's hooks."""
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


class LabelSkewTrainer(ClientTrainer):  # type: ignore[misc]
    """Trains any client; ``hooks``: whether one of FedML's features is on."""

    def __init__(self, local: LocalTrainer, args: Any, *, hooks: bool) -> None:
        super().__init__(local.model, args)
        self.local, self.hooks = local, hooks
        self._params: Weights = {}

    def get_model_params(self) -> Weights:
        """The received weights before training, the upload after it."""
        return self._params

    def set_model_params(self, model_parameters: Weights) -> None:
        """Replace the upload (FedML's local differential privacy)."""
        self._params = model_parameters

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        """Does nothing: :meth:`take` trains."""

    def on_after_local_training(self, train_data: Any, device: Any, args: Any) -> None:
        """Add FedML's noise to floating-point tensors."""
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
            set_attack_round(local.federation.seed, round, client)
        with host_errors():
            self.update_dataset(data, ClientBatches(local.test, test, size), len(data.index))
        samples = None if self.local_train_dataset is data else poisoned(self.local_train_dataset, local.device)
        self._params = weights
        self.on_before_local_training(data, local.device, self.args)
        private = self.hooks and FedMLDifferentialPrivacy.get_instance().is_local_dp_enabled()
        result = fit(local, client, round, self._params, samples=samples, exact=private, **turn)
        if private:
            # batch norm's counts show how far a failed training came
            result.upload |= integers(weights)
        self._params = result.upload
        self.on_after_local_training(data, local.device, self.args)
        result.upload = {name: value.to(weights[name].dtype) for name, value in self._params.items()}
        self._params = {}  # free the model before the next turn
        return result


class LabelSkewAggregator(ServerAggregator):  # type: ignore[misc]
    """FedML's hooks around the mean of a round, see :data:`.engine.server.Hooks`."""

    server: Server

    def __call__(self, server: Server, round: int, raw: Sequence[tuple[int, Weights]]) -> Weights:
        """Aggregate ``raw``, each client's samples and upload; only floating-point tensors pass through FedML."""
        self.server, self.args.round_idx = server, round
        seeds.seed_globals(server.federation.seed, "host's server hooks", round)
        with host_errors():
            kept, _ = self.on_before_aggregation([(n, floating(upload)) for n, upload in raw])
            averaged = self.on_after_aggregation(self.aggregate(kept))
        shares = server.shares([n for n, _ in raw])
        old = integers(server.weights)
        counters = zip(shares, (integers(upload) for _, upload in raw), strict=True)
        counted = weighted_mean(counters, old) if old else {}
        return restore(averaged, {**server.weights, **counted})

    def get_model_params(self) -> Weights:
        """The floating-point tensors of the global model."""
        return floating(self.server.weights)

    def set_model_params(self, model_parameters: Weights) -> None:
        """Does nothing: the server sets the weights."""

    def aggregate(self, raw_client_model_or_grad_list: list[tuple[float, Weights]]) -> Weights:
        """Aggregate by FedML's defence, or the method's mean."""
        defender = FedMLDefender.get_instance()
        if not defender.is_defense_enabled():
            return self._mean(raw_client_model_or_grad_list)
        defended: Weights = defender.defend_on_aggregation(
            raw_client_grad_list=raw_client_model_or_grad_list,
            base_aggregation_func=lambda args, raw_grad_list: self._mean(raw_grad_list),
            extra_auxiliary_info=self.get_model_params(),
        )
        return dict(defended)

    def test(self, test_data: Any, device: Any, args: Any) -> None:
        """Does nothing: the runtime evaluates."""

    def _mean(self, raw: Sequence[tuple[float, Weights]]) -> Weights:
        shares = self.server.shares([int(n) for n, _ in raw])
        return weighted_mean(zip(shares, (weights for _, weights in raw), strict=True), self.get_model_params())


def poisoned(batches: Any, device: torch.device) -> Samples:
    """A client's samples after FedML's data poisoning."""
    inputs, labels = zip(*batches, strict=True)
    return Samples(torch.cat(inputs).to(device), torch.cat(labels).long().to(device), (0.0,), (1.0,))


def set_attack_round(seed: int, round: int, client: int) -> None:
    """Make FedML's label flipping depend on the round, not on the number of its calls."""
    attack = FedMLAttacker.get_instance().attacker
    if isinstance(attack, LabelFlippingAttack):
        attack.counter = seeds.torch_seed(seed, "host's poisoned clients", round, client) % 2**31
        attack.get_ite_num = lambda: round


def local_noise() -> Laplace | Gaussian | None:
    """The mechanism of FedML's local differential privacy; None if it is off."""
    noise = getattr(getattr(FedMLDifferentialPrivacy.get_instance().dp_solution, "ldp", None), "dp", None)
    return noise if isinstance(noise, (Laplace, Gaussian)) else None


def draw_noise_from(generator: np.random.Generator) -> None:
    """Make FedML draw local noise from a generator, in float64."""
    if (noise := local_noise()) is not None:
        draw = generator.laplace if isinstance(noise, Laplace) else generator.normal
        noise.compute_noise = lambda size: torch.from_numpy(draw(0.0, noise.scale, size))


def floating(weights: Weights) -> Weights:
    """The floating-point tensors, in FedML's type."""
    return OrderedDict((k, v) for k, v in weights.items() if v.is_floating_point())


def integers(weights: Weights) -> Weights:
    """The other tensors, such as batch normalisation's counters."""
    return {k: v for k, v in weights.items() if not v.is_floating_point()}


def restore(changed: Mapping[str, Tensor], everything: Weights) -> Weights:
    """``everything`` with the changed tensors in their original dtype and device."""
    return {k: changed[k].to(v) if k in changed else v for k, v in everything.items()}
