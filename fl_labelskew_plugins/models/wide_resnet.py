"""Wide ResNet: Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146.

Unlike the paper's, the convolutions have biases, as in FedMR's network for CIFAR100 (section C.1.1),
https://github.com/meliketoy/wide-resnet.pytorch.
"""

from itertools import pairwise

import torch
from pydantic import Field, field_validator
from torch import nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.models.base import ImageNetwork


class Block(nn.Module):
    """Twice batch normalisation, ReLU and a 3x3 convolution, with dropout between; plus a shortcut."""

    def __init__(self, before: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.ReLU(inplace=True),
            nn.Conv2d(before, width, 3, padding=1),
            nn.Dropout(dropout),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1),
        )
        same = before == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, width, 1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(B, before, H, W)`` to ``(B, width, H / stride, W / stride)``."""
        out: torch.Tensor = self.residual(x) + self.shortcut(x)
        return out


class WideResNet(ImageNetwork):
    """Wide ResNet of three stages; WRN-28-10 is FedMR's network for CIFAR100, d = 640.

    At 3 channels WRN-28-10 has 36,482,880 parameters without the classifier. With running statistics and a classifier
    of 100 classes it has 36,564,957 numbers: FedMR's table 3 prints 36.565 M.
    """

    name, smallest = "wide_resnet", 8

    class Params(params.Params):
        depth: int = Field(28, ge=10, le=1000, description="Layers, 6 n + 4 for n blocks in each stage.")
        widen: int = Field(10, ge=1, description="Width: 16, 32 and 64 times this; the last one is d.")
        dropout: float = Field(0.3, ge=0, lt=1, description="Share of values dropped inside a block.")

        @field_validator("depth")
        @classmethod
        def _whole_blocks(cls, depth: int) -> int:
            if (depth - 4) % 6:
                raise ValueError(f"{depth} is not 6 n + 4, such as 10, 16, 22, 28 or 40")
            return depth

    def _body(self, channels: int, height: int, width: int) -> tuple[nn.Module, int]:
        options = self.params
        widths = [16, *(options.widen * width for width in (16, 32, 64))]
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1)]
        for stage, (before, after) in enumerate(pairwise(widths)):
            layers.append(Block(before, after, 2 if stage else 1, options.dropout))
            layers += [Block(after, after, 1, options.dropout) for _ in range((options.depth - 4) // 6 - 1)]
        layers += [nn.BatchNorm2d(widths[-1]), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers), widths[-1]
