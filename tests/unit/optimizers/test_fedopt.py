import pytest
import torch

from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.optimizers.fedopt import FedOpt


def make(**options):
    return FedOpt(FedOpt.Params(**options))


def changes(world, rounds):
    """Changes of the clients from the weights of ``world``, by round."""
    for _ in range(rounds):
        before = world.at
        plain = type(world)(FedAvgOptimizer(), at=before)
        yield before, plain.play() - before, world.play()


def test_sgd_with_rate_one_is_fedavg(world):
    ours, plain = world(make()), world(FedAvgOptimizer())
    for _ in range(3):
        assert ours.play() == pytest.approx(plain.play())


def test_server_momentum(world):
    velocity = 0.0
    for before, change, after in changes(world(make(server_momentum=0.9, server_lr=0.5)), 4):
        velocity = 0.9 * velocity + change
        assert after == pytest.approx(before + 0.5 * velocity)


@pytest.mark.parametrize(("name", "torchs"), [("adam", torch.optim.Adam), ("adagrad", torch.optim.Adagrad)])
def test_adam_and_adagrad_are_torchs(world, name, torchs):
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = torchs([w], lr=0.05)
    for _, change, after in changes(world(make(server_optimizer=name, server_lr=0.05)), 4):
        w.grad = torch.tensor([-change])
        optimizer.step()
        assert after == pytest.approx(w.item(), abs=1e-5)
