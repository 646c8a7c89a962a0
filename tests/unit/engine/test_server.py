"""A round with missing uploads equals a round of only the other clients."""

import functools
import weakref
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from fl_labelskew_registry import Contribution, Method, RunError
from recipe_texts import SKEWED

from fl_labelskew_plugins import params
from fl_labelskew_plugins.engine.local import LocalResult
from fl_labelskew_plugins.engine.server import Server
from fl_labelskew_plugins.methods.fedavg import FedAvg
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session


@functools.cache
def built(*overrides):
    return session.build(parse.parse(SKEWED, overrides=overrides))


def server(*overrides, smoothing=None, **attributes):
    """``attributes``: of the method's object."""
    made = built(*overrides)
    vars(made.method).update(attributes)
    central = Server(
        made.trainer.model,
        method=made.method,
        federation=made.federation,
        weights=made.start,
        proxy_smoothing=smoothing,
    )
    return made, central


def result(made, client):
    generator = torch.Generator().manual_seed(client)
    weights = {k: v + torch.randn(v.shape, generator=generator) for k, v in made.start.items()}
    return LocalResult(weights, {}, {}, {})


@pytest.mark.parametrize(
    ("overrides", "smoothing"),
    [
        ([], None),  # samples
        (["method_args.method=fedrs"], None),  # uniform
        (["method_args.method=fedshift"], None),  # population: missing shares keep the old model
        ([], 0.0),  # rows per class; perhaps no client holds one of them
        ([], 1.0),
        (["method_args.method=fedshift"], 1.0),
    ],
)
@pytest.mark.parametrize("came", [[0, 3], [2]])
def test_a_missing_client_leaves_the_mean_of_the_others(overrides, smoothing, came):
    found = []
    for asked in ([0, 1, 2, 3], came):
        made, central = server(*overrides, smoothing=smoothing)
        counts = made.counts.clone()
        if smoothing == 0.0:
            counts[:, 3] = 0
        uploads = ((k, result(made, k)) for k in came)
        assert central.run_round(asked, [made.sizes[k] for k in asked], uploads, counts[asked]) == came
        found.append(central.weights)
    for key, value in found[1].items():
        torch.testing.assert_close(found[0][key], value, rtol=1e-5, atol=1e-6)


def test_a_round_without_any_upload_changes_nothing():
    made, central = server()
    assert central.run_round([0, 1], made.sizes[:2], iter([])) == []
    assert all(torch.equal(central.weights[k], v) for k, v in made.start.items())


def test_each_upload_is_released_after_it_is_added():
    made, central = server()
    alive = []

    def uploads():
        for k in range(4):
            one = result(made, k)
            alive.append(weakref.ref(one))
            yield k, one
            del one
            assert not any(ref() for ref in alive)

    central.run_round(range(4), made.sizes, uploads())


@pytest.mark.parametrize("individual", [False, True])
def test_contributions_reach_the_method_as_their_sum(individual):
    seen = []
    hooks = {"individual": individual, "combine": lambda total, shared: seen.append(total) or shared}
    made, central = server("method_args.method=fedmr", **hooks)
    d, classes = made.federation.num_features, made.federation.num_classes
    sent = [{"sums": torch.full((classes, d), k + 0.5), "counts": torch.full((classes,), k)} for k in range(4)]
    uploads = [(0, result(made, 0)), *((k, replace(result(made, k), contributions=sent[k])) for k in (2, 3))]
    for client, one in uploads:
        central.check(client, 0, one)
    central.run_round([0, 1, 2, 3], made.sizes, iter(uploads), round=6)
    (total,) = seen
    assert (total.clients, total.round) == (3, 6)
    assert total.tensors["sums"].tolist() == [[6.0] * d] * classes
    assert total.tensors["counts"].tolist() == [5] * classes
    assert total.contributions == ([Contribution(2, sent[2]), Contribution(3, sent[3])] if individual else [])


@pytest.mark.parametrize("smoothing", [None, 0.0])
@pytest.mark.parametrize("method", ["fedavg", "fedrs", "fedshift"])
def test_the_mean_change_uses_the_weights_of_whole_uploads(method, smoothing):
    made, central = server(f"method_args.method={method}", smoothing=smoothing)
    central.optimizer.step = step = Mock(wraps=central.optimizer.step)
    came, old = [0, 3], made.start
    uploads = {k: result(made, k) for k in came}
    central.run_round(range(4), made.sizes, iter(uploads.items()), made.counts)
    total = {"fedavg": made.sizes[0] + made.sizes[3], "fedshift": sum(made.sizes)}.get(method)
    for name in central.parameters:
        naive = torch.zeros_like(old[name])
        for k in came:
            naive += (made.sizes[k] / total if total else 1 / 2) * (uploads[k].upload[name] - old[name])
        torch.testing.assert_close(step.call_args[0][0].change(name), naive, rtol=1e-5, atol=1e-6)


class Grows(Method):
    class Params(params.Params):
        factor: float = 1e30

    def after_aggregation(self, weights, server):
        return {name: value * self.params.factor**2 for name, value in weights.items()}


def test_what_a_method_gets_on_the_server():
    seen = []

    class Draws(FedAvg):
        def combine(self, total, shared):
            return {"round": torch.tensor(total.round)}

        def after_aggregation(self, weights, server):
            seen.append((server, server.frozen(weights), torch.rand(1, generator=server.generator).item()))
            return weights

    made, central = server()
    central.method = Draws()
    for round in (0, 1):
        central.run_round([0], made.sizes[:1], iter([(0, result(made, 0))]), round=round)
    (first, _, draw), (second, network, other) = seen
    assert (first.round, second.round, second.closing) == (0, 1, False)
    assert (second.federation, second.shared["round"]) == (made.federation, 1)
    assert draw != other
    assert not network.training
    assert network is not made.trainer.model
    assert all(torch.equal(value, central.weights[name]) for name, value in network.state_dict().items())
    assert not any(p.requires_grad for p in network.parameters())


def test_a_method_s_step_on_the_server_that_diverges_is_one_line():
    made, central = server()
    central.method = Grows()
    line = "is not finite after Grows's step on the server, .* one of method_args.factor, train_args.learning_rate$"
    with pytest.raises(RunError, match=line):
        central.run_round([0], made.sizes[:1], iter([(0, result(made, 0))]))
    assert all(torch.equal(central.weights[k], v) for k, v in made.start.items())
