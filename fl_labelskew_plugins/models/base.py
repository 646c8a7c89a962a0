"""The module that all networks here are: a body that gives features, and a linear classifier."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from fl_labelskew_registry import mistake
from torch import nn


class FeatureNet(nn.Module):
    """``forward(x) = classifier(features(x))``.

    Args:
        body: gives ``(B, ...)`` with ``d`` values a sample, after its last non-linearity.
        num_features: ``d``.
        num_classes: ``C``.
        text: whether inputs are numbers of characters (uint8), as they are stored, rather than measurements.
    """

    def __init__(self, body: nn.Module, num_features: int, num_classes: int, *, text: bool = False) -> None:
        super().__init__()
        self.body = body
        self.classifier = nn.Linear(num_features, num_classes)
        self.text = text

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs ``(B, ...)`` to features ``(B, d)``.

        Raises:
            LabelSkewError: the data set holds numbers of characters and this is no network for them, or vice versa.
        """
        if x.is_floating_point() == self.text:
            if self.text:
                network = "a network for measurements (mlp, logistic, ...)"
                raise mistake("model", "needs a data set of characters, such as shakespeare", network)
            raise mistake("model", "needs measurements, and this data set holds characters", "char_lstm")
        out: torch.Tensor = self.body(x)
        return out.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs ``(B, ...)`` to logits ``(B, C)``."""
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits


def he_normal(body: nn.Module, mode: Literal["fan_in", "fan_out"]) -> nn.Module:
    """Kaiming's normal weights and zero biases for every convolution.

    Without them or batch normalisation, six convolutions and more hardly begin to learn.
    """
    for module in body.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return body


def image_shape(name: str, shape: Sequence[int], smallest: int) -> tuple[int, int, int]:
    """``(channels, height, width)`` of a sample.

    Raises:
        LabelSkewError: not an image, or one side is below ``smallest`` pixels.
    """
    needs = f"needs images of at least {smallest}x{smallest}, this data set has "
    if len(shape) != 3:
        raise mistake(f"model {name}", f"{needs}samples of shape {tuple(shape)}", "mlp or logistic")
    channels, height, width = shape
    if min(height, width) < smallest:
        raise mistake(f"model {name}", f"{needs}{height}x{width}", "mlp or logistic")
    return channels, height, width


def flat_size(shape: Sequence[int]) -> int:
    """Values of a sample of this shape."""
    return math.prod(shape)
