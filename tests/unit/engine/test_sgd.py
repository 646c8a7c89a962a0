import pytest
import torch
from torch import nn

from fl_labelskew_plugins.engine.sgd import SGD

KINDS = {"plain": {}, "decay": {"weight_decay": 0.01}, "momentum": {"momentum": 0.9, "weight_decay": 0.01}}


def trained(kind, make):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    network[0].bias.requires_grad_(False)
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = make(parameters, lr=0.1, **KINDS[kind])
    for _ in range(7):
        optimizer.zero_grad()
        network(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch_s_own_class(kind):
    theirs = trained(kind, lambda parameters, **more: torch.optim.SGD(parameters, fused=True, **more))
    assert torch.equal(trained(kind, SGD), theirs)


def test_a_parameter_without_a_gradient_stays():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = SGD([used, unused], lr=0.5, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        used.sum().backward()
        optimizer.step()
    assert unused.tolist() == [1, 1, 1]
    assert used.tolist() == pytest.approx([1 - 0.5 - 0.95] * 3)
