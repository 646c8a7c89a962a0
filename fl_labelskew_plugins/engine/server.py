"""The server's state, and its update by a round's uploads."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from fl_labelskew_registry import Aggregated, Contribution, Federation, Method, Optimizer, RunError, ServerView, Total
from fl_labelskew_registry.contracts import Aggregation
from torch import Tensor, nn

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.checked import hook_name
from fl_labelskew_plugins.engine.aggregate import (
    PROXIES,
    Addition,
    WeightedMean,
    announced,
    check_form,
    check_made,
    check_result,
    class_weights,
    client_weights,
    origin,
    share_of_old,
)
from fl_labelskew_plugins.engine.isolation import Unchanged
from fl_labelskew_plugins.engine.local import LocalResult, closes, frozen
from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.engine.sums import VECTOR, Sums, as_vector
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.tensors import OPTIMIZER, Weights, group, joined, rest

LEAST_WEIGHT = 1e-6  # declared weights below this are treated as 0, because their inverse could be infinite
Hooks = Callable[["Server", int, list[tuple[int, Weights]]], Weights]
"""Replacement for the mean: from the server, the round, and each client's number of samples and upload."""


class Server:
    """The server's ``weights``, ``shared`` tensors and the optimiser's ``memory``, and their updates.

    Each upload is added and freed at once, unless ``hooks`` need all. ``proxy_smoothing``: see :func:`.class_weights`;
    ``sums``: for secure aggregation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        method: Method,
        federation: Federation,
        weights: Weights,
        optimizer: Optimizer | None = None,
        hooks: Hooks | None = None,
        proxy_smoothing: float | None = None,
        sums: Sums | None = None,
        name: Callable[[int], str] = "client {}".format,
    ) -> None:
        self.method, self.federation = method, federation
        self.optimizer = FedAvgOptimizer() if optimizer is None else optimizer
        self._model = model
        self.parameters = [name for name, p in model.named_parameters() if p.requires_grad]
        self.weights = weights
        self.shared: Mapping[str, Tensor] = {}
        self.memory: Mapping[str, Tensor] = {}
        self.opened: list[int] = []
        self.hooks, self.proxy_smoothing, self.sums, self.name = hooks, proxy_smoothing, sums, name
        self.reported: dict[str, float] = {}
        """With ``sums``, mean ``loss`` and ``accuracy`` that the last round's clients reported."""
        self._unchanged = Unchanged(self.method), Unchanged(self.optimizer)

    def open(self, openings: Iterable[Contribution]) -> None:
        """Compute shared tensors from clients' openings, before round 0, and again if clients join later."""
        clients: list[int] = []
        if self.sums is not None:
            vector = self.sums.opening.zeros()
            for opening in openings:
                self.sums.check(opening.tensors, self.sums.opening, where=f"opening of {self.name(opening.id)}")
                self.sums.opening.add(vector, as_vector(opening.tensors[VECTOR]))
                clients.append(opening.id)
            if clients:
                self.open_sum(vector, clients)
            return
        addition = Addition(individual=self.method.individual)
        for opening in openings:
            addition.add(opening.id, opening.tensors)
            clients.append(opening.id)
        if clients:
            self._open(clients, replace(addition.total(len(clients)), samples=self.federation.num_samples))

    def open_sum(self, vector: Vector, clients: list[int]) -> tuple[int, int]:
        """As :meth:`open`, from the sum of vectors; returns numbers of training and test samples."""
        assert self.sums is not None
        samples, tests, total = self.sums.read_opening(vector, len(clients))
        if self.method.uses("opening"):
            self._open(clients, replace(total, samples=samples))
        return samples, tests

    def _open(self, clients: list[int], total: Total) -> None:
        total = replace(total, federation=self.federation)
        self.opened, self.shared = clients, {**self.shared, **self.method.open(total)}
        self._unchanged[0].check("open")

    @property
    def aggregation(self) -> Aggregation:
        """How the mean weights the uploads."""
        return self.optimizer.aggregation or self.method.aggregation

    @property
    def declared(self) -> bool:
        """Whether clients declare the weights of their uploads."""
        return self.aggregation == "declared"

    def check(self, client: int, round: int, result: LocalResult) -> None:
        """Raise RunError if a client's result is invalid."""
        where = f"round {round + 1}: upload of {self.name(client)}"
        if self.sums is not None:
            self.sums.check(result.upload, self.sums.round, where=where)
            return
        upload, extra, shapes = result.upload, result.contributions, self.contribution_shapes()
        if closes(self.method, self.federation, round):
            shapes = dict(self.method.contribution_shapes(self.federation))
        check_result(upload, extra, self.weights, shapes, self.method, self.optimizer, where=where)
        if self.declared:
            weight = extra.get(self.method.weight_name)
            if weight is None or not 0 <= float(weight) <= 1:
                problem = "no weight" if weight is None else f"the weight {float(weight):g}; allowed: 0 to 1"
                raise RunError(f"{where} has {problem}")

    def contribution_shapes(self) -> dict[str, tuple[int, ...]]:
        """See :func:`.announced`."""
        return announced(self.method, self.optimizer, self.federation, self.weights, self.parameters)

    def run_round(
        self,
        clients: Sequence[int],
        sizes: Sequence[int],
        uploads: Iterable[tuple[int, LocalResult]],
        counts: Tensor | None = None,
        *,
        round: int = 0,
    ) -> list[int]:
        """Aggregate checked ``uploads``, ascending by client; return the clients that uploaded.

        ``sizes``: training samples of each selected client; ``counts``: ``(|S|, C)``, for per-class weights.
        """
        if self.sums is not None:
            participants: list[int] = []
            vector = self.sums.round.zeros()
            for client, result in uploads:
                participants.append(client)
                self.sums.round.add(vector, as_vector(result.upload[VECTOR]))
                del result
            return self.run_sum(participants, vector, round=round)
        shares = [0.0] * len(clients) if self.declared else self.shares(sizes)
        proxies = None
        if self.proxy_smoothing is not None and counts is not None:
            proxies = class_weights(counts, self.proxy_smoothing)
        position = {client: i for i, client in enumerate(clients)}
        old = origin(self.weights, self.optimizer, self.parameters)
        mean, raw, present = WeightedMean(old), [], []
        addition = Addition(individual=self.method.individual)
        classifier = {key: old[key] for key in PROXIES if key in old and proxies is not None}
        equal_rows = WeightedMean(classifier)  # without weights per class
        corrections = WeightedMean({})
        for client, result in uploads:
            i = position[client]
            present.append(i)
            if self.declared:
                weight = float(result.contributions[self.method.weight_name])
                shares[i] = weight if weight >= LEAST_WEIGHT else 0.0
            addition.add(client, rest(result.contributions, OPTIMIZER))
            corrections.add(group(result.contributions, OPTIMIZER), shares[i])
            if self.hooks is not None:
                number = int(1e9 * shares[i]) if self.declared else sizes[i]  # FedML weights by numbers of samples
                raw.append((number, result.upload))
            else:
                mean.add(result.upload, shares[i], None if proxies is None else proxies[i])
                equal_rows.add({key: result.upload[key] for key in classifier}, shares[i])
            del result  # before the next one arrives
        if not present:
            return []
        if self.declared and not any(shares):
            log.warn(f"round {round + 1}: all clients declare the weight 0, so the model stays the same")
            return [clients[i] for i in present]
        if self.hooks is not None:
            weights = self.hooks(self, round, raw)
        else:
            weights = self._mean_of_present(mean, present, sizes, counts, shares, proxies)
        corrections.scale(1 / added(shares[i] for i in present))
        whole = self._mean_of_present(equal_rows, present, sizes, None, shares, None)
        total = replace(addition.total(len(present), round), samples=sum(sizes[i] for i in present))
        self.advance(weights, whole, corrections.sums, total)
        return [clients[i] for i in present]

    def run_sum(self, participants: list[int], vector: Vector, *, round: int = 0) -> list[int]:
        """As :meth:`run_round`, from the sum of the participants' vectors."""
        assert self.sums is not None
        if participants:
            mean, total, self.reported = self.sums.read(vector, self.weights, len(participants), round)
            self.advance(mean, {}, {}, replace(total, samples=self.federation.num_samples))
        return participants

    def advance(self, mean: Weights, whole: Weights, contributions: Weights, total: Total) -> None:
        """Apply the steps of the method and the optimiser."""
        method_hooks, optimizer_hooks = self._unchanged
        closing = closes(self.method, self.federation, total.round)
        total = replace(total, closing=closing, federation=self.federation)
        shared = self.method.combine(total, rest(self.shared, OPTIMIZER))
        method_hooks.check("combine")
        if total.closing:
            weights, sent = dict(self.weights), group(self.shared, OPTIMIZER)
        else:
            weights, sent = self._step(mean, whole, contributions, total.clients)
        optimizer_hooks.check("step")
        if self.method.uses("after_aggregation"):
            draws = seeds.torch_generator(self.federation.seed, "server", total.round)
            view = ServerView(total.round, shared, self.federation, draws, self._frozen, total.closing)
            weights = self.method.after_aggregation(weights, view)
        method_hooks.check("after_aggregation")
        check_form(weights, self.weights, f"{hook_name(self.method, 'after_aggregation')} returned a state dict")
        check_made(weights, self.method)
        self.weights = weights
        self.shared = {**shared, **joined(**{OPTIMIZER: sent})}

    def _frozen(self, weights: Mapping[str, Tensor]) -> nn.Module:
        return frozen(copy.deepcopy(self._model), weights)

    def shares(self, sizes: Sequence[int]) -> list[float]:
        """Weight of each client in the mean."""
        return client_weights(sizes, self.aggregation, self.federation.num_samples)

    def _step(
        self, mean: Weights, whole: Weights, contributions: Weights, clients: int
    ) -> tuple[Weights, dict[str, Tensor]]:
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
        check_form(weights, self.weights, f"{hook_name(self.optimizer, 'step')} returned a state dict")
        check_made({**joined(shared=shared, memory=memory), **weights}, self.optimizer)
        self.memory = memory
        return dict(weights), shared

    def _mean_of_present(
        self,
        mean: WeightedMean,
        present: Sequence[int],
        sizes: Sequence[int],
        counts: Tensor | None,
        shares: Sequence[float],
        proxies: Tensor | None,
    ) -> Weights:
        missing, ratio, factor = len(present) < len(sizes), 1.0, None
        if self.declared:
            ratio = 1 / added(shares[i] for i in present)
            shares = [share * ratio for share in shares]
        elif missing:
            old_share = shares[present[0]]
            shares = self.shares([sizes[i] for i in present])
            ratio = shares[0] / old_share
        if missing and proxies is not None and counts is not None:
            old_proxies, proxies = proxies, class_weights(counts[list(present)], self.proxy_smoothing or 0.0)
            factor = proxies.sum(0) / old_proxies[list(present)].sum(0).clamp_min(torch.finfo(torch.float64).tiny)
        if ratio != 1 or factor is not None:
            mean.scale(ratio, factor)
        # the clients' weights for a class sum to 1, or to 0 for a class without samples: its row keeps the old value
        return mean.result(share_of_old(shares), None if proxies is None else (1 - proxies.sum(0)).round())
