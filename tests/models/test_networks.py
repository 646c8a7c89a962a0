"""Shapes, parameter counts, gradients and errors of every network."""

import numpy as np
import pytest
import torch
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.models.cnn import TFCNN, FedLCCIFAR, FedLCMNIST, LeNet
from fl_labelskew_plugins.models.mlp import MLP, Logistic
from fl_labelskew_plugins.models.resnet import ResNet18

# network, parameters, input, d, parameters without the classifier
CASES = [
    (LeNet, {}, (1, 28, 28), 84, 156 + 2416 + 30840 + 10164),
    (LeNet, {"features": 2}, (1, 28, 28), 2, 33_654),  # FedRS, table 4
    (LeNet, {}, (3, 32, 32), 84, 456 + 2416 + 48120 + 10164),
    (TFCNN, {}, (3, 32, 32), 1024, 56_320),  # FedRS, table 4
    (FedLCMNIST, {}, (1, 28, 28), 50, 260 + 5020 + 16050),  # FedLC, table 8
    (FedLCCIFAR, {}, (3, 32, 32), 2048, 3584 + 2 * 147_584),  # FedLC, table 9
    (FedLCCIFAR, {}, (1, 8, 12), 128, 1280 + 2 * 147_584),
    (ResNet18, {}, (3, 32, 32), 512, 11_168_832),
    (ResNet18, {}, (1, 28, 28), 512, 11_168_832 - 2 * 64 * 9),
    (MLP, {}, (1, 8, 8), 128, 65 * 128),
    (MLP, {"hidden": [16, 8]}, (60,), 8, 61 * 16 + 17 * 8),
    (Logistic, {}, (60,), 60, 0),
    (Logistic, {}, (3, 4, 5), 60, 0),
]
NAMES = [f"{kind.__name__}-{'x'.join(map(str, shape))}-{d}" for kind, _, shape, d, _ in CASES]


def build(kind, params, shape, classes=10):
    torch.manual_seed(0)
    return kind(kind.Params(**params)).build(shape, classes)


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("kind", "params", "shape", "d", "count"), CASES, ids=NAMES)
def test_shapes_counts_and_gradients(kind, params, shape, d, count):
    net = build(kind, params, shape)
    assert parameters(net) - parameters(net.classifier) == count
    assert (net.classifier.in_features, net.classifier.out_features) == (d, 10)
    x = torch.randn(4, *shape)
    features = net.features(x)
    assert features.shape == (4, d)
    net.eval()
    torch.testing.assert_close(net(x), net.classifier(net.features(x)), rtol=0, atol=0)
    assert net(x[:1]).shape == (1, 10)
    torch.testing.assert_close(net(x[:1]), net(x)[:1], rtol=1e-4, atol=1e-5)
    net.train()
    torch.nn.functional.cross_entropy(net(x), torch.arange(4)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        if d != 2:  # of two features after a ReLU, both may be zero
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(("kind", "params", "shape", "d", "count"), CASES, ids=NAMES)
def test_float64_and_seed(kind, params, shape, d, count):
    net, again = build(kind, params, shape), build(kind, params, shape)
    for (name, a), b in zip(net.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    net = net.double().eval()
    out = net(torch.randn(2, *shape, dtype=torch.float64))
    assert out.dtype == torch.float64
    assert torch.isfinite(out).all()


def test_features_come_after_the_last_non_linearity():
    x = torch.randn(16, 1, 28, 28)
    for kind, params in ((LeNet, {}), (FedLCMNIST, {}), (MLP, {}), (ResNet18, {}), (TFCNN, {})):
        assert build(kind, params, (1, 28, 28)).features(x).min() >= 0
    assert build(LeNet, {"relu_features": False}, (1, 28, 28)).features(x).min() < 0


def test_resnet18_is_fedmrs():
    net = build(ResNet18, {}, (3, 32, 32))
    assert parameters(net) == 11_173_962
    assert net.body.conv1.weight.shape == (64, 3, 3, 3)
    # Kaiming with fan_out 64 * 9, as all of torchvision's convolutions
    assert net.body.conv1.weight.std().item() == pytest.approx(np.sqrt(2 / 576), rel=0.1)
    last = []
    net.body.layer4.register_forward_hook(lambda *args: last.append(args[-1].shape))
    net.eval()(torch.randn(1, 3, 32, 32))
    assert last == [(1, 512, 4, 4)]


@pytest.mark.parametrize(
    ("kind", "smallest"), [(LeNet, 16), (TFCNN, 18), (FedLCMNIST, 16), (FedLCCIFAR, 8), (ResNet18, 8)]
)
def test_unfit_inputs(kind, smallest):
    build(kind, {}, (2, smallest, smallest + 1)).eval()(torch.randn(1, 2, smallest, smallest + 1))
    for shape, has in (((1, smallest, smallest - 1), f"{smallest}x{smallest - 1}"), ((60,), "(60,)")):
        with pytest.raises(LabelSkewError) as caught:
            build(kind, {}, shape)
        text = str(caught.value)
        assert "\n" not in text
        assert f"at least {smallest}x{smallest}" in text
        assert has in text
        assert "mlp or logistic would be right" in text


def test_parameters_are_checked():
    for kind, params in ((LeNet, {"features": 0}), (MLP, {"hidden": []}), (MLP, {"hidden": [0]}), (TFCNN, {"d": 1})):
        with pytest.raises(ValueError, match="validation error"):
            kind.Params(**params)
