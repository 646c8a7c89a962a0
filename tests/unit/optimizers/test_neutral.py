"""Settings with which an optimiser equals FedAvg; ``error``: relative, 0 for bit-identical."""

import pytest
from fl_labelskew_registry import catalog

from fl_labelskew_plugins.optimizers.fedavg import FedAvgOptimizer


@pytest.mark.parametrize(
    ("name", "params", "error"),
    [
        ("FedProx", {"fedprox_mu": 0.0}, 0),
        ("FedSAM", {"sam_rho": 0.0}, 0),
        ("FedLESAM", {"sam_rho": 0.0, "lesam_form": "paper"}, 0),
        ("FedLESAM", {"sam_rho": 0.0, "lesam_form": "code"}, 0),
        ("FedNova", {}, 1e-6),
        ("FedOpt", {}, 1e-6),
    ],
)
def test_neutral_setting_is_fedavg(world, name, params, error):
    kind = catalog.load("optimizers", name)
    ours, plain = world(kind(kind.Params(**params))), world(FedAvgOptimizer())
    for _ in range(5):
        assert ours.play() == pytest.approx(plain.play(), rel=error, abs=0)
    assert not ours.server.shared
    assert not ours.states[0]
