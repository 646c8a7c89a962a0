"""ISIC 2019 by six centres, from FLamby's files: 18,597 + 4,650 images of skin lesions in 8 classes.

Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", 2022; images of Tschandl et al. 2018 (HAM10000), Codella et al. 2017 and Hernández-Pérez et al. 2024
(BCN20000), CC-BY-NC 4.0. Images are decoded during training, prepared and augmented as in FLamby.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, Images, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data import fakes, pictures
from fl_labelskew_plugins.data.files import readable, valid_file
from fl_labelskew_plugins.data.stats import IMAGENET
from fl_labelskew_plugins.data.table import VALID_FILE
from fl_labelskew_plugins.machine.files import check_regular, read_text, write_text
from fl_labelskew_plugins.machine.text import counted
from fl_labelskew_plugins.params import Params

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image
    from torch import Tensor

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
TABLE = {
    "train": (
        (2279, 3363, 2245, 606, 923, 97, 87, 330),
        (20, 2977, 2, 0, 96, 23, 45, 0),
        (533, 1470, 174, 20, 379, 40, 64, 11),
        (276, 649, 223, 86, 406, 20, 3, 144),
        (166, 349, 0, 0, 140, 0, 0, 0),
        (58, 276, 5, 0, 6, 4, 2, 0),
    ),
    "test": (
        (578, 843, 564, 131, 215, 27, 24, 101),
        (4, 743, 0, 0, 28, 7, 9, 0),
        (147, 362, 37, 1, 96, 11, 18, 0),
        (66, 154, 73, 23, 84, 10, 0, 42),
        (49, 66, 0, 0, 49, 0, 0, 0),
        (9, 74, 0, 0, 4, 0, 1, 0),
    ),
}
"""Samples per centre and class in FLamby's split."""

PREPARED, SPLIT = "ISIC_2019_Training_Input_preprocessed", "train_test_split"
CHECKED = ".labelskew-checked"  # next to the pictures
SHORT_SIDE = 224
HOLE, HOLES = 16, 8
SPLIT_COLUMNS = ("image", *CLASSES, "UNK", "target", "center", "fold", "fold2")


class ISIC2019(Dataset):
    """ISIC 2019; samples are ``(3, crop, crop)`` uint8, decoded when needed; groups are the six centres."""

    source: ClassVar[str] = (
        "the scripts of https://github.com/owkin/FLamby (flamby/datasets/fed_isic2019), 9 GB, CC-BY-NC; see "
        "docs/isic2019.md"
    )
    picture_keys = ("crop",)

    class Params(Params):
        crop: int = Field(200, ge=16, le=224, description="Height and width of the network's input in pixels.")
        centres: tuple[Annotated[int, Field(ge=0, lt=len(CENTRES))], ...] | None = Field(
            None, min_length=1, description="Centres to read, 0 to 5; default: all. Each silo sets its own."
        )
        on_bad_sample: pictures.OnBadSample = Field(
            "stop", description="Treatment of broken images, and of rows without an image or images without a row."
        )

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        wrong = "download: true is not supported" if download else "data_args.data_cache_dir is not set"
        if data_dir is not None and not download:
            missing = [name for name in (PREPARED, SPLIT) if not os.path.exists(data_dir / name)]
            wrong = f"no {', '.join(missing)} in {data_dir}" if missing else ""
        if wrong:
            raise LabelSkewError(f"data set isic2019: {wrong}; get the data set from {self.source}")

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self._load(data_dir, download=download, folds=("train", "test"))

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self._load(data_dir, download=download, folds=("test",))

    def picture(self, file: Path) -> NDArray[np.uint8]:
        picture = pictures.opened(file)
        if min(picture.size) != SHORT_SIDE:  # not prepared; a prepared image is a JPEG
            kept = io.BytesIO()
            prepared(picture).save(kept, format="JPEG")
            picture = pictures.opened(kept)
        return np.asarray(centre_of(picture, self.params.crop)).transpose(2, 0, 1)

    def survey(self, data_dir: Path | None) -> fakes.SurveyRows:
        root = data_dir or Path()
        with readable(f"data set isic2019: {root}"):
            files = _names(root) if (root / PREPARED).is_dir() else set()
            files_row = ("pictures", str(len(files)) if files else "missing", str(np.sum([*TABLE.values()])))
            if not os.path.isfile(root / SPLIT):
                return [(SPLIT, "missing", "found"), files_row]
            listed, named = _rows(root, [])
        rows = [
            (SPLIT, "found", "found"),
            files_row,
            ("rows without a picture", str(len({*listed.image} - files)), "0"),
            ("pictures without a row", str(len(files - named)), "0"),
            ("rows of no known centre or class", str(len(named) - len(listed)), "0"),
            ("samples of each class", " ".join(CLASSES), " ".join(CLASSES)),
        ]
        for fold, expected in TABLE.items():
            for centre, name in enumerate(CENTRES):
                targets = listed.target[(listed.centre == centre) & (listed.fold == fold)]
                found = " ".join(map(str, np.bincount(targets, minlength=len(CLASSES))))
                published = " ".join(map(str, expected[centre]))
                rows.append((f"centre {centre} {name}, {fold}", found if len(targets) else "missing", published))
        return rows

    def broken(self, data_dir: Path | None) -> list[str]:
        self.check(data_dir, download=False)
        root = data_dir or Path()
        with readable(f"data set isic2019: {root}"):
            named = {*self._chosen(_rows(root, [])[0]).image}
            return [line for _, line in _broken(root, named & _names(root))]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        rng, table = seeds.numpy_generator(seed, "fake lesions"), np.array([*TABLE.values()])
        least, number = int((table > 0).sum()), samples or 240
        if number < least:
            raise mistake("data set isic2019", f"{number} samples are too few", f"at least {least}")
        more = rng.multinomial(number - least, (table / table.sum()).ravel()).reshape(table.shape)
        cells = np.repeat(np.argwhere(table >= 0), (more + (table > 0)).ravel(), axis=0)
        patterns = fakes.patterns(len(CLASSES), (3, SHORT_SIDE, 300), rng)
        lines = [",".join(SPLIT_COLUMNS)]
        for (part, centre, target), i in zip(cells.tolist(), rng.permutation(10**6), strict=False):
            image, fold = f"ISIC_{i:07d}", [*TABLE][part]
            truth = ["1.0" if c == target else "0.0" for c in range(len(CLASSES) + 1)]
            lines.append(",".join([image, *truth, str(target), str(centre), fold, f"{fold}_{centre}"]))
            pixels = fakes.noisy(patterns, np.array([target]), rng)[0]
            fakes.write_picture(out / PREPARED / f"{image}.jpg", pixels)
        (out / SPLIT).write_text("\n".join([*lines, ""]), encoding="utf-8")

    def _load(self, data_dir: Path | None, *, download: bool, folds: tuple[str, ...]) -> Data:
        self.check(data_dir, download=download)
        root = data_dir or Path()
        bad: list[str] = []
        with readable(f"data set isic2019: {root}"):
            rows, named = _rows(root, bad)
            wanted = self._chosen(rows[rows.fold.isin(folds)])
            unusable = _unusable(root, wanted.image.tolist(), named, bad)
        pictures.settle(bad, self.params.on_bad_sample)
        wanted = wanted[~wanted.image.isin(unusable)]
        if wanted.empty:
            raise LabelSkewError(f"data set isic2019: {root} has no usable sample of {' and '.join(folds)}")
        crop = self.params.crop

        def part(fold: str) -> Arrays:
            half = wanted[wanted.fold == fold]
            files = [str(root / PREPARED / f"{name}.jpg") for name in half.image]
            images = Images(files, (3, crop, crop), partial(read_lesion, crop=crop))
            return Arrays(images, np.array(half.target, np.int64), np.array(half.centre, np.int64))

        return Data(part("train"), part("test"), list(CLASSES), *IMAGENET, group_names=CENTRES)

    def _chosen(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows if self.params.centres is None else rows[rows.centre.isin(self.params.centres)]


def _rows(root: Path, bad: list[str]) -> tuple[pd.DataFrame, set[str]]:
    """Usable rows (image, target, centre, fold), and all images; errors are added to ``bad``."""
    import pandas as pd

    table = root / SPLIT
    with valid_file(table, *VALID_FILE):
        check_regular(table)
        frame = pd.read_csv(
            table, dtype=str, encoding="utf-8-sig", index_col=False, usecols=lambda name: name in SPLIT_COLUMNS
        )
    if missing := [name for name in SPLIT_COLUMNS if name not in frame]:
        raise mistake(table, f"has no column {', '.join(missing)}", f"the columns {','.join(SPLIT_COLUMNS)}")
    if (cut := frame.isna().any(axis=1)).any():
        line = int(cut.to_numpy().argmax()) + 2
        raise LabelSkewError(f"{table}: line {line} is incomplete; download the file again")
    if len(duplicates := frame.image[frame.image.duplicated()]):
        raise LabelSkewError(f"{table}: image {duplicates.iloc[0]} has two rows; keep one of them")
    marked = (frame[list(CLASSES)].apply(pd.to_numeric, errors="coerce") == 1).to_numpy()
    centres = pd.to_numeric(frame.center, errors="coerce")
    known = centres.isin(range(len(CENTRES)))
    clear = (marked.sum(axis=1) == 1) & frame.fold.isin([*TABLE])
    for images, problem in (
        (frame.image[~known], "of a centre that is not one of FLamby's six"),
        (frame.image[known & ~clear], "without exactly one of the 8 classes, or a fold other than train and test"),
    ):
        if len(images):
            bad.append(f"{table}: {_some([*images])} {problem}")
    columns = {"image": frame.image, "target": marked.argmax(axis=1), "centre": centres, "fold": frame.fold}
    return pd.DataFrame(columns)[known & clear].astype({"centre": int}), {*frame.image}


def _unusable(root: Path, images: Sequence[str], named: set[str], bad: list[str]) -> set[str]:
    """Missing or broken images; errors, also of images that are not ``named``, are added to ``bad``."""
    files, folder = _names(root), root / PREPARED
    if strays := sorted(files - named):
        bad.append(f"{folder}: {_some(strays)} without a row in the tables")
    if missing := [image for image in images if image not in files]:
        bad.append(f"{folder}: no picture for {_some(missing)} of the tables")
    if broken := _checked(root, files.intersection(images)):
        bad.append(f"{folder}: {_some(broken)} broken, or not an image")
    return {*missing, *broken}


def _checked(root: Path, images: set[str]) -> list[str]:
    """Broken images. A digest of sizes and times marks a folder of sound ones."""
    stats = [(image, os.stat(root / PREPARED / f"{image}.jpg")) for image in sorted(images)]
    digest = hashlib.sha256("".join(f"{i} {s.st_size} {s.st_mtime_ns}\n" for i, s in stats).encode()).hexdigest()
    file = root / PREPARED / CHECKED
    if file.is_file() and digest in read_text(file).split():
        return []
    broken = [image for image, _ in _broken(root, images)]
    if not broken:
        with suppress(OSError):  # a read-only folder: check again next time
            write_text(file, digest + "\n")
    return broken


def _broken(root: Path, images: set[str]) -> list[tuple[str, str]]:
    folder = root / PREPARED
    task = f"checking {len(images)} pictures of {folder}"
    return pictures.faults(lambda image: pictures.opened(folder / f"{image}.jpg", draft=1), sorted(images), task)


def _names(root: Path) -> set[str]:
    with os.scandir(root / PREPARED) as entries:
        return {e.name[:-4] for e in entries if e.name.endswith(".jpg") and not e.name.startswith(".")}


def _some(images: Sequence[str]) -> str:
    return f"{counted(len(images), 'picture')} (first: {images[0]})"


def colour_constancy(pixels: NDArray[np.uint8], power: float = 6.0) -> NDArray[np.uint8]:
    """Scale channels of ``(H, W, 3)`` by ``1 / (sqrt(3) e_c)``, ``e`` the unit vector of the power means.

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


def centre_of(picture: Image, crop: int) -> Image:
    """The centre ``(crop, crop)`` of an image; smaller images get a black frame."""
    from torchvision.transforms import v2

    centre: Image = v2.functional.center_crop(picture, [crop, crop])
    return centre


def read_lesion(file: str, augment: bool, *, crop: int) -> Tensor:
    """Read a prepared image as ``(3, crop, crop)`` uint8: the centre, or augmented.

    Augmentation is FLamby's, with torchvision's transforms. The area around a rotated image is black; FLamby mirrors
    the image.
    """
    from torchvision.transforms import v2

    picture = pictures.opened(file)
    if not augment:
        centre: Tensor = v2.functional.pil_to_tensor(centre_of(picture, crop))
        return centre
    bilinear = v2.InterpolationMode.BILINEAR
    affine = v2.RandomAffine(degrees=50.0, scale=(0.93, 1.07), shear=0.1, interpolation=bilinear)
    steps = v2.Compose(
        [
            v2.RandomApply([affine]),
            v2.RandomApply([v2.ColorJitter(brightness=0.15, contrast=0.1)]),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomCrop(crop, pad_if_needed=True),
        ]
    )
    return with_holes(v2.functional.pil_to_tensor(steps(picture)))


def with_holes(pixels: Tensor) -> Tensor:
    """With probability 1/2, set 1 to 8 squares of ``(C, H, W)`` to 0, in place."""
    import torch

    if torch.rand(()) < 0.5:
        for _ in range(int(torch.randint(1, HOLES + 1, ()))):
            top, left = (int(torch.randint(0, max(side - HOLE, 0) + 1, ())) for side in pixels.shape[1:])
            pixels[:, top : top + HOLE, left : left + HOLE] = 0
    return pixels
