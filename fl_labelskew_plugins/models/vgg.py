"""VGG11: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015."""

from fl_labelskew_registry import Network
from pydantic import Field
from torch import nn

from fl_labelskew_plugins.models.base import FeatureNet, he_normal, image_shape
from fl_labelskew_plugins.params import Params

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # configuration A; a max-pooling ends each


class VGG11(Network):
    """VGG11's eight convolutions and no dense layer but the classifier, as FedRS uses it, "without BN in PyTorch".

    At 3 channels: 9,220,480 parameters, d = 512 and 9 layers with the classifier, which is FedRS's table 4. What the
    poolings leave of images above 32x32 is averaged. MAP's figure 6 has it with batch normalisation.
    """

    class Params(Params):
        """Parameters of vgg11."""

        batch_norm: bool = Field(False, description="Whether each convolution is followed by batch normalisation.")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        """A fresh module."""
        channels, _, _ = image_shape("vgg11", input_shape, 32)
        layers: list[nn.Module] = []
        before = channels
        for stage in STAGES:
            for width in stage:
                layers.append(nn.Conv2d(before, width, 3, padding=1))
                if self.params.batch_norm:
                    layers.append(nn.BatchNorm2d(width))
                layers.append(nn.ReLU(inplace=True))
                before = width
            layers.append(nn.MaxPool2d(2))
        body = he_normal(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), "fan_out")  # as torchvision's
        return FeatureNet(body, before, num_classes)
