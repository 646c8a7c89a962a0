"""FedOpt's server steps on two quadratics: by hand, beside torch's optimisers, and beside loops of algorithm 2."""

import math

import pytest
import torch
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.optimizers.fedavg import FedAvg
from fl_labelskew_plugins.optimizers.fedopt import FedOpt
from fl_labelskew_plugins.recipe import parse


def make(**options):
    return FedOpt(FedOpt.Params(**options))


def test_what_it_says_of_algorithm_2():
    assert make().deviations() == ["uploads are weighed as the method has it; algorithm 2 prints 1/|S|"]
    assert [line[:11] for line in make(server_optimizer="adam", server_lr=0.1).deviations()] == [
        "uploads are",
        "server_form",
    ]


def changes(world, rounds):
    """What clients would have changed from where ``world`` stands, round by round."""
    for _ in range(rounds):
        before = world.at
        plain = type(world)(FedAvg(), at=before)
        yield before, plain.play() - before, world.play()


def test_sgd_with_rate_one_is_fedavg(world):
    ours, plain = world(make()), world(FedAvg())
    for _ in range(3):
        assert ours.play() == pytest.approx(plain.play())


@pytest.mark.parametrize("form", ["host", "paper"])
def test_server_momentum(world, form):
    velocity = 0.0
    for before, change, after in changes(world(make(server_momentum=0.9, server_lr=0.5, server_form=form)), 4):
        velocity = 0.9 * velocity + change
        assert after == pytest.approx(before + 0.5 * velocity)


@pytest.mark.parametrize(("name", "torchs"), [("adam", torch.optim.Adam), ("adagrad", torch.optim.Adagrad)])
def test_hosts_form_is_torchs_optimiser(world, name, torchs):
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = torchs([w], lr=0.05)
    for _, change, after in changes(world(make(server_optimizer=name, server_lr=0.05)), 4):
        w.grad = torch.tensor([-change])
        optimizer.step()
        assert after == pytest.approx(w.item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["adam", "adagrad", "yogi"])
@pytest.mark.parametrize(
    ("given", "beta1", "beta2", "tau"),
    [
        ({}, None, 0.99, 1e-3),
        # v begins above the first changes' squares, which yogi then takes from it
        ({"server_beta1": 0.5, "server_tau": 0.2}, 0.5, 0.99, 0.2),
        ({"server_beta2": 0.5, "server_tau": 0.2}, None, 0.5, 0.2),
    ],
)
def test_papers_form_is_algorithm_two(world, kind, given, beta1, beta2, tau):
    if kind == "adagrad":  # which has no beta2
        given = {name: value for name, value in given.items() if name != "server_beta2"}
    m, v = 0.0, tau**2
    if beta1 is None:
        beta1 = 0.0 if kind == "adagrad" else 0.9
    two = world(make(server_optimizer=kind, server_lr=0.02, server_form="paper", **given))
    for before, change, after in changes(two, 4):
        square = change**2
        m = beta1 * m + (1 - beta1) * change
        v = {
            "adam": beta2 * v + (1 - beta2) * square,
            "adagrad": v + square,
            "yogi": v - (1 - beta2) * square * math.copysign(1, v - square),
        }[kind]
        assert after - before == pytest.approx(0.02 * m / (math.sqrt(v) + tau), rel=1e-3)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train_args.server_momentum=0.9", "server_momentum does not go with adam; use sgd, or 0"),
        (
            "train_args.server_tau=0.1",
            "server_tau does not go with adam with server_form: host; use adam, adagrad or yogi",
        ),
        ("train_args.server_lr=1e39", "train_args.server_lr: 1e+39 is out of range; allowed: numbers up to 1e+30"),
        (
            "train_args.server_optimizer=adamw",
            "'adamw' is unknown; allowed: sgd, adam, adagrad, yogi; did you mean adam?",
        ),
    ],
)
def test_mistakes(override, line):
    text = (
        "data_args: {dataset: digits}\nmodel_args: {model: mlp}\nmethod_args: {method: fedavg}\n"
        "train_args: {federated_optimizer: FedOpt, server_optimizer: adam}\n"
    )
    with pytest.raises(LabelSkewError) as error:
        parse.parse(text, overrides=[override])
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("server_optimizer: sgd, server_form: paper, server_tau: 0.5", "server_tau"),
        ("server_optimizer: adagrad, server_beta1: 0.5", "server_beta1"),
        ("server_optimizer: adagrad, server_form: paper, server_beta2: 0.5", "server_beta2"),
    ],
)
def test_what_would_do_nothing_is_refused_and_a_run_s_own_recipe_is_not(options, name):
    text = (
        "data_args: {dataset: digits}\nmodel_args: {model: mlp}\nmethod_args: {method: fedavg}\n"
        f"train_args: {{federated_optimizer: FedOpt, {options}}}\n"
    )
    with pytest.raises(
        LabelSkewError, match=f"train_args: {name} does not go with .* server_form: paper, or leave it out$"
    ):
        parse.parse(text)
    right = parse.parse(text, overrides=[f"train_args.{name}=null"])
    assert parse.parse(right.dump()).resolved() == right.resolved()  # as for a run that goes on
