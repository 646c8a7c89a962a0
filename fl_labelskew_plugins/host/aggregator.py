"""The host's ServerAggregator face of aggregation: weights through the host's hooks, contributions beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from fedml.core import ServerAggregator
from fedml.core.security.fedml_defender import FedMLDefender
from fl_labelskew_registry import Aggregated, Contribution, Federation, Method, Optimizer, RunError
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import (
    PROXIES,
    WeightedMean,
    check_extra,
    check_made,
    check_upload,
    class_weights,
    client_weights,
    numbers,
    origin,
    share_of_old,
    weighted_mean,
)
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.host.trainer import floating, restore
from fl_labelskew_plugins.optimizers.fedavg import FedAvg
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, group, joined, rest


class LabelSkewAggregator(ServerAggregator):  # type: ignore[misc]  # the host is untyped
    """The server's state, ``weights``, ``shared`` and the optimiser's ``memory``, and how a round's uploads change it.

    Uploads come in client order. Each is added and let go at once, except where a switch of the host (attack,
    defence, differential privacy) needs to see all of them.

    Args:
        model: the network; its weights are scratch.
        args: the host's arguments.
        method: the label-skew method.
        federation: the run as a whole.
        weights: the state dict to begin with.
        optimizer: how the federation optimises; its server's part.
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
        optimizer: Optimizer | None = None,
        hooks: bool = False,
        proxy_smoothing: float | None = None,
    ) -> None:
        super().__init__(model, args)
        self.method, self.federation = method, federation
        self.optimizer = FedAvg() if optimizer is None else optimizer
        self.parameters = [name for name, p in model.named_parameters() if p.requires_grad]
        self.weights = weights
        self.shared: Mapping[str, Tensor] = {}
        self.memory: Mapping[str, Tensor] = {}
        self.opened: list[int] = []
        self.hooks, self.proxy_smoothing = hooks, proxy_smoothing

    def get_model_params(self) -> Weights:
        """The global state dict; while the host's hooks run, its floating-point part."""
        return floating(self.weights) if self.hooks else self.weights

    def set_model_params(self, model_parameters: Weights) -> None:
        """Replace the global state dict."""
        self.weights = model_parameters

    def open(self, openings: Sequence[Contribution]) -> None:
        """Before round 0: the first shared tensors, from every client's opening; later ones, when a client joins."""
        if openings:
            self.opened = [opening.id for opening in openings]
            self.shared = {**self.shared, **self.method.open(openings)}

    def check(self, client: int, round: int, result: LocalResult) -> None:
        """Refuse what is not of the model's and the method's form, or not finite.

        Raises:
            RunError: one line that names the client, the round and the tensor.
        """
        where = f"round {round + 1}: upload of client {client}"
        check_upload(result.upload, self.weights, where=where, keys=numbers(self.optimizer))
        needed = self.optimizer_shapes()
        dtypes = {name: self._dtypes(name) for name in needed}
        check_extra(result.contributions, self.contribution_shapes(), where=where, dtypes=dtypes)
        if missing := sorted(needed.keys() - result.contributions.keys()):
            raise RunError(f"{where} lacks {missing[0]}, which the server's optimiser needs from everybody")

    def contribution_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all that may come beside a model's weights: the method's, and the optimiser's."""
        return {**self.method.contribution_shapes(self.federation), **self.optimizer_shapes()}

    def optimizer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what the optimiser needs from everybody."""
        parameters = {name: tuple(self.weights[name].shape) for name in self.parameters}
        return {f"{OPTIMIZER}/{k}": v for k, v in self.optimizer.contribution_shapes(parameters).items()}

    def _dtypes(self, name: str) -> tuple[torch.dtype, ...]:
        """What a tensor of the optimiser may be of: where it is named as a parameter is, of that one's alone."""
        parameter = self.weights.get(name.removeprefix(f"{OPTIMIZER}/"))
        return (torch.float32, torch.float64) if parameter is None else (parameter.dtype,)

    def run_round(
        self,
        clients: Sequence[int],
        sizes: Sequence[int],
        uploads: Iterable[tuple[int, LocalResult]],
        counts: Tensor | None = None,
    ) -> list[int]:
        """Aggregate a round's uploads and combine what rides with them.

        Args:
            clients: who was asked to take part, ascending.
            sizes: training samples of each of them.
            uploads: client and result, ascending and checked; who is missing is left out of the mean.
            counts: ``(|S|, C)`` training samples per class of those clients, for per-class weights of the proxies.

        Returns:
            Whose uploads came.
        """
        shares = self.shares(sizes)
        proxies = None
        if self.proxy_smoothing is not None and counts is not None:
            proxies = class_weights(counts, self.proxy_smoothing)
        position = {client: i for i, client in enumerate(clients)}
        old = origin(self.weights, self.optimizer, self.parameters)
        mean, contributions, raw, came = WeightedMean(old), [], [], []
        classifier = {key: old[key] for key in PROXIES if key in old and proxies is not None}
        whole = WeightedMean(classifier)
        corrections = WeightedMean({})
        for client, result in uploads:
            i = position[client]
            came.append(i)
            if sent := rest(result.contributions, OPTIMIZER):
                contributions.append(Contribution(client, sent))
            corrections.add(group(result.contributions, OPTIMIZER), shares[i])
            if self.hooks:
                raw.append((sizes[i], result.upload))
            else:
                mean.add(result.upload, shares[i], None if proxies is None else proxies[i])
                whole.add({key: result.upload[key] for key in classifier}, shares[i])
            del result  # each is let go before the next one comes
        if not came:
            return []
        if self.hooks:
            weights = self._through_hooks(raw)
        else:
            weights = self._mean_of_those_who_came(mean, came, sizes, counts, shares, proxies)
        corrections.scale(1 / sum(shares[i] for i in came))
        shared = self.method.combine(contributions, rest(self.shared, OPTIMIZER))
        rows_alike = self._mean_of_those_who_came(whole, came, sizes, None, shares, None)
        weights, own = self._step(weights, rows_alike, corrections.sums, len(came))
        weights = self.method.after_aggregation(weights, shared)
        check_made(weights, self.method)
        self.weights = weights
        self.shared = {**shared, **joined(**{OPTIMIZER: own})}
        return [clients[i] for i in came]

    def _step(
        self, mean: Weights, whole: Weights, contributions: Weights, clients: int
    ) -> tuple[Weights, dict[str, Tensor]]:
        """The optimiser's step from the old weights to the new ones, and what it shares from now on."""
        shared, memory = group(self.shared, OPTIMIZER), dict(self.memory)
        with torch.no_grad():
            weights = self.optimizer.step(
                Aggregated(
                    old=self.weights,
                    mean=mean,
                    contributions=contributions,
                    clients=clients,
                    parameters=self.parameters,
                    shared=shared,
                    memory=memory,
                    federation=self.federation,
                    whole=whole,
                )
            )
        check_made({**joined(shared=shared, memory=memory), **weights}, self.optimizer)
        self.memory = memory
        return dict(weights), shared

    def _mean_of_those_who_came(
        self,
        mean: WeightedMean,
        came: Sequence[int],
        sizes: Sequence[int],
        counts: Tensor | None,
        shares: Sequence[float],
        proxies: Tensor | None,
    ) -> Weights:
        if len(came) < len(sizes):
            first, old_shares, old_proxies = came[0], shares, proxies
            shares = self.shares([sizes[i] for i in came])
            factor = None
            if proxies is not None and old_proxies is not None and counts is not None:
                proxies = class_weights(counts[list(came)], self.proxy_smoothing or 0.0)
                factor = proxies.sum(0) / old_proxies[list(came)].sum(0).clamp_min(torch.finfo(torch.float64).tiny)
            mean.scale(shares[0] / old_shares[first], factor)
        # a column of per-class weights sums to 1, or to 0 for a class that nobody holds, whose row then stays
        return mean.result(share_of_old(shares), None if proxies is None else (1 - proxies.sum(0)).round())

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
        shares = self.shares([int(n) for n, _ in raw])
        return weighted_mean(zip(shares, (weights for _, weights in raw), strict=True), floating(self.weights))

    def shares(self, sizes: Sequence[int]) -> list[float]:
        """Weights in the mean of clients with so many training samples."""
        aggregation = self.optimizer.aggregation or self.method.aggregation
        return client_weights(sizes, aggregation, self.federation.num_samples)

    def _through_hooks(self, raw: list[tuple[int, Weights]]) -> Weights:
        seeds.seed_globals(self.federation.seed, "host's server hooks", self.args.round_idx)
        kept, _ = self.on_before_aggregation([(n, floating(upload)) for n, upload in raw])
        averaged = self.on_after_aggregation(self.aggregate(kept))
        shares = self.shares([n for n, _ in raw])
        counters = [{k: v for k, v in upload.items() if not v.is_floating_point()} for _, upload in raw]
        old = {k: v for k, v in self.weights.items() if not v.is_floating_point()}
        integers = weighted_mean(zip(shares, counters, strict=True), old) if old else {}
        return restore(averaged, {**self.weights, **integers})
