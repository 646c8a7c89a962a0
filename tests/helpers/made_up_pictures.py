"""Read the made-up pictures of test_samples.py; a separate file, so that every process can import it."""

import os
import signal

import numpy as np
import torch
from fl_labelskew_registry import Arrays, Data, Images, LabelSkewError

from fl_labelskew_plugins.engine.samples import samples

CPU = torch.device("cpu")
SIZE = (3, 4, 4)


def read(file, augment):
    """Pixels that identify the file and the random draws."""
    if file == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    if file == "broken":
        raise LabelSkewError("broken: is not a valid picture")
    pixels = torch.full(SIZE, int(file), dtype=torch.uint8)
    if augment:
        pixels[0] = torch.randint(0, 256, ())
    return pixels


def streamed(workers, files=None):
    files = files or [str(number) for number in range(12)]
    return parts(Images(files, SIZE, read), Images(files[:7], SIZE, read), workers=workers)


def parts(train, test, **options):
    """Samples of a training and of a test part of 12 and 7 pictures."""
    made = [Arrays(x, np.arange(len(x)) % 3) for x in (train, test)]
    return samples(Data(*made, ["a", "b", "c"], mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0)), CPU, **options)
