"""The host's ServerAggregator face of aggregation: weights through the host's hooks, contributions beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fedml.core import ServerAggregator
from fedml.core.security.fedml_defender import FedMLDefender
from fl_labelskew_registry import Contribution, Federation, Method
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.aggregate import (
    WeightedMean,
    Weights,
    check_upload,
    class_weights,
    client_weights,
    share_of_old,
    weighted_mean,
)
from fl_labelskew_plugins.local import LocalResult
from fl_labelskew_plugins.trainer import floating, restore


class LabelSkewAggregator(ServerAggregator):  # type: ignore[misc]  # the host is untyped
    """The server's state, ``weights`` and ``shared``, and how a round's uploads change it.

    Uploads come in client order. Each is added and let go at once, except where a switch of the host (attack,
    defence, differential privacy) needs to see all of them.

    Args:
        model: the network; its weights are scratch.
        args: the host's arguments.
        method: the label-skew method.
        federation: the run as a whole.
        weights: the state dict to begin with.
        hooks: whether a switch of the host is on.
        proxy_smoothing: lambda of per-class weights for the classifier's rows; None: as the model's.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Any,
        *,
        method: Method,
        federation: Federation,
        weights: Weights,
        hooks: bool = False,
        proxy_smoothing: float | None = None,
    ) -> None:
        super().__init__(model, args)
        self.method, self.federation = method, federation
        self.weights = weights
        self.shared: Mapping[str, Tensor] = {}
        self.hooks, self.proxy_smoothing = hooks, proxy_smoothing

    def get_model_params(self) -> Weights:
        """The global state dict; while the host's hooks run, its floating-point part."""
        return floating(self.weights) if self.hooks else self.weights

    def set_model_params(self, model_parameters: Weights) -> None:
        """Replace the global state dict."""
        self.weights = model_parameters

    def open(self, openings: Sequence[Contribution]) -> None:
        """Before round 0: the first shared tensors, from every client's opening."""
        self.shared = self.method.open(openings)

    def run_round(
        self, round: int, clients: Sequence[int], counts: Tensor, train: Callable[[int], tuple[LocalResult, Weights]]
    ) -> list[Contribution]:
        """One round: train the clients in turn, aggregate, combine.

        Args:
            round: its number.
            clients: who takes part, ascending.
            counts: ``(|S|, C)`` training samples per class of those clients.
            train: trains a client; returns its result and its upload as the host's client hooks left it.

        Returns:
            The contributions of the clients that sent any.
        """
        sizes = [int(n) for n in counts.sum(1)]
        contributions, raw = [], []
        shares = client_weights(sizes, self.method.aggregation, self.federation.num_samples)
        proxies = None if self.proxy_smoothing is None else class_weights(counts, self.proxy_smoothing)
        # a column of per-class weights sums to 1, or to 0 for a class that nobody holds, whose row then stays
        unheld = None if proxies is None else (1 - proxies.sum(0)).round()
        mean = WeightedMean(self.weights, share_of_old(shares), unheld)
        for i, client in enumerate(clients):
            result, upload = train(client)
            check_upload(upload, self.weights, client=client, round=round)
            if result.contributions:
                contributions.append(Contribution(client, counts[i], result.contributions))
            if self.hooks:
                raw.append((sizes[i], upload))
            else:
                mean.add(upload, shares[i], None if proxies is None else proxies[i])
        self.weights = self._through_hooks(round, raw) if self.hooks else mean.result()
        self.shared = self.method.combine(contributions, self.shared)
        return contributions

    def aggregate(self, raw_client_model_or_grad_list: list[tuple[float, Weights]]) -> Weights:
        """The host's hook: its defences that aggregate themselves, else the method's own mean.

        Args:
            raw_client_model_or_grad_list: training samples and floating-point weights of each client.
        """
        defender = FedMLDefender.get_instance()
        if defender.is_defense_enabled():
            return dict(
                defender.defend_on_aggregation(
                    raw_client_grad_list=raw_client_model_or_grad_list,
                    base_aggregation_func=lambda args, raw_grad_list: self._mean(raw_grad_list),
                    extra_auxiliary_info=self.get_model_params(),
                )
            )
        return self._mean(raw_client_model_or_grad_list)

    def test(self, test_data: Any, device: Any, args: Any) -> None:
        """Evaluation is the runtime's, once a round on the global test set; nothing to do here."""

    def _mean(self, raw: Sequence[tuple[float, Weights]]) -> Weights:
        shares = client_weights([int(n) for n, _ in raw], self.method.aggregation, self.federation.num_samples)
        return weighted_mean(zip(shares, (weights for _, weights in raw), strict=True), floating(self.weights))

    def _through_hooks(self, round: int, raw: list[tuple[int, Weights]]) -> Weights:
        seeds.seed_globals(self.federation.seed, "host's server hooks", round)
        kept, _ = self.on_before_aggregation([(n, floating(upload)) for n, upload in raw])
        averaged = self.on_after_aggregation(self.aggregate(kept))
        shares = client_weights([n for n, _ in raw], self.method.aggregation, self.federation.num_samples)
        counters = [{k: v for k, v in upload.items() if not v.is_floating_point()} for _, upload in raw]
        old = {k: v for k, v in self.weights.items() if not v.is_floating_point()}
        integers = weighted_mean(zip(shares, counters, strict=True), old) if old else {}
        return restore(averaged, {**self.weights, **integers})
