"""Small copies of data sets: where they are written, and how they are told from the real ones."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fl_labelskew_registry import Arrays, Dataset, LabelSkewError, mistake

from fl_labelskew_plugins import seeds

MARK = "labelskew-fake.json"  # beside the files: what a small copy has less of than the real data set
ARRAYS = "labelskew-fake.npz"  # the samples of a small copy whose real files are in a format of their own
Rows = list[tuple[str, str, str]]


def fresh_folder(out: Path, *, make: bool = True) -> Path:
    """``out``, made where it does not exist.

    Raises:
        LabelSkewError: it is no folder, is not empty, or cannot be made.
    """
    try:
        if make:
            out.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(out) and any(out.iterdir()):
            raise mistake(out, "is not empty", "a new or empty folder")
    except OSError as error:
        raise LabelSkewError(f"{out}: cannot be written ({error.strerror or error})") from error
    return out


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Where to write what is to be in ``out`` at the end, a new or empty folder: all of it, or nothing.

    Raises:
        LabelSkewError: the folder is not empty or cannot be written.
    """
    out = Path(os.path.abspath(fresh_folder(out, make=False)))
    part = out.with_name(f"{out.name}.partial-{os.getpid()}")
    try:
        part.mkdir(parents=True)
        yield part
        if os.path.isdir(out):  # it may be somebody's current folder, so it stays what it is
            for path in part.iterdir():
                shutil.move(path, out)  # which may be a disk of its own
        else:
            part.replace(out)
    except OSError as error:
        raise LabelSkewError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write(dataset: Dataset, out: Path, *, samples: int | None, seed: int) -> Rows:
    """A small copy in ``out``, all of it or nothing, with a file that says so; returns its survey.

    Raises:
        LabelSkewError: the data set has no writer, or the folder is not empty or cannot be written.
    """
    with whole(out) as part:
        dataset.fake(part, samples=samples, seed=seed)
        rows = dataset.survey(part)
        less = {what: actual for what, actual, expected in rows if actual not in (expected, "missing")}
        (part / MARK).write_text(json.dumps(less, indent=1) + "\n", encoding="utf-8")
    return adjusted(rows, out)


def adjusted(rows: Sequence[tuple[str, str, str]], data_dir: Path | None) -> Rows:
    """A survey of ``data_dir`` whose expectations are those of the small copy, where it is one."""
    less = read_mark(data_dir) or {}
    return [(what, actual, less.get(what, expected)) for what, actual, expected in rows]


def read_mark(data_dir: Path | None) -> dict[str, str] | None:
    """What the small copy in ``data_dir`` has less of, or None where it is none.

    Raises:
        LabelSkewError: the file that says so is broken.
    """
    if data_dir is None or not os.path.isfile(data_dir / MARK):
        return None
    try:
        less = json.loads((data_dir / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabelSkewError(f"{data_dir / MARK}: cannot be read ({error})") from error
    if not isinstance(less, dict) or not all(isinstance(text, str) for text in less.values()):
        raise LabelSkewError(f"{data_dir / MARK}: is not what labelskew data fake wrote; write the copy again")
    return less


def made_up(data_dir: Path | None) -> bool:
    """Whether ``data_dir`` has a small copy; its arrays count without the mark, too: nobody publishes them."""
    return read_mark(data_dir) is not None or arrays_file(data_dir) is not None


def arrays_file(data_dir: Path | None) -> Path | None:
    """The file of :func:`write_arrays` in ``data_dir``, if there is one."""
    return data_dir / ARRAYS if data_dir is not None and os.path.isfile(data_dir / ARRAYS) else None


def write_arrays(out: Path, made: Mapping[str, Arrays], class_names: Sequence[str]) -> None:
    """Write the samples of all parts to one ``.npz`` file that the data set ``npz`` can read, too."""
    arrays = {f"{axis}_{part}": getattr(content, axis) for part, content in made.items() for axis in "xy"}
    np.savez(out / ARRAYS, class_names=np.array(class_names), **arrays)


def wrong(rows: Sequence[tuple[str, str, str]]) -> Rows:
    """The rows that do not hold what is expected."""
    return [row for row in rows if row[1] == "missing" or row[2] not in (row[1], "any")]


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
    channels, height, width = shape
    patterns = rng.integers(40, 216, (classes, channels, 4, 4)).astype(np.float32)
    patterns = patterns.repeat(-(-height // 4), axis=2).repeat(-(-width // 4), axis=3)[..., :height, :width]
    others = max(number // 5, classes)
    made = {}
    for part in names:
        size = others if part != names[0] else number - others * (len(names) - 1)
        y = rng.permutation(np.arange(size) % classes)
        x = np.empty((size, *shape), np.uint8)
        for image, label in zip(x, y, strict=True):  # one by one: all of the noise at once would need eight times more
            image[:] = np.clip(patterns[label] + 24 * rng.standard_normal(shape, np.float32), 0, 255)
        made[part] = Arrays(x, y.astype(np.int64))
    return made
