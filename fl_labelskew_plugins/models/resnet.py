"""ResNets for small images: torchvision's with a 3x3 stem of stride 1 and no max-pooling, the usual change for 32x32.

Counts are parameters without the classifier, at 3 channels.
"""

from torch import nn

from fl_labelskew_plugins.models.base import ImageNetwork


class _ResNet(ImageNetwork):
    smallest = 8

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        from torchvision import models

        body = models.get_model(self.name)
        d = body.fc.in_features
        body.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
        body.maxpool = body.fc = nn.Identity()
        return body, d


class ResNet18(_ResNet):
    """ResNet18 for small images: FedMR's "modified version of ResNet18" (C.1.1), FedShift's for CIFAR10 and CINIC10.

    11,168,832 parameters, d = 512. With batch normalisation's running statistics and the classifier of 10 classes,
    11,183,582 numbers, and 11,182,430 at 1 channel: FedMR's table 3 prints 11.184 M and, for FMNIST, 11.182 M.
    """

    name = "resnet18"


class ResNet50(_ResNet):
    """ResNet50 for small images, FedShift's for Tiny-ImageNet (section 4.1): 23,500,352 parameters, d = 2048."""

    name = "resnet50"
