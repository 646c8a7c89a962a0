"""ResNet18 for small images: FedMR's "modified version of ResNet18" for FMNIST, SVHN and CIFAR10 (section C.1.1)."""

from fl_labelskew_registry import Network
from torch import nn

from fl_labelskew_plugins.models.base import FeatureNet, image_shape
from fl_labelskew_plugins.params import Params


class ResNet18(Network):
    """Torchvision's ResNet18 with a 3x3 stem of stride 1 and no max-pooling, the usual change for 32x32 and 28x28.

    At 3 channels: 11,168,832 parameters, d = 512; 11,173,962 with the classifier of 10 classes.
    """

    class Params(Params):
        """No parameters."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        """A fresh module."""
        from torchvision.models import resnet18

        channels, _, _ = image_shape("resnet18", input_shape, 8)
        body = resnet18()
        body.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
        body.maxpool = nn.Identity()
        body.fc = nn.Identity()
        return FeatureNet(body, 512, num_classes)
