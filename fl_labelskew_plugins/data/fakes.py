"""Small copies of data sets: where they are written, and how they are told from the real ones."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins import seeds

MARK = "labelskew-fake.json"  # beside the files of a small copy
ARRAYS = "labelskew-fake.npz"  # the samples of a small copy whose real files are in a format of their own
SurveyRows = list[tuple[str, str, str]]


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Where to write what is to be in ``out`` at the end, a new or empty folder: all of it, or nothing.

    Raises:
        LabelSkewError: the folder is not empty or cannot be written.
    """
    given, out = out, Path(os.path.abspath(out))
    part = out.with_name(f"{out.name}.partial-{os.getpid()}")
    try:
        if os.path.lexists(out) and any(out.iterdir()):
            raise mistake(given, "is not empty", "a new or empty folder")
        part.mkdir(parents=True)
        yield part
        if os.path.isdir(out):  # it may be somebody's current folder, so it stays what it is
            for path in part.iterdir():
                shutil.move(path, out)  # which may be a disk of its own
        else:
            part.replace(out)
    except OSError as error:
        raise LabelSkewError(f"{given}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write(dataset: Dataset, out: Path, *, samples: int | None, seed: int) -> SurveyRows:
    """A small copy in ``out``, all of it or nothing, with a file that says so; returns its survey.

    Raises:
        LabelSkewError: the data set has no writer, or the folder is not empty or cannot be written.
    """
    with whole(out) as part:
        dataset.fake(part, samples=samples, seed=seed)
        (part / MARK).write_text('"made up by labelskew data fake"\n', encoding="utf-8")
    return dataset.survey(out)


def made_up(data_dir: Path | None) -> bool:
    """Whether ``data_dir`` has a small copy; its arrays count without the mark, too: nobody publishes them."""
    return data_dir is not None and any(os.path.isfile(data_dir / name) for name in (MARK, ARRAYS))


def arrays_file(data_dir: Path | None) -> Path | None:
    """The file of :func:`write_arrays` in ``data_dir``, if there is one."""
    return data_dir / ARRAYS if data_dir is not None and os.path.isfile(data_dir / ARRAYS) else None


def write_arrays(
    out: Path, class_names: Sequence[str], *, shape: tuple[int, int, int], samples: int | None, seed: int
) -> None:
    """Write the samples of both :func:`parts` to one ``.npz`` file that the data set ``npz`` can read, too."""
    made = parts(samples, classes=len(class_names), shape=shape, seed=seed)
    arrays = {f"{axis}_{part}": getattr(content, axis) for part, content in made.items() for axis in "xy"}
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / ARRAYS, class_names=np.array(class_names), **arrays)


def write_picture(file: Path, pixels: NDArray[np.uint8]) -> None:
    """Write a picture ``(3, H, W)``, in a folder that may not exist."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file)


def wrong(rows: Sequence[tuple[str, str, str]], *, copy: bool = False) -> SurveyRows:
    """The rows that do not hold what is expected; of a small ``copy``, those where something is missing."""
    return [row for row in rows if row[1] == "missing" or (not copy and row[2] not in (row[1], "any"))]


def parts(
    samples: int | None,
    *,
    classes: int,
    shape: tuple[int, int, int],
    seed: int,
    names: Sequence[str] = ("train", "test"),
) -> dict[str, Arrays]:
    """Images for each part, each class a pattern, and noise; ``x`` is uint8.

    Args:
        samples: of all parts; default: 300, or 4 a class. About a fifth are in each part but the first.
        classes: each has the same number of samples, give or take one.
        shape: of an image, ``(channels, height, width)``.
        seed: chooses patterns and noise.
        names: of the parts.

    Raises:
        LabelSkewError: there are fewer samples than one a class and part.
    """
    number = max(300, 4 * classes) if samples is None else samples
    if number < classes * len(names):
        raise mistake(f"--samples {number}", f"too few for {classes} classes", f"at least {classes * len(names)}")
    rng = seeds.numpy_generator(seed, "fake pictures")
    of_classes = patterns(classes, shape, rng)
    others = max(number // 5, classes)
    made = {}
    for part in names:
        size = others if part != names[0] else number - others * (len(names) - 1)
        y = rng.permutation(np.arange(size) % classes)
        made[part] = Arrays(noisy(of_classes, y, rng), y.astype(np.int64))
    return made


def patterns(classes: int, shape: tuple[int, int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """A pattern of 4 x 4 blocks for each class, ``(classes, channels, height, width)``."""
    channels, height, width = shape
    blocks = rng.integers(40, 216, (classes, channels, 4, 4)).astype(np.float32)
    return blocks.repeat(-(-height // 4), axis=2).repeat(-(-width // 4), axis=3)[..., :height, :width]


def noisy(of_classes: NDArray[np.float32], labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each sample's pattern and noise: ``(N, channels, height, width)`` by ``labels`` ``(N,)``."""
    shape = of_classes.shape[1:]
    x = np.empty((len(labels), *shape), np.uint8)
    for image, label in zip(x, labels, strict=True):  # one by one: all of the noise at once would need eight times more
        image[:] = np.clip(of_classes[label] + 24 * rng.standard_normal(shape, np.float32), 0, 255)
    return x
