import pytest
import torch
from fl_labelskew_registry import LabelSkewError
from torch import nn
from torch.nn.functional import cross_entropy

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.methods.feddecorr import FedDecorr
from fl_labelskew_plugins.methods.fedlc import calibrated_logits

LOGITS, LABELS = torch.tensor([[2.0, 1.0, 0.5], [0.0, 1.0, 3.0]]), torch.tensor([0, 1])


def test_fedlc_by_hand():
    # margins tau * n ** -0.25: 0.5 for 16 samples, 1 for 1; log(1 + exp(1 - 1 - (1 - 0.5)))
    loss = fl.local_loss("fedlc", counts=[16, 1], tau=1.0)
    assert float(loss(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))) == pytest.approx(0.4740770)


def test_local_loss_equals_the_method():
    counts = torch.tensor([16, 1, 0])
    expected = cross_entropy(calibrated_logits(LOGITS, counts, tau=2.0, missing="one"), LABELS)
    assert torch.equal(fl.local_loss("fedlc", counts=counts, tau=2.0)(LOGITS, LABELS), expected)
    for neutral in (fl.local_loss("fedlc", counts=counts, tau=0), fl.local_loss("fedavg", counts=counts)):
        assert torch.equal(neutral(LOGITS, LABELS), cross_entropy(LOGITS, LABELS))
    # FedRS scales the logits of missing classes; here class 2
    scaled = LOGITS * torch.tensor([1.0, 1.0, 0.5])
    assert torch.allclose(fl.local_loss("fedrs", counts=counts)(LOGITS, LABELS), cross_entropy(scaled, LABELS))


def test_a_loss_trains_in_any_loop():
    torch.manual_seed(0)
    network, x = nn.Linear(4, 3), torch.randn(8, 4)
    labels = torch.arange(8) % 3
    loss = fl.local_loss("feddecorr", counts=[3, 3, 2], beta=0.5)
    value = loss(network(x), labels, x)
    value.backward()
    assert network.weight.grad.abs().sum() > 0
    assert value > cross_entropy(network(x), labels)
    assert "beta" in FedDecorr.Params.model_fields
    with pytest.raises(LabelSkewError, match="feddecorr needs features"):
        loss(network(x), labels)


@pytest.mark.parametrize(
    ("method", "arguments", "line"),
    [
        ("fedmr", {}, "exchanges data or keeps models between rounds"),
        ("map", {}, "use fl.run or fl.simulate"),
        ("fedrs", {"upload_clip": 1.0, "upload_sigma": 1.0}, "(protect)"),
        ("fedlc", {"tua": 1.0}, "tua"),
        ("fedlc", {"counts": [0.5, 1.0]}, "whole numbers"),
        ("fedlcc", {}, "fedlc"),
    ],
)
def test_other_methods_and_wrong_arguments_are_refused(method, arguments, line):
    with pytest.raises(LabelSkewError) as error:
        fl.local_loss(method, **{"counts": [1, 2]} | arguments)
    assert line in str(error.value)
    assert "\n" not in str(error.value)
