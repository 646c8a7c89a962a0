import dataclasses
import math

import pytest
import torch
from fl_labelskew_registry import RunError
from fl_labelskew_registry.contracts import Contribution, Total

from fl_labelskew_plugins.methods.feddisco import METRICS, FedDisco, discrepancy

COUNTS = [6, 3, 0, 1]


def naive(counts, metric):
    p, even = [n / sum(counts) for n in counts], 1 / len(counts)
    if metric == "kl":
        return sum(x * math.log(x / even) for x in p if x > 0)
    if metric == "cosine":
        return 1 - sum(x * even for x in p) / math.sqrt(sum(x * x for x in p)) / math.sqrt(len(p) * even * even)
    power = int(metric[1])
    return sum(abs(x - even) ** power for x in p) ** (1 / power)


@pytest.mark.parametrize("metric", METRICS)
def test_discrepancy_equals_a_loop(metric):
    assert discrepancy(torch.tensor(COUNTS), metric=metric).item() == pytest.approx(naive(COUNTS, metric))
    assert discrepancy(torch.tensor([4, 4, 4]), metric=metric).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_weights_and_mean_of_a_round_equal_a_loop(digits, metric):
    """All three clients take part, so the weights are those of the authors' code."""
    run = digits("feddisco", metric=metric, of=3)
    counts = [run.trainer.counts(client).tolist() for client in range(3)]
    far = [naive(n, metric) for n in counts]
    if metric == "kl":
        far = [x / sum(far) for x in far]
    raw = [max(sum(n) / sum(map(sum, counts)) - 0.5 * x + 0.1, 0) for n, x in zip(counts, far, strict=True)]
    expected = [x / sum(raw) for x in raw]
    results = run.play([0, 1, 2])
    declared = [float(results[client].contributions["weight"]) for client in range(3)]
    assert [weight / sum(declared) for weight in declared] == pytest.approx(expected)
    for name, value in run.server.weights.items():
        mean = sum(w * results[k].upload[name].double() for k, w in enumerate(expected))
        torch.testing.assert_close(value.double(), mean, atol=1e-6, rtol=1e-5)


def test_without_discrepancy_the_mean_is_fedavgs(digits):
    disco, plain = digits("feddisco", a=0.0, b=0.0), digits("fedavg")
    for clients in ([0, 1], [1, 2]):
        disco.play(clients)
        plain.play(clients)
    for name, value in plain.server.weights.items():
        torch.testing.assert_close(disco.server.weights[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("weight", "problem"),
    [(-0.1, ": weight has negative values"), (1.5, " has the weight 1.5"), (None, " has no weight")],
)
def test_a_weight_out_of_range_is_refused(digits, weight, problem):
    run = digits("feddisco")
    result = run.fit(0)
    result.contributions = {} if weight is None else {"weight": torch.tensor(weight)}
    with pytest.raises(RunError, match="upload of client 0" + problem):
        run.server.check(0, 0, result)


def test_a_round_in_which_all_weights_are_0_keeps_the_model(digits, capsys):
    run = digits("feddisco", a=100.0, b=0.0)
    before = run.server.weights
    run.play([0, 1])
    assert run.server.weights is before
    assert "all clients declare the weight 0, so the model stays the same" in capsys.readouterr().err


def test_equal_distributions_have_no_discrepancy(world):
    method = FedDisco()
    none = Contribution(0, {"discrepancy": torch.tensor(0.0, dtype=torch.float64)})
    shared = method.open(Total(none.tensors, 1, contributions=[none], federation=world.federation))
    view = world.client(shared=shared, counts=torch.full((5,), 8))
    assert method.contribute(view)["weight"].item() == pytest.approx((5 * 40 / 400 + 0.1) / 5.1)
    # the client joined when a silo that is now excluded claimed many samples
    before = dataclasses.replace(world.federation, num_samples=10**9)
    later = dataclasses.replace(view, federation=before)
    assert torch.equal(method.contribute(later)["weight"], method.contribute(view)["weight"])
    # a client that joined after the opening: the server would refuse a weight above 1
    large = dataclasses.replace(view, counts=view.counts * 1000)
    assert method.contribute(large)["weight"] == 1


@pytest.mark.parametrize(("value", "counted"), [(-1.8 + 1e-6, 0.0), (-1e308, 0.0), (1.7e308, math.log(5))])
def test_an_impossible_discrepancy_counts_as_the_nearest_possible_one(world, value, counted):
    """Otherwise one client could make the weights of all others 0."""
    sent = [torch.tensor(number, dtype=torch.float64) for number in (0.7, 1.1, value)]
    openings = [Contribution(k, {"discrepancy": number}) for k, number in enumerate(sent)]
    total = Total({"discrepancy": sum(sent)}, 3, contributions=openings, federation=world.federation)
    assert FedDisco().open(total)["discrepancy"].item() == pytest.approx(1.8 + counted)


@pytest.mark.parametrize("other", ["fedlc", "fedmr"])
def test_a_combination_is_weighted_by_its_last_method(digits, other):
    run, single = digits(f"{other}+feddisco"), digits("feddisco")
    results, plain = run.play([0, 1], asked=[0, 1, 2]), single.play([0, 1])  # one upload is missing
    declared = [float(results[client].contributions[run.method.weight_name]) for client in (0, 1)]
    assert declared == [float(plain[client].contributions["weight"]) for client in (0, 1)]
    name = "classifier.bias"
    mean = sum(w * results[k].upload[name] for k, w in enumerate(declared)) / sum(declared)
    torch.testing.assert_close(run.server.weights[name], mean)
