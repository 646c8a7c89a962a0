"""Images in folders named after their classes: ``train/<class>/*`` and ``test/<class>/*`` or ``val/<class>/*``.

CINIC-10, ImageNet subsets, HyperKvasir and the like. Without ``train/``, the folder itself holds the classes; without a
test part, one is split off. Classes are the folders in training, unless ``class_names`` lists them: a silo's own data
often lack some. A server that only tests needs ``test/`` or ``val/`` alone. Tiny-ImageNet's
``val/val_annotations.txt`` is read too.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data.split import stratified
from fl_labelskew_plugins.data.stats import moments
from fl_labelskew_plugins.params import Params

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
Samples = list[tuple[Path, str]]


def list_images(folder: Path) -> Samples:
    """All images below ``folder/<class>/``, each with its class, sorted; anything else is passed over.

    Raises:
        LabelSkewError: there is none, or a class has none.
    """
    samples: Samples = []
    for own in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        found = []
        for root, _, names in os.walk(own):
            found += [Path(root, name) for name in names if Path(name).suffix.lower() in SUFFIXES and name[0] != "."]
        if not found:
            raise LabelSkewError(
                f"data set image_folder: {own} has no images; at least one of {', '.join(sorted(SUFFIXES))}, "
                "or no such folder, would be right"
            )
        samples += [(path, own.name) for path in sorted(found)]
    if not samples:
        raise LabelSkewError(f"data set image_folder: {folder} has no class folders; <class>/<image> would be right")
    return samples


def list_annotated(file: Path) -> Samples:
    """Tiny-ImageNet's validation part: ``images/<name>``, with ``<name> TAB <class> TAB ...`` lines in ``file``."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise LabelSkewError(f"{file}: lines of image, tab, class would be right")
    return [(file.parent / "images" / row[0], row[1]) for row in rows]


def decode(path: Path, *, size: int, channels: int) -> NDArray[np.uint8]:
    """One image as ``(channels, size, size)``: the shorter side is resized to ``size``, then the centre is cut.

    Raises:
        LabelSkewError: the file is not an image, or broken.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            grey_or_colour = image.convert("L" if channels == 1 else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise LabelSkewError(f"{path}: is not a sound image ({' '.join(str(error).split())})") from error
    width, height = grey_or_colour.size
    scale = size / min(width, height)
    width, height = max(round(width * scale), size), max(round(height * scale), size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = grey_or_colour.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.uint8)
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Turn what goes wrong in listing a folder into a line."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise LabelSkewError(f"data set image_folder: {root}: cannot be read ({error})") from error


class ImageFolder(Dataset):
    """Image folders, decoded into memory once; samples are ``(channels, image_size, image_size)`` uint8."""

    class Params(Params):
        """Parameters of image_folder."""

        image_size: int = Field(32, ge=1, le=1024, description="Pixels of each side.")
        channels: Literal[1, 3] = Field(3, description="1 for grey, 3 for colour.")
        class_names: tuple[str, ...] | None = Field(
            None,
            min_length=1,
            description="Folders of all classes, in order; default: the folders of training, sorted.",
        )
        test_fraction: float = Field(0.2, gt=0, lt=1, description="Share of each class in test where there is none.")

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if there is no such folder; it cannot be downloaded."""
        if data_dir is None or not os.path.isdir(data_dir):
            what = "data_args.data_cache_dir is not set" if data_dir is None else f"{data_dir} is not a folder"
            raise LabelSkewError(
                f"data set image_folder: {what}; a folder with train/<class>/* and test/<class>/* (or val/) "
                "would be right"
            )

    def find(self, data_dir: Path) -> tuple[Samples, Samples | None]:
        """The images of the training part and of the test part, or None where that is to be split off."""
        if not (data_dir / "train").is_dir():
            return list_images(data_dir), None
        return list_images(data_dir / "train"), self.find_test(data_dir)

    def find_test(self, data_dir: Path) -> Samples | None:
        """The images of ``test/`` or ``val/``, or None where there is neither."""
        annotations = data_dir / "val" / "val_annotations.txt"
        if annotations.is_file():  # Tiny-ImageNet, whose test/ has no labels
            return list_annotated(annotations)
        for name in ("test", "val"):
            if (data_dir / name).is_dir():
                return list_images(data_dir / name)
        return None

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Decode all images."""
        self.check(data_dir, download=download)
        root = Path() if data_dir is None else data_dir
        with readable(root):
            train_samples, test_samples = self.find(root)
        names = self.names(train_samples, test_samples or [])
        train = self.decode_all(train_samples, names)
        if test_samples is not None:
            test = self.decode_all(test_samples, names)
        else:
            rows = stratified(train.y, test_fraction=self.params.test_fraction, seed=seed, where=str(root))
            train, test = (Arrays(train.x[r], train.y[r]) for r in rows)
        mean, std = moments(train.x)
        return Data(train, test, names, mean=mean, std=std)

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Decode ``test/`` or ``val/`` alone, normalised by its own moments; without either, the split-off part."""
        self.check_test(data_dir, download=download)
        root = Path() if data_dir is None else data_dir
        with readable(root):
            samples = None if (root / "train").is_dir() else self.find_test(root)
        if samples is None:
            return super().load_test(data_dir, download=download, seed=seed)
        names = self.names(samples, [])
        test = self.decode_all(samples, names)
        mean, std = moments(test.x)
        return Data(Arrays(test.x[:0], test.y[:0]), test, names, mean=mean, std=std)

    def names(self, samples: Samples, others: Samples) -> list[str]:
        """All classes in the order of their numbers: those that are given, or those of ``samples``.

        Raises:
            LabelSkewError: an image is of none of them.
        """
        given = self.params.class_names
        names = sorted({name for _, name in samples}) if given is None else list(given)
        unknown = [(path, name) for path, name in [*samples, *others] if name not in set(names)]
        if unknown and given is not None:
            raise LabelSkewError(
                f"{unknown[0][0]}: class {unknown[0][1]!r} is not one of the {len(names)} of data_args.class_names; "
                "all classes would be right"
            )
        if unknown:
            raise LabelSkewError(
                f"{unknown[0][0]}: test class {unknown[0][1]!r} is not one of the {len(names)} classes in training; "
                "a folder of this name in training, or none in test, would be right"
            )
        return names

    def decode_all(self, samples: Sequence[tuple[Path, str]], names: list[str]) -> Arrays:
        """Images and labels of one part."""
        size, channels = self.params.image_size, self.params.channels
        number = {name: c for c, name in enumerate(names)}
        x = np.empty((len(samples), channels, size, size), np.uint8)
        for i, (path, _) in enumerate(samples):
            x[i] = decode(path, size=size, channels=channels)
        return Arrays(x, np.array([number[name] for _, name in samples], np.int64))
