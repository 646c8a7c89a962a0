"""Server-side rounds, the same in every runtime."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.nn.functional import cross_entropy

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.engine.local import LocalResult, closes
from fl_labelskew_plugins.engine.ring import Vector
from fl_labelskew_plugins.engine.server import Hooks, Server
from fl_labelskew_plugins.ops import added
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.tensors import Weights, num_bytes


class Exchange(Protocol):
    """A runtime's communication with its clients."""

    def invite(self, round: int, clients: list[int]) -> list[int]:
        """The participants among the sampled clients; default: all."""
        return clients

    def uploads(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """Train clients; yield checked results, ascending; may omit failed clients."""


class Rounds:
    """All rounds of a run.

    ``predict``: logits and labels of the global test set for given weights; default: in this process. ``tested``:
    measures of weights on clients' own test splits; default: from ``predict``. ``summed``: trains clients; returns the
    clients in the sum of vectors, and the sum.
    """

    server_type: type[Server] = Server

    def __init__(
        self,
        record: Record,
        *,
        predict: Callable[[Weights], tuple[Tensor, Tensor]] | None = None,
        tested: Callable[[Weights], Mapping[str, object]] | None = None,
        hooks: Hooks | None = None,
        summed: Callable[[int, Sequence[int]], tuple[list[int], Vector]] | None = None,
    ) -> None:
        self.session, self.record = record.session, record
        recipe, trainer = self.session.recipe, self.session.trainer
        self._summed = summed
        self._tested, self._per_client = tested, recipe.validation.per_client
        self._predict = predict or (lambda weights: trainer.predict(weights=weights))
        self.server = self.server_type(
            trainer.model,
            method=self.session.method,
            federation=self.session.federation,
            weights=record.weights,
            optimizer=recipe.optimizer,
            hooks=hooks,
            proxy_smoothing=recipe.train.proxies_by_class,
            sums=self.session.sums,
            name=trainer.name,
        )
        self.server.shared, self.server.memory, self.server.opened = record.shared, record.memory, record.opened

    def sample(self, round: int) -> list[int]:
        """Selected clients of a round, ascending, by the recipe's seed."""
        federation = self.session.federation
        everyone = federation.clients_per_round == federation.num_clients
        if everyone or closes(self.session.method, federation, round):
            return list(range(federation.num_clients))
        rng = seeds.numpy_generator(federation.seed, "sampling", round)
        return sorted(rng.choice(federation.num_clients, federation.clients_per_round, replace=False).tolist())

    def run(self, exchange: Exchange) -> None:
        """Run the remaining rounds, see :meth:`lines`."""
        for _ in self.lines(exchange):
            pass

    def lines(self, exchange: Exchange) -> Iterator[dict[str, Any]]:
        """Yield each round's line of metrics; stopping early leaves a checkpoint."""
        record, server = self.record, self.server
        try:
            if record.privacy is not None and not record.next_round:
                record.privacy.open()
            for round in range(record.next_round, self.session.federation.rounds):
                if record.stopped:
                    return
                if (pause := record.pause) and (round >= pause.rounds or time.monotonic() >= pause.at):
                    record.abandon()
                    return
                begun = time.perf_counter()
                line = self._round(round, exchange)
                seconds = time.perf_counter() - begun
                record.complete_round(line, server, seconds=seconds)
                yield line
        except BaseException:
            record.abandon()
            raise

    def _round(self, round: int, exchange: Exchange) -> dict[str, Any]:
        server, session = self.server, self.session
        sampled = self.sample(round)
        private = self.record.privacy
        clients = exchange.invite(round, list(sampled) if private is None else private.willing(round, sampled))
        down = (num_bytes(server.weights.values()) + num_bytes(server.shared.values())) * len(clients)
        tally, watch = Tally(), self.record.watch
        counts = None if session.counts is None else session.counts[clients]
        if self._summed is not None:
            participants, vector = self._summed(round, clients)
            tally.sent = vector.nbytes * len(participants)
            server.run_sum(participants, vector, round=round)
        else:
            sizes = [session.sizes[k] for k in clients]
            uploads = tally.of(exchange.uploads(round, clients))
            if watch is not None:
                uploads = watch.uploads(round, server.weights, uploads)
            participants = server.run_round(clients, sizes, uploads, counts, round=round)
        if watch is not None:
            watch.aggregated(round, server.weights)
        if session.sums is not None:
            tally.use_means(server.reported)
        line: dict[str, Any] = {"round": round, "clients": participants, "loss_terms": tally.loss_terms()}
        if missing := [client for client in sampled if client not in participants]:
            line["left_out"] = missing
        if 0 < len(server.opened) < session.federation.num_clients:
            line["opening_left_out"] = sorted(set(range(session.federation.num_clients)) - set(server.opened))
        if session.recipe.tests(round):
            if len(session.trainer.test.y):
                line |= self.evaluate(None if counts is None else counts.sum(0) > 0)
            if self._per_client and self._tested is not None:
                line |= self._tested(server.weights)
            line["personalised_accuracy"] = tally.personalised_accuracy()
            if self._per_client and tally.personalised:
                accuracies = [tally.personalised.get(client) for client in range(session.federation.num_clients)]
                line |= metrics.over_clients("client_personalised_accuracy", accuracies, session.client_names)
        if session.recipe.train.reference is not None:
            tally.sent = down = 0
        return line | {"bytes_up": tally.sent, "bytes_down": down}

    def evaluate(self, observed: Tensor | None) -> dict[str, Any]:
        """Test the global model on the global test set; ``observed`` ``(C,)``: classes of the round."""
        line, self.record.confusion, predicted, labels = self.measure(self.server.weights, observed)
        if self._per_client and self._tested is None:
            rows = [self.one_client(client, predicted, labels) for client in range(self.session.federation.num_clients)]
            line |= self.of_clients(rows)
            sums, reported = self.session.sums, self.session.recipe.comm.send_measures
            if sums is not None and sums.right is not None and reported:  # as in runs across silos
                line |= metrics.pooled(*(sum(row.get(key, 0) for row in rows) for key in ("right", "samples")))
        return line

    def measure(self, weights: Weights, observed: Tensor | None) -> tuple[dict[str, Any], Tensor, Tensor, Tensor]:
        """Measures, confusion ``(C, C)``, predictions and labels of a model on the global test set."""
        logits, labels = self._predict(weights)
        predicted = logits.argmax(1)
        matrix = metrics.confusion(predicted, labels, self.session.federation.num_classes).cpu()
        measures = metrics.measures(matrix, None if observed is None else observed.cpu())
        return {**measures, "loss": float(cross_entropy(logits, labels))}, matrix, predicted, labels

    def one_client(self, client: int, predicted: Tensor, labels: Tensor) -> dict[str, Any]:
        """Measures on a client's own test split, if any, from ``(N,)`` global test samples."""
        split = self.session.trainer.test_indices.get(client)
        if split is None or not len(split):
            return {}
        matrix = metrics.confusion(predicted[split], labels[split], self.session.federation.num_classes).cpu()
        return {**metrics.measures(matrix), "right": int(matrix.diag().sum()), "samples": int(matrix.sum())}

    def of_clients(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
        """Keys of a line of metrics, from each client's measures."""
        accuracy, balanced = ([row.get(name) for row in rows] for name in ("accuracy", "balanced_accuracy"))
        self.record.test_samples = [row.get("samples") for row in rows]
        line = metrics.over_clients("client_accuracy", accuracy, self.session.client_names)
        return line | {"client_balanced_accuracy": balanced}


class Tally:
    """Accumulates a round's results; ``personalised``: accuracy of each client's own model on its own test split."""

    def __init__(self) -> None:
        self.sent = 0
        self.personalised: dict[int, float] = {}
        self._terms: list[dict[str, float]] = []
        self._accuracy: float | None = None

    def of(self, uploads: Iterator[tuple[int, LocalResult]]) -> Iterator[tuple[int, LocalResult]]:
        """Pass the results on and count them."""
        for client, result in uploads:
            self.sent += num_bytes(result.upload.values()) + num_bytes(result.contributions.values())
            if result.loss_terms:
                self._terms.append(result.loss_terms)
            if result.personalised is not None:
                self.personalised[client] = result.personalised[0] / result.personalised[1]
            yield client, result

    def use_means(self, measured: Mapping[str, float]) -> None:
        """Use means over clients, with secure aggregation."""
        self._terms = [{"total": measured["loss"]}] if "loss" in measured else []
        self._accuracy = measured.get("accuracy")

    def loss_terms(self) -> dict[str, float]:
        """Mean of each term over the clients."""
        names = dict.fromkeys(name for terms in self._terms for name in terms)
        return {name: added(terms.get(name, 0.0) / len(self._terms) for terms in self._terms) for name in names}

    def personalised_accuracy(self) -> float | None:
        """Mean over the clients, if known."""
        return added(self.personalised.values()) / len(self.personalised) if self.personalised else self._accuracy
