"""Random augmentation of images, with separate draws for each sample."""

from collections.abc import Sequence

import torch
from fl_labelskew_registry import mistake
from torch import Tensor

PADDING = 8  # a side divided by this
STRENGTH = 0.2  # relative change of each property by colour
GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601, as in torchvision


class Augment:
    """The augmentation in ``train_args.augment``; ``shape`` and ``dtype``: of a sample, which must be an image."""

    def __init__(self, names: Sequence[str], shape: Sequence[int], dtype: torch.dtype) -> None:
        self.names = names
        form = f"samples of shape {tuple(shape)} and type {str(dtype).removeprefix('torch.')}"
        if names and len(shape) != 3:
            raise mistake("train_args.augment", f"is for images, this data set has {form}", "train_args.augment: []")
        if "colour" in names and (dtype != torch.uint8 or shape[0] not in (1, 3)):
            what = f"colour needs uint8 images with 1 or 3 channels, this data set has {form}"
            raise mistake("train_args.augment", what, "flip or crop")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augment samples ``(B, C, H, W)``; ``generator`` is on the CPU."""
        if "flip" in self.names:
            x = flip(x, torch.rand(len(x), generator=generator) < 0.5)
        if "crop" in self.names:
            reach = [2 * (side // PADDING) + 1 for side in x.shape[2:]]
            x = crop(x, *(torch.randint(n, (len(x),), generator=generator) for n in reach))
        if "colour" in self.names:
            x = colour(x, 1 + STRENGTH * (2 * torch.rand(3, len(x), generator=generator) - 1))
        return x


def flip(x: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the ``chosen`` ``(B,)`` of samples ``(B, C, H, W)`` horizontally."""
    return torch.where(chosen.to(x.device)[:, None, None, None], x.flip(3), x)


def crop(x: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Pad ``(B, C, H, W)`` with zeros by an eighth of each side, and crop ``(H, W)`` at positions ``(B,)``."""
    height, width = x.shape[2:]
    padded = torch.nn.functional.pad(x, (width // PADDING,) * 2 + (height // PADDING,) * 2)
    rows = (top[:, None] + torch.arange(height)).to(x.device)
    columns = (left[:, None] + torch.arange(width)).to(x.device)
    sample = torch.arange(len(x), device=x.device)
    return padded.permute(0, 2, 3, 1)[sample[:, None, None], rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def colour(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply brightness, contrast and (of colour images) saturation of uint8 samples by ``factors`` ``(3, B)``."""
    brightness, contrast, saturation = factors.to(x.device)[:, :, None, None, None]
    pixels = _blend(x.float(), torch.zeros((), device=x.device), brightness)
    # float64: so that the sum does not depend on the number of threads
    mean = _grey(pixels).double().mean((1, 2, 3), keepdim=True).float()
    pixels = _blend(pixels, mean, contrast)
    if x.shape[1] == 3:
        pixels = _blend(pixels, _grey(pixels), saturation)
    return pixels.to(torch.uint8)


def _grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = (pixels[:, c : c + 1] * weight for c, weight in enumerate(GREY))
    return (red + green + blue).floor()


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (pixels * factor + other * (1 - factor)).clamp(0, 255).floor()
