"""ResNets for small images: torchvision's with a 3x3 stem of stride 1 and no max-pooling, the usual change for 32x32.

Counts are parameters without the classifier, at 3 channels.
"""

from collections.abc import Callable

from fl_labelskew_registry import Network
from torch import nn

from fl_labelskew_plugins.models.base import FeatureNet, image_shape
from fl_labelskew_plugins.params import Params


def small_images(resnet: Callable[[], nn.Module], channels: int) -> nn.Module:
    """A ResNet of torchvision's for small images of ``channels``, without its classifier."""
    body = resnet()
    body.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    body.maxpool = nn.Identity()
    body.fc = nn.Identity()
    return body


class ResNet18(Network):
    """ResNet18 for small images: FedMR's "modified version of ResNet18" (C.1.1), FedShift's for CIFAR10 and CINIC10.

    11,168,832 parameters, d = 512. With batch normalisation's running statistics and the classifier of 10 classes,
    11,183,582 numbers, and 11,182,430 at 1 channel: FedMR's table 3 prints 11.184 M and, for FMNIST, 11.182 M.
    """

    class Params(Params):
        """No parameters."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        """A fresh module."""
        from torchvision.models import resnet18

        channels, _, _ = image_shape("resnet18", input_shape, 8)
        return FeatureNet(small_images(resnet18, channels), 512, num_classes)


class ResNet50(Network):
    """ResNet50 for small images, FedShift's for Tiny-ImageNet (section 4.1): 23,500,352 parameters, d = 2048."""

    class Params(Params):
        """No parameters."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        """A fresh module."""
        from torchvision.models import resnet50

        channels, _, _ = image_shape("resnet50", input_shape, 8)
        return FeatureNet(small_images(resnet50, channels), 2048, num_classes)
