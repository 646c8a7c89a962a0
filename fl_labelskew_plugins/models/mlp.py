"""Logistic regression and a multilayer perceptron."""

import math
from itertools import pairwise
from typing import Annotated

from fl_labelskew_registry import Network
from pydantic import Field
from torch import nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.models.base import FeatureNet


class Logistic(Network):
    """Multinomial logistic regression, FedLC's model for Synthetic; the features are the flat inputs."""

    Params = params.Params

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        return FeatureNet(nn.Flatten(), math.prod(input_shape), num_classes)


class MLP(Network):
    """Linear layers with ReLU; the features are the last hidden layer."""

    class Params(params.Params):
        hidden: list[Annotated[int, Field(ge=1)]] = Field(
            [128], min_length=1, description="Width of each hidden layer; the last one is d."
        )
        relu_features: bool = Field(True, description="Whether the features pass a ReLU.")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        widths = [math.prod(input_shape), *self.params.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        if not self.params.relu_features:
            layers.pop()
        return FeatureNet(nn.Sequential(*layers), widths[-1], num_classes)
