import pytest
import torch

from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer
from fl_labelskew_plugins.optimizers.fedopt import FedOpt


@pytest.mark.parametrize(("name", "torchs"), [("adam", torch.optim.Adam), ("adagrad", torch.optim.Adagrad)])
def test_adam_and_adagrad_are_torchs(world, name, torchs):
    ours = world(FedOpt(FedOpt.Params(server_optimizer=name, server_lr=0.05)))
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = torchs([w], lr=0.05)
    for _ in range(4):
        before = ours.at
        w.grad = torch.tensor([before - world(FedAvgOptimizer(), at=before).play()])
        optimizer.step()
        assert ours.play() == pytest.approx(w.item(), abs=1e-5)
