from types import SimpleNamespace

import pytest
import torch
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.engine.turn import fit
from fl_labelskew_plugins.ops import sum_of_coefficients
from fl_labelskew_plugins.optimizers.fednova import FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_sum_of_coefficients_is_that_of_torchs_sgd(steps, momentum):
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    sgd = torch.optim.SGD([w], lr=0.1, momentum=momentum)
    for _ in range(steps):
        w.grad = torch.ones_like(w)
        sgd.step()
    assert sum_of_coefficients(SimpleNamespace(steps=steps, momentum=momentum)) == pytest.approx(-w.item() / 0.1)


def test_steps_arrive_at_the_server(world):
    """Normalised changes of 200 steps, added to float32 weights of 1, would have an error of 1e-3."""
    trained = []

    class Watched(FedNova):
        def finish(self, work, upload):
            trained.append(float(upload["w"]))
            return super().finish(work, upload)

    two = world(Watched(), a=(1e-3, 1e-3), b=(0.0, 3.0), steps=(200, 90), batch_size=1)
    for _ in range(3):
        start, p = two.at, (200 / 290, 90 / 290)
        two.play()
        first, second = trained[-2:]
        tau = p[0] * 200 + p[1] * 90
        expected = start + tau * (p[0] * (first - start) / 200 + p[1] * (second - start) / 90)
        assert two.at == pytest.approx(expected, abs=2e-7, rel=0)  # a place or two of float32


def tau(value):
    return {"optimizer/tau": torch.tensor(value, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("contributions", "line"),
    [
        ({}, " lacks optimizer/tau, which the server's optimiser needs"),
        (tau(-12.0), ": optimizer/tau is not above 0"),  # it would reverse the changes of others
        (tau(0.0), ": optimizer/tau is not above 0"),
    ],
)
def test_uploads_without_a_positive_number_of_steps_are_refused(world, contributions, line):
    two = world(FedNova())
    result = fit(two.trainer, 0, 0, two.server.weights, times_selected=1)
    two.server.check(0, 0, result)
    result.contributions = contributions
    with pytest.raises(RunError, match=f"upload of client 0{line}"):
        two.server.check(0, 0, result)
