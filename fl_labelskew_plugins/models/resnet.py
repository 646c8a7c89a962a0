"""ResNets for small images: torchvision's with a 3x3 stem of stride 1 and no max-pooling.

Weights from a file need torchvision's stem, 7x7 of stride 2 and max-pooling. Parameter counts exclude the classifier,
at 3 channels.
"""

from typing import Any, Literal

from fl_labelskew_registry import mistake
from pydantic import Field, model_validator
from torch import nn

from fl_labelskew_plugins.models.pretrained import Pretrained, load_imagenet


class _ResNet(Pretrained):
    smallest = 8

    class Params(Pretrained.Params):
        stem: Literal["small", "imagenet"] = Field(
            "small", description="First layers: for small images, or torchvision's; default: imagenet with weights."
        )

        @model_validator(mode="before")
        @classmethod
        def _default_stem(cls, values: Any) -> Any:
            return {"stem": "imagenet", **values} if isinstance(values, dict) and values.get("weights") else values

        @model_validator(mode="after")
        def _weights_need_imagenet_stem(self) -> "_ResNet.Params":
            if self.weights is not None and self.stem != "imagenet":
                raise ValueError("weights can only be used with stem: imagenet; set that, or omit weights")
            return self

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        from torchvision import models

        body = models.get_model(self.name)
        d = body.fc.in_features
        if self.params.stem == "imagenet":
            if channels != 3:
                needs = f"stem: imagenet needs images of 3 channels, this data set has {channels}"
                raise mistake(f"model {self.name}", needs, "data_args.channels: 3, or stem: small without weights")
            load_imagenet(body, self.params.weights, name=self.name, head="fc.")
            body.fc = nn.Identity()
            return body, d
        body.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
        body.maxpool = body.fc = nn.Identity()
        return body, d


class ResNet18(_ResNet):
    """ResNet18 for small images: FedMR's "modified version of ResNet18" (C.1.1), FedShift's for CIFAR10 and CINIC10.

    11,168,832 parameters, d = 512. With running statistics and a classifier of 10 classes, 11,183,582 numbers, and
    11,182,430 at 1 channel: FedMR's table 3 prints 11.184 M and, for FMNIST, 11.182 M.
    """

    name = "resnet18"


class ResNet50(_ResNet):
    """ResNet50 for small images, FedShift's for Tiny-ImageNet (section 4.1): 23,500,352 parameters, d = 2048."""

    name = "resnet50"
