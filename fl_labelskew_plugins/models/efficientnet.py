"""EfficientNet-b0: Tan and Le, "EfficientNet: Rethinking Model Scaling for CNNs", ICML 2019."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fl_labelskew_registry import LabelSkewError
from pydantic import Field
from torch import nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.models.base import ImageNetwork
from fl_labelskew_plugins.models.pretrained import AUTO, NONE, load_imagenet


class EfficientNetB0(ImageNetwork):
    """Torchvision's EfficientNet-b0, for ISIC2019 in FLamby and FedMR: 4,007,548 parameters, d = 1280.

    FedMR's table 3 prints 4.875 M numbers, and 0.005 M more for prototypes of 8 classes. Only ``features: 640`` gives
    both: 4,874,581 with running statistics and classifier, and 5,120. The layer and its ReLU are inferred from these
    numbers; neither the paper nor FedMR's public code shows them.
    """

    name, smallest = "efficientnet_b0", 32
    trained_params: ClassVar[Mapping[str, Any]] = {"weights": NONE}

    class Params(params.Params):
        weights: Annotated[str, params.IS_PATH] = Field(
            AUTO,
            min_length=1,
            description=f"ImageNet weights: a .pth or .safetensors file; {AUTO}: from torchvision's cache, otherwise "
            f"random with a warning; {NONE}: random.",
        )
        features: int | None = Field(None, ge=1, description="d of an additional dense layer with ReLU (FedMR: 640).")
        dropout: float = Field(0.2, ge=0, lt=1, description="Share of features dropped in training.")

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        from torchvision.models import EfficientNet_B0_Weights, efficientnet_b0

        if channels != 3:
            raise LabelSkewError(f"model efficientnet_b0: needs images of 3 channels, this data set has {channels}")
        net = efficientnet_b0()
        cached = EfficientNet_B0_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
        load_imagenet(net, self.params.weights, name="efficientnet_b0", cached=cached, head="classifier.")
        layers, d = [net.features, net.avgpool, nn.Flatten()], 1280
        if self.params.features is not None:
            layers += [nn.Linear(d, self.params.features), nn.ReLU()]
            d = self.params.features
        return nn.Sequential(*layers, nn.Dropout(self.params.dropout)), d
