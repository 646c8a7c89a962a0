"""Small convolutional networks of the papers. Parameter counts exclude the classifier."""

import math
from collections.abc import Sequence
from itertools import pairwise

from fl_labelskew_registry import Network, mistake
from pydantic import Field
from torch import nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.models.base import FeatureNet, ImageNetwork, he_normal


def conv_pool(
    channels: int, sides: Sequence[int], widths: Sequence[int], kernel: int, padding: int = 0
) -> tuple[list[nn.Module], Sequence[int]]:
    """Blocks of convolution, 2x2 max-pooling and ReLU, one per entry of ``widths``, and their outputs' ``sides``."""
    layers: list[nn.Module] = []
    for before, after in zip([channels, *widths], widths, strict=False):
        # ReLU after pooling gives the same values and gradients with a quarter of the work
        layers += [nn.Conv2d(before, after, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
        sides = [(side + 2 * padding - kernel + 1) // 2 for side in sides]
    return layers, sides


class LeNet(ImageNetwork):
    """LeNet-5 with ReLU and max-pooling: conv 6 k5, conv 16 k5, fc 120, fc ``features``.

    ``features: 2`` with 28x28 grey images is FedRS's LeNet (figures 3, 4 and 12; table 4): 33,654 parameters, d = 2, 5
    layers. MAP's figure 5 shows it with and without the ReLU before the classifier.
    """

    name, smallest = "lenet", 16

    class Params(params.Params):
        features: int = Field(84, ge=1, description="d, features of the last hidden layer; 2 for the papers' plots.")
        relu_features: bool = Field(True, description="Whether the features pass a ReLU.")

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers, sides = conv_pool(channels, (height, width), [6, 16], 5)
        d = self.params.features
        layers += [nn.Flatten(), nn.Linear(16 * math.prod(sides), 120), nn.ReLU(), nn.Linear(120, d)]
        if self.params.relu_features:
            layers.append(nn.ReLU())
        return nn.Sequential(*layers), d


class TFCNN(ImageNetwork):
    """TensorFlow's tutorial network as in FedRS: conv 32, conv 64, conv 64, all k3, without dense layer.

    At 3x32x32: 56,320 parameters, d = 1024, 4 layers with the classifier, as in FedRS's table 4.
    """

    name, smallest = "tfcnn", 18

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers, (height, width) = conv_pool(channels, (height, width), [32, 64], 3)
        return nn.Sequential(*layers, nn.Conv2d(64, 64, 3), nn.ReLU()), 64 * (height - 2) * (width - 2)


class FedLCMNIST(ImageNetwork):
    """FedLC's CNN for MNIST and FMNIST, table 8: conv 10 k5, conv 20 k5, fc 320 -> 50; d = 50, 21,330 parameters.

    The table prints "stride=2, padding=2" for max-pooling, but only 2x2 windows without padding give 320 inputs.
    """

    name, smallest = "fedlc_cnn_mnist", 16

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers, sides = conv_pool(channels, (height, width), [10, 20], 5)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(20 * math.prod(sides), 50), nn.ReLU()), 50


class FedLCCIFAR(ImageNetwork):
    """FedLC's CNN for CIFAR10, table 9: three blocks of conv 128 k3 and max-pooling; d = 2048, 298,752 parameters.

    The table prints padding 0 for the convolutions, which leaves 512 features at 32x32; its dense layer has 2048
    inputs, as with padding 1, which is used here.
    """

    name, smallest = "fedlc_cnn_cifar", 8

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers, sides = conv_pool(channels, (height, width), [128] * 3, 3, 1)
        return nn.Sequential(*layers), 128 * math.prod(sides)


class FeCNN(ImageNetwork):
    """LEAF's CNN for FEMNIST, FedRS's FeCNN: conv 32 k5, conv 64 k5, both padded, fc 2048.

    At 1x28x28: 6,476,672 parameters, d = 2048, 4 layers with the classifier, as in FedRS's table 4.
    """

    name, smallest = "fecnn", 8

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers, sides = conv_pool(channels, (height, width), [32, 64], 5, 2)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * math.prod(sides), 2048), nn.ReLU()), 2048


class SACNN(Network):
    """A CNN for bytes of network traffic with the numbers of FedRS's SACNN: 15,984 parameters, d = 256, 7 layers.

    FedRS's table 4 prints only these numbers, and the data are not public. The layout is ours: six convolutions of
    kernel 3 along at least 64 values (widths 8, 16, 16, 16, 32, 128, max-pooling by 2 after all but the last), an
    average to two positions, and the classifier.
    """

    Params = params.Params

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        if len(input_shape) != 1 or input_shape[0] < 64:
            needs = f"needs rows of at least 64 values, but this data set has samples of shape {tuple(input_shape)}"
            raise mistake("model sacnn", needs, "mlp or logistic")
        widths = (8, 16, 16, 16, 32, 128)
        layers: list[nn.Module] = [nn.Unflatten(1, (1, input_shape[0]))]
        for before, width in pairwise((1, *widths)):
            layers += [nn.Conv1d(before, width, 3, padding=1), nn.MaxPool1d(2), nn.ReLU()]
        layers[-2:] = [nn.ReLU(), nn.AdaptiveAvgPool1d(2)]
        return FeatureNet(he_normal(nn.Sequential(*layers), "fan_in"), 256, num_classes)
