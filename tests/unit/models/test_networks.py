import numpy as np
import pytest
import torch
from error_messages import message

from fl_labelskew_plugins.models.cnn import SACNN, TFCNN, FeCNN, FedLCCIFAR, FedLCMNIST, LeNet
from fl_labelskew_plugins.models.efficientnet import EfficientNetB0
from fl_labelskew_plugins.models.lstm import CharLSTM
from fl_labelskew_plugins.models.mlp import MLP, Logistic
from fl_labelskew_plugins.models.resnet import ResNet18, ResNet50
from fl_labelskew_plugins.models.vgg import VGG11
from fl_labelskew_plugins.models.wide_resnet import WideResNet

SCRATCH = {"weights": "none"}

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
    (FeCNN, {}, (1, 28, 28), 2048, 6_476_672),  # FedRS, table 4
    (SACNN, {}, (64,), 256, 15_984),  # FedRS, table 4
    (CharLSTM, {"vocabulary": 81}, (80,), 256, 799_368),  # FedRS, table 4
    (CharLSTM, {"embedding": 2, "hidden": 4, "layers": 1}, (5,), 4, 10 * 2 + 4 * 4 * (2 + 4 + 2)),
    (VGG11, {}, (3, 32, 32), 512, 9_220_480),  # FedRS, table 4
    (VGG11, {"batch_norm": True}, (1, 40, 33), 512, 9_220_480 - 2 * 64 * 9 + 2 * 2752),
    (ResNet50, {}, (3, 12, 12), 2048, 23_500_352),
    (WideResNet, {"depth": 10, "widen": 1, "dropout": 0.0}, (1, 9, 8), 64, 160 + 4704 + 14_528 + 57_728 + 128),
    (EfficientNetB0, SCRATCH, (3, 32, 32), 1280, 4_007_548),
    (EfficientNetB0, {**SCRATCH, "features": 640}, (3, 40, 33), 640, 4_007_548 + 1281 * 640),
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


def inputs(kind, samples, shape):
    torch.manual_seed(1)
    if kind is CharLSTM:
        return torch.randint(0, 10, (samples, *shape), dtype=torch.uint8)
    return torch.randn(samples, *shape)


@pytest.mark.parametrize(("kind", "params", "shape", "d", "count"), CASES, ids=NAMES)
def test_shapes_counts_and_gradients(kind, params, shape, d, count):
    net = build(kind, params, shape)
    assert parameters(net) - parameters(net.classifier) == count
    assert (net.classifier.in_features, net.classifier.out_features) == (d, 10)
    x = inputs(kind, 4, shape)
    net.eval()
    with torch.no_grad():
        features, logits = net.features(x), net(x)
        torch.testing.assert_close(net(x[:1]), logits[:1], rtol=1e-4, atol=1e-5)
    assert features.shape == (4, d)
    torch.testing.assert_close(logits, net.classifier(features), rtol=0, atol=0)
    net.train()
    torch.nn.functional.cross_entropy(net(x), torch.arange(4)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        if d != 2:  # of two features after a ReLU, both may be zero
            assert parameter.grad.abs().sum() > 0, name


# FedMR, table 3: millions of numbers that a client sends, without and with prototypes, batch normalisation's running
# statistics counted; its middle ones with prototypes are sums of rounded numbers
FEDMR = [
    (ResNet18, {}, (1, 28, 28), 10, 11_182_430, "11.182", 512),  # FMNIST
    (ResNet18, {}, (3, 32, 32), 10, 11_183_582, "11.184", 512),  # SVHN and CIFAR10
    (WideResNet, {}, (3, 32, 32), 100, 36_564_957, "36.565", 640),  # CIFAR100
    (EfficientNetB0, {**SCRATCH, "features": 640}, (3, 200, 200), 8, 4_874_581, "4.875", 640),  # ISIC2019
]


@pytest.mark.parametrize(("kind", "params", "shape", "classes", "count", "printed", "d"), FEDMR, ids=str)
def test_parameter_counts_printed_by_fedmr(kind, params, shape, classes, count, printed, d):
    with torch.device("meta"):  # only shapes
        net = build(kind, params, shape, classes)
    numbers = sum(tensor.numel() for tensor in net.state_dict().values())
    assert numbers == count
    assert f"{numbers / 1e6:.3f}" == printed
    assert net.classifier.in_features == d


def test_features_follow_the_last_non_linearity():
    x = torch.randn(16, 1, 28, 28)
    for kind, params in ((LeNet, {}), (FedLCMNIST, {}), (MLP, {}), (ResNet18, {}), (TFCNN, {}), (FeCNN, {})):
        assert build(kind, params, (1, 28, 28)).features(x).min() >= 0
    assert build(SACNN, {}, (100,)).features(torch.randn(16, 100)).min() >= 0
    for kind, params in ((LeNet, {}), (MLP, {"hidden": [16, 3]})):
        assert build(kind, {**params, "relu_features": False}, (1, 28, 28)).features(x).min() < 0


def test_resnet18_equals_that_of_fedmr():
    net = build(ResNet18, {}, (3, 32, 32))
    # Kaiming with fan_out 64 * 9, as all of torchvision's convolutions
    assert net.body.conv1.weight.std().item() == pytest.approx(np.sqrt(2 / 576), rel=0.1)
    last = []
    net.body.layer4.register_forward_hook(lambda *args: last.append(args[-1].shape))
    net.eval()(torch.randn(1, 3, 32, 32))
    assert last == [(1, 512, 4, 4)]


@pytest.mark.parametrize(
    ("kind", "smallest"),
    [
        (LeNet, 16),
        (TFCNN, 18),
        (FedLCMNIST, 16),
        (FedLCCIFAR, 8),
        (FeCNN, 8),
        (VGG11, 32),
        (ResNet18, 8),
        (ResNet50, 8),
        (WideResNet, 8),
    ],
)
def test_unsuitable_inputs(kind, smallest):
    params = {"depth": 10, "widen": 1} if kind is WideResNet else {}
    build(kind, params, (2, smallest, smallest + 1)).eval()(torch.randn(1, 2, smallest, smallest + 1))
    for shape, has in (((1, smallest, smallest - 1), f"{smallest}x{smallest - 1}"), ((60,), "(60,)")):
        text = message(lambda shape=shape: build(kind, {}, shape))
        assert f"at least {smallest}x{smallest}" in text
        assert has in text
        assert "; use mlp or logistic" in text


@pytest.mark.parametrize(
    ("kind", "params", "shape", "line"),
    [
        (SACNN, {}, (63,), "at least 64 values, but this data set has samples of shape (63,); use mlp or logistic"),
        (SACNN, {}, (1, 28, 28), "samples of shape (1, 28, 28)"),
        (CharLSTM, {}, (1, 28, 28), "rows of characters, but this data set has samples of shape (1, 28, 28); use the"),
        (EfficientNetB0, SCRATCH, (1, 32, 32), "needs images of 3 channels, this data set has 1"),
        (EfficientNetB0, SCRATCH, (3, 31, 32), "at least 32x32, this data set has 31x32"),
    ],
)
def test_unsuitable_shapes(kind, params, shape, line):
    assert line in message(lambda: build(kind, params, shape))


def test_char_lstm_reads_texts_to_their_end():
    net = build(CharLSTM, {"hidden": 8}, (6,))
    x = torch.tensor([[1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9]], dtype=torch.uint8)
    features = net.features(x)
    assert not torch.equal(features[0], features[1])  # the first character counts
    assert (features[0] - features[2]).abs().max() > 2 * (features[0] - features[1]).abs().max()  # the last one more
    torch.testing.assert_close(features[0], net.body.lstm(net.body.embedding(x[:1].int()))[1][0][-1, 0])


def test_text_and_measurements_are_distinguished():
    texts = message(lambda: build(CharLSTM, {}, (6,))(torch.zeros(2, 6)))
    assert texts.startswith("model: needs a data set of characters, such as shakespeare; use a net")
    numbers = message(lambda: build(MLP, {}, (6,))(torch.zeros(2, 6, dtype=torch.uint8)))
    assert numbers == "model: needs measurements, but this data set contains characters; use char_lstm"


def test_deep_networks_without_normalisation_keep_the_scale_of_activations():
    # torch's own initialisation leaves 0.006 and 0.04
    assert 0.05 < build(VGG11, {}, (3, 32, 32)).features(torch.randn(64, 3, 32, 32)).std() < 10
    assert 0.05 < build(SACNN, {}, (256,)).features(torch.randn(64, 256)).std() < 10


def test_wide_resnet_halves_the_picture_twice():
    small = build(WideResNet, {"depth": 10, "widen": 1}, (3, 32, 32)).eval()
    shapes = []
    for block in small.body[1:4]:
        block.register_forward_hook(lambda *args: shapes.append(args[-1].shape))
    small(torch.randn(1, 3, 32, 32))
    assert shapes == [(1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)]


def test_parameters_are_checked():
    with pytest.raises(ValueError, match="27 is not 6 n \\+ 4, such as 10, 16, 22, 28 or 40"):
        WideResNet.Params(depth=27)
