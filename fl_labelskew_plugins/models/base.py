"""Base of the networks: a body that computes features, and a linear classifier."""

from typing import ClassVar, Literal

import torch
from fl_labelskew_registry import Network, mistake
from torch import nn

from fl_labelskew_plugins import params


class FeatureNet(nn.Module):
    """``forward(x) = classifier(features(x))``.

    ``body`` returns ``num_features`` values per sample, ``(B, ...)``, after its last non-linearity; ``text``: inputs
    are character indices (uint8).
    """

    def __init__(self, body: nn.Module, num_features: int, num_classes: int, *, text: bool = False) -> None:
        super().__init__()
        self.body = body
        self.classifier = nn.Linear(num_features, num_classes)
        self.text = text

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs ``(B, ...)`` to features ``(B, d)``; raise LabelSkewError for characters, or if they are missing."""
        if self.text and x.is_floating_point():
            network = "a network for measurements (mlp, logistic, ...)"
            raise mistake("model", "needs a data set of characters, such as shakespeare", network)
        if not self.text and not x.is_floating_point():
            raise mistake("model", "needs measurements, but this data set contains characters", "char_lstm")
        out: torch.Tensor = self.body(x)
        return out.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits


def he_normal(body: nn.Module, mode: Literal["fan_in", "fan_out"]) -> nn.Module:
    """Kaiming's weights and zero biases for every convolution; without them, deep networks hardly learn."""
    for module in body.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return body


class ImageNetwork(Network):
    """A network for images; ``smallest``: minimum side in pixels; ``name``: for messages."""

    Params = params.Params
    name: ClassVar[str]
    smallest: ClassVar[int]

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        """A fresh module for samples ``(channels, height, width)``; raise LabelSkewError for others or smaller ones."""
        needs = f"needs images of at least {self.smallest}x{self.smallest}, this data set has "
        if len(input_shape) != 3:
            raise mistake(f"model {self.name}", f"{needs}samples of shape {tuple(input_shape)}", "mlp or logistic")
        channels, height, width = input_shape
        if min(height, width) < self.smallest:
            raise mistake(f"model {self.name}", f"{needs}{height}x{width}", "mlp or logistic")
        return FeatureNet(*self._body(channels, height, width), num_classes)

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        """The body for such images, and ``d``."""
        raise NotImplementedError
