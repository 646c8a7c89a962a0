"""A small tree of made-up pictures in the layout of FLamby's ISIC 2019."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fl_labelskew_registry import mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data import isic2019_tables as isic
from fl_labelskew_plugins.data import lesions

ASPECTS = (1.0, 4 / 3, 3 / 2, 3 / 4, 1.2)
DATASETS = ("BCN_nan", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK4nan", "HAM_vienna_dias")
COLOURS = ("#3c1e1e", "#965f3c", "#dc7882", "#be3c28", "#6e6e46", "#aa8cb4", "#780a3c", "#465a96")
"""Of the lesion, by class."""


def counts(samples: int) -> dict[str, NDArray[np.int64]]:
    """Samples by part, centre and class, in the table's proportions; where the table has any, there is at least one.

    Raises:
        LabelSkewError: too few for that.
    """
    tables = {fold: np.array(table, np.int64) for fold, table in isic.TABLE.items()}
    whole = sum(int(table.sum()) for table in tables.values())
    least = sum(int((table > 0).sum()) for table in tables.values())
    if samples < least + 1:
        raise mistake("data set isic2019", f"{samples} samples are too few", f"at least {least + 1}")
    share = samples / whole
    made = {fold: np.maximum(np.round(table * share).astype(np.int64), table > 0) for fold, table in tables.items()}
    while (over := sum(int(table.sum()) for table in made.values()) - samples) != 0:
        largest = np.unravel_index(made["train"].argmax(), made["train"].shape)
        made["train"][largest] -= int(np.sign(over))
    return made


def write(out: Path, samples: int, seed: int, *, raw: bool) -> None:
    """Pictures and tables into the empty folder ``out``; raw pictures are larger and not prepared."""
    from PIL import Image

    rng = seeds.numpy_generator(seed, "fake lesions")
    folder = out / (isic.RAW if raw else isic.PREPARED)
    folder.mkdir()
    rows = list(_rows(counts(samples), rng))
    for row in rows:
        short = int(rng.integers(260, 420)) if raw else lesions.SHORT_SIDE
        Image.fromarray(picture(row.target, row.centre, short, rng)).save(folder / f"{row.image}.jpg", quality=90)
    (out / isic.SPLIT).write_text(isic.split_text(rows), encoding="utf-8")
    by_name = sorted(rows, key=lambda row: row.image)
    truth, meta = map(isic.truth, by_name), (_meta(row, rng) for row in by_name)
    (out / isic.TRUTH).write_text(isic.table_text(isic.TRUTH_COLUMNS, truth), encoding="utf-8")
    (out / isic.META).write_text(isic.table_text(isic.META_COLUMNS, meta), encoding="utf-8")


def picture(target: int, centre: int, short: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """``(H, W, 3)``: skin in the centre's light, and a lesion with its class's colour, outline and stripes."""
    from PIL import ImageColor

    aspect = ASPECTS[int(rng.integers(len(ASPECTS)))]
    height, width = (short, round(short * aspect)) if aspect >= 1 else (round(short / aspect), short)
    middle = np.array([height, width])[:, None, None]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / short - 0.5 * middle / short
    x, y = x - rng.normal(0, 0.05), y - rng.normal(0, 0.05)
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    edge = (0.2 + 0.015 * target) * (1 + 0.25 * np.cos((target + 1) * angle + rng.uniform(0, 6)))
    inside = np.clip((edge - radius) * 40, 0, 1)[..., None]
    stripes = (1 + 0.25 * np.sin((10 + 12 * (target % 4)) * x * short / 40))[..., None]
    skin = np.array([225, 180, 160]) * (0.8 + 0.06 * centre) * rng.uniform(0.9, 1.1)
    colour = np.array(ImageColor.getrgb(COLOURS[target])) * rng.uniform(0.85, 1.15)
    pixels = skin * (1 - inside) + colour * stripes * inside + rng.normal(0, 6, (height, width, 1))
    clipped: NDArray[np.uint8] = np.clip(pixels, 0, 255).astype(np.uint8)
    return clipped


def _rows(made: dict[str, NDArray[np.int64]], rng: np.random.Generator) -> Iterator[isic.Row]:
    names = iter(rng.permutation(100_000)[: sum(int(table.sum()) for table in made.values())])
    for fold, table in made.items():
        for (centre, target), number in np.ndenumerate(table):
            for _ in range(int(number)):
                yield isic.Row(f"ISIC_{int(next(names)):07d}", target, centre, fold)


def _meta(row: isic.Row, rng: np.random.Generator) -> list[str]:
    site = ("anterior torso", "lower extremity", "head/neck", "")[int(rng.integers(4))]
    age, sex = 5.0 * int(rng.integers(4, 17)), ("male", "female")[int(rng.integers(2))]
    return [row.image, f"{age}", site, sex, DATASETS[row.centre]]
