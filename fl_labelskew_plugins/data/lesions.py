"""Preparation and augmentation of skin lesion images as in FLamby (Ogier du Terrail et al., 2022, appendix)."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_labelskew_plugins.data.pictures import opened

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

SHORT_SIDE = 224
HOLE, HOLES = 16, 8


def colour_constancy(pixels: NDArray[np.uint8], power: float = 6.0) -> NDArray[np.uint8]:
    """Scale each channel of ``(H, W, 3)`` by ``1 / (sqrt(3) e_c)``, ``e`` the unit vector of the power means.

    Finlayson and Trezzi, "Shades of gray and colour constancy", 2004, eq. 3, with the Minkowski norm ``power``.
    """
    values = pixels.astype(np.float32)
    light = np.power(np.power(values, power).mean(axis=(0, 1), dtype=np.float64), 1 / power)
    light /= max(float(np.sqrt(np.square(light).sum())), np.finfo(np.float64).tiny)
    scale = np.where(light > 0, 1 / (np.sqrt(3) * np.where(light > 0, light, 1.0)), 1.0)
    return np.clip(values * scale.astype(np.float32), 0, 255).astype(np.uint8)


def prepared(picture: Image) -> Image:
    """Resize the shorter side of an original image to 224, and apply colour constancy."""
    from PIL import Image

    ratio = SHORT_SIDE / min(picture.size)
    width, height = (max(SHORT_SIDE, int(side * ratio)) for side in picture.size)
    return Image.fromarray(colour_constancy(np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))))


def sample(file: Path, crop: int) -> NDArray[np.uint8]:
    """An image as ``(3, crop, crop)`` uint8: prepared unless the shorter side is 224, stored as JPEG, and cropped."""
    picture = opened(file)
    if min(picture.size) != SHORT_SIDE:
        kept = io.BytesIO()
        prepared(picture).save(kept, format="JPEG")
        picture = opened(kept)
    return np.asarray(_centre(crop)(picture)).transpose(2, 0, 1)


@dataclass(frozen=True)
class LesionReader:
    """Read a prepared image as ``(3, crop, crop)`` uint8: the centre, or augmented.

    Augmentation is FLamby's, with torchvision's transforms, each with probability 1/2. The area around a rotated image
    is black; FLamby mirrors the image. Smaller images get a black frame.
    """

    crop: int = 200

    def __call__(self, file: str, augment: bool) -> Tensor:
        from torchvision.transforms import v2

        picture = opened(file)
        steps = _augmentation(self.crop) if augment else _centre(self.crop)
        pixels: Tensor = v2.functional.pil_to_tensor(steps(picture))
        return with_holes(pixels) if augment else pixels


@cache
def _centre(crop: int) -> Any:
    from torchvision.transforms import v2

    return v2.CenterCrop(crop)


@cache
def _augmentation(crop: int) -> Any:
    from torchvision.transforms import v2

    bilinear = v2.InterpolationMode.BILINEAR
    affine = {"degrees": 50.0, "scale": (0.93, 1.07), "shear": 0.1, "interpolation": bilinear}
    return v2.Compose(
        [
            v2.RandomApply([v2.RandomAffine(**affine)]),
            v2.RandomApply([v2.ColorJitter(brightness=0.15, contrast=0.1)]),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomCrop(crop, pad_if_needed=True),
        ]
    )


def with_holes(pixels: Tensor) -> Tensor:
    """With probability 1/2, set 1 to 8 squares of ``(C, H, W)`` to 0, in place."""
    import torch

    if torch.rand(()) < 0.5:
        for _ in range(int(torch.randint(1, HOLES + 1, ()))):
            top, left = (int(torch.randint(0, max(side - HOLE, 0) + 1, ())) for side in pixels.shape[1:])
            pixels[:, top : top + HOLE, left : left + HOLE] = 0
    return pixels
