"""FedML's attacks, defences and noise on a round's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedml.core import ServerAggregator
from fedml.core.security.fedml_defender import FedMLDefender

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import weighted_mean
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.host.start import host_errors
from fl_labelskew_plugins.host.trainer import floating, restore
from fl_labelskew_plugins.tensors import Weights


class LabelSkewAggregator(ServerAggregator):  # type: ignore[misc]
    """FedML's hooks around the mean of a round, see :data:`fl_labelskew_plugins.engine.server.Hooks`."""

    server: Server

    def __call__(self, server: Server, round: int, raw: Sequence[tuple[int, Weights]]) -> Weights:
        """The mean of a round, with floating-point tensors via the hooks; ``raw``: each client's samples and upload."""
        self.server, self.args.round_idx = server, round
        seeds.seed_globals(server.federation.seed, "host's server hooks", round)
        with host_errors():
            kept, _ = self.on_before_aggregation([(n, floating(upload)) for n, upload in raw])
            averaged = self.on_after_aggregation(self.aggregate(kept))
        shares = server.shares([n for n, _ in raw])
        counters = [{k: v for k, v in upload.items() if not v.is_floating_point()} for _, upload in raw]
        old = {k: v for k, v in server.weights.items() if not v.is_floating_point()}
        integers = weighted_mean(zip(shares, counters, strict=True), old) if old else {}
        return restore(averaged, {**server.weights, **integers})

    def get_model_params(self) -> Weights:
        """The floating-point tensors of the global model."""
        return floating(self.server.weights)

    def set_model_params(self, model_parameters: Weights) -> None:
        """Does nothing: the server sets the weights."""

    def aggregate(self, raw_client_model_or_grad_list: list[tuple[float, Weights]]) -> Weights:
        """FedML's aggregating defences, or the method's mean, of samples and floating-point weights."""
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
