import numpy as np
import pytest
import torch
from fl_labelskew_registry import Arrays, Data, Images, LabelSkewError
from torchvision.transforms.v2 import functional

from fl_labelskew_plugins.engine import augment
from fl_labelskew_plugins.engine.samples import samples

RNG = torch.Generator().manual_seed(3)


def pictures(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=RNG)


def test_flip_mirrors_the_chosen_samples():
    x = pictures(4, 3, 5, 7)
    flipped = augment.flip(x, torch.tensor([True, False, True, False]))
    assert torch.equal(flipped[0], functional.horizontal_flip(x[0]))
    assert torch.equal(flipped[1], x[1])


@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (5, 3, 17, 32)])
def test_crop_takes_a_separate_position_of_the_padded_picture_per_sample(shape):
    x = pictures(*shape)
    height, width = shape[2:]
    top = torch.arange(len(x)) % (2 * (height // 8) + 1)
    left = (torch.arange(len(x)) + 1) % (2 * (width // 8) + 1)
    for sample, cut, row, column in zip(x, augment.crop(x, top, left), top.tolist(), left.tolist(), strict=True):
        padded = functional.pad(sample, [width // 8, height // 8])
        assert torch.equal(cut, functional.crop(padded, row, column, height, width))


@pytest.mark.parametrize("channels", [1, 3])
def test_colour_equals_torchvision_with_separate_factors_per_sample(channels):
    x = pictures(8, channels, 9, 9)
    factors = 0.8 + 0.4 * torch.rand(3, 8, generator=RNG)
    for sample, changed, factor in zip(x, augment.colour(x, factors), factors.T.tolist(), strict=True):
        expected = functional.adjust_brightness(sample, factor[0])
        expected = functional.adjust_contrast(expected, factor[1])
        if channels == 3:
            expected = functional.adjust_saturation(expected, factor[2])
        assert (changed.int() - expected.int()).abs().max() <= 1  # of rounding


def test_draws_are_separate_per_sample_and_repeat_with_the_seed():
    x = pictures(1, 3, 16, 16).expand(64, 3, 16, 16)
    change = augment.Augment(["flip", "crop", "colour"], (3, 16, 16), torch.uint8)
    first, again, other = (change(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.dtype == torch.uint8
    assert len(torch.unique(first, dim=0)) > 60
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def parts(names, x):
    arrays = Arrays(x, np.zeros(len(x), np.int64))
    return samples(Data(arrays, arrays, ["a"]), torch.device("cpu"), augment=names)


def test_augment_only_in_training():
    x = pictures(10, 3, 8, 8).numpy()
    train, test = parts(["crop"], x)
    plain, _ = parts([], x)
    batches = [torch.arange(10)]

    def inputs(part, seed):
        return next(part.stream(batches, seed=seed))[1]

    assert not torch.equal(inputs(train, 1), inputs(plain, 1))
    assert torch.equal(inputs(train, None), inputs(plain, 1))
    assert torch.equal(inputs(test, 1), inputs(plain, 1))
    assert torch.equal(train.inputs(batches[0]), inputs(plain, None))


@pytest.mark.parametrize(
    ("x", "names", "line"),
    [
        (np.zeros((4, 80), np.uint8), ["crop"], r"is for images, .* type uint8; use train_args.augment: \[\]"),
        (np.zeros((4, 3, 8, 8), "f4"), ["colour"], "colour needs uint8 images with 1 or 3 channels, this data set"),
        (np.zeros((4, 2, 8, 8), np.uint8), ["colour"], "colour needs uint8 images with 1 or 3 channels"),
        (Images(["a.png"] * 4, (3, 8, 8), print), ["flip"], "this data set has its own augmentation"),
    ],
)
def test_augment_rejects_other_samples(x, names, line):
    with pytest.raises(LabelSkewError, match=f"^train_args.augment: .*{line}") as caught:
        parts(names, x)
    assert "\n" not in str(caught.value)
