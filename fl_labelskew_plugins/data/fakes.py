"""Small fake copies of data sets, for tests."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Dataset, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.machine.files import writing

MARK = "labelskew-fake.json"  # in the folder of a fake copy
PARTS = ("train", "test")
ARRAYS = "labelskew-fake.npz"  # samples of a fake copy in our format
SurveyRows = list[tuple[str, str, str]]


@contextmanager
def all_or_nothing(out: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``out``. Raise LabelSkewError if ``out`` is not empty or not writable."""
    given, out = out, Path(os.path.abspath(out))
    part = out.with_name(f"{out.name}.partial-{os.getpid()}")
    try:
        with writing(given):
            if os.path.lexists(out) and any(out.iterdir()):
                raise mistake(given, "is not empty", "a new or empty folder")
            part.mkdir(parents=True)
            yield part
            if os.path.isdir(out):  # keep the folder: it may be the working directory of a process
                for path in part.iterdir():
                    shutil.move(path, out)  # possibly to another disk
            else:
                part.replace(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write(dataset: Dataset, out: Path, *, samples: int | None) -> SurveyRows:
    """Write a fake copy to ``out``; return its survey."""
    with all_or_nothing(out) as part:
        dataset.fake(part, samples=samples, seed=0)
        (part / MARK).write_text('"made up by labelskew data fake"\n', encoding="utf-8")
    return dataset.survey(out)


def made_up(data_dir: Path | None) -> bool:
    """Whether ``data_dir`` contains a fake copy."""
    return data_dir is not None and any(os.path.isfile(data_dir / name) for name in (MARK, ARRAYS))


def arrays_file(data_dir: Path | None) -> Path | None:
    """The file of a fake copy in our format, if any."""
    return data_dir / ARRAYS if data_dir is not None and os.path.isfile(data_dir / ARRAYS) else None


def write_picture(file: Path, pixels: NDArray[np.uint8]) -> None:
    """Write an image ``(3, H, W)``; create its folder."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file)


def wrong(rows: Sequence[tuple[str, str, str]], *, copy: bool = False) -> SurveyRows:
    """Rows (item, found, expected) with unexpected values; for a fake ``copy``, only missing files."""
    return [row for row in rows if row[1] == "missing" or (not copy and row[2] not in (row[1], "any"))]


def parts(
    samples: int | None, *, classes: int, shape: tuple[int, int, int], seed: int, names: Sequence[str] = PARTS
) -> dict[str, Arrays]:
    """Images for each part, ``x`` ``(N, *shape)`` uint8. ``samples``: of all parts; default: 300, or 4 per class."""
    number = max(300, 4 * classes) if samples is None else samples
    if number < classes * len(names):
        raise mistake(f"--samples {number}", f"too few for {classes} classes", f"at least {classes * len(names)}")
    rng = seeds.numpy_generator(seed, "fake pictures")
    of_classes = patterns(classes, shape, rng)
    other_size = max(number // 5, classes)
    made = {}
    for part in names:
        size = other_size if part != names[0] else number - other_size * (len(names) - 1)
        y = rng.permutation(np.arange(size) % classes)
        made[part] = Arrays(noisy(of_classes, y, rng), y.astype(np.int64))
    return made


def patterns(classes: int, shape: tuple[int, int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """Patterns of 4 x 4 blocks, ``(classes, channels, height, width)``."""
    channels, height, width = shape
    blocks = rng.integers(40, 216, (classes, channels, 4, 4)).astype(np.float32)
    return blocks.repeat(-(-height // 4), axis=2).repeat(-(-width // 4), axis=3)[..., :height, :width]


def noisy(of_classes: NDArray[np.float32], labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Patterns with noise, ``(N, channels, height, width)``."""
    x = np.empty((len(labels), *of_classes.shape[1:]), np.uint8)
    for image, label in zip(x, labels, strict=True):  # one by one, to limit memory
        image[:] = np.clip(of_classes[label] + 24 * rng.standard_normal(image.shape, np.float32), 0, 255)
    return x
