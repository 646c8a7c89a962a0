"""VGG11: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015."""

from pydantic import Field
from torch import nn

from fl_labelskew_plugins.models.base import he_normal
from fl_labelskew_plugins.models.pretrained import Pretrained, load_imagenet

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # configuration A; a max-pooling ends each


class VGG11(Pretrained):
    """VGG11's eight convolutions without dense layers before the classifier, as in FedRS, "without BN in PyTorch".

    At 3 channels: 9,220,480 parameters, d = 512 and 9 layers with the classifier, as in FedRS's table 4. Above 32x32,
    the output of the poolings is averaged. MAP's figure 6 uses batch normalisation.
    """

    name, smallest = "vgg11", 32

    class Params(Pretrained.Params):
        batch_norm: bool = Field(False, description="Whether each convolution is followed by batch normalisation.")

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        layers: list[nn.Module] = []
        before = channels
        for stage in STAGES:
            for after in stage:
                layers.append(nn.Conv2d(before, after, 3, padding=1))
                if self.params.batch_norm:
                    layers.append(nn.BatchNorm2d(after))
                layers.append(nn.ReLU(inplace=True))
                before = after
            layers.append(nn.MaxPool2d(2))
        body = he_normal(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), "fan_out")  # as torchvision's
        name = "vgg11_bn" if self.params.batch_norm else "vgg11"
        load_imagenet(nn.ModuleDict({"features": body}), self.params.weights, name=name, head="classifier.")
        return body, before
