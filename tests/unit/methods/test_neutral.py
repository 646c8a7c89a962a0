"""Each method's neutral setting is bit-identical to plain cross-entropy, for any earlier messages and states."""

import pytest
import torch
from fl_labelskew_registry import catalog

NEUTRAL = [
    ("fedavg", {}),
    ("fedrs", {"alpha": 1.0}),
    ("fedrs", {"alpha": 1.0, "scaling": "proportional"}),
    ("map", {"alpha": 1.0, "lam": 0.0, "transfer": "kd"}),
    ("map", {"alpha": 1.0, "lam": 0.0, "transfer": "mmd"}),
    ("fedphp", {"lam": 0.0}),
    ("fedlc", {"tau": 0.0}),
    ("fedmr", {"mu1": 0.0, "mu2": 0.0}),
    ("fedproc", {"mu": 0.0}),
    ("fedproc", {"mu": 0.0, "schedule": "constant"}),
    ("moon", {"mu": 0.0}),
    ("fedmmd", {"lam": 0.0}),
    ("fedrod", {"gamma": 0.0, "private": 0.0}),
    ("fedaws", {"rate": 0.0}),
    ("fd", {"gamma": 0.0}),
    ("fedntd", {"beta": 0.0}),
    ("fedlmd", {"beta": 0.0}),
    ("fedlmd", {"beta": 0.0, "teacher": "uniform"}),
    ("flda", {"general_share": 1.0}),
    ("feddecorr", {"beta": 0.0}),
    ("fedvls", {"calibration": "none", "lam": 0.0, "suppression": 0.0}),
]
"""FedShift's and reweighting's depend on the clients, see test_fedshift.py."""


@pytest.mark.parametrize(("name", "params"), NEUTRAL)
def test_neutral_setting_is_plain_cross_entropy(world, assert_plain, name, params):
    kind = catalog.load("methods", name)
    method = kind(kind.Params(**params))
    assert not method.deviations() or name in {"fedrs", "map", "fedphp", "fedlc", "fedaws", "fedvls"}
    kept = {}
    for prefix in ("hpm.", "moon.", "private.", "fedrod.model."):
        kept |= world.moved(prefix)
    shared = {"prototypes": torch.randn(5, 3), "known": torch.tensor([True, True, False, True, False])}
    shared |= {"total": torch.randn(5, 5), "senders": torch.ones(5), "numbers": torch.tensor([7])}
    for stage in method.stages(2):
        changes = {"round": 3, "stage": stage.name, "shared": shared, "state": dict(kept)}
        view = world.client(**changes)
        method.before_round(view)
        assert view.scratch == {}
        assert_plain(method, **changes)


@pytest.mark.parametrize(("name", "params"), [case for case in NEUTRAL if case[0] not in ("fedrs", "map", "fedphp")])
def test_neutral_training_equals_fedavg(digits, name, params):
    """Except the three with equal weights of uploads. Clients send and keep no other tensors."""
    plain, neutral = digits("fedavg"), digits(name, **params)
    for clients in ([0, 1], [1, 2]):
        results = plain.play(clients)
        for client, result in neutral.play(clients).items():
            assert (result.contributions, result.state) == ({}, {})
            assert result.personalised == results[client].personalised
    assert neutral.method.contribution_shapes(neutral.made.federation) == {}
    assert all(torch.equal(neutral.server.weights[k], v) for k, v in plain.server.weights.items())
