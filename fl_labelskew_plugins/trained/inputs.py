"""What a model is to look at: pictures, folders of them, arrays, tables; in batches, and as its training had them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fl_labelskew_registry import Dataset, LabelSkewError, MistakesError, catalog, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.data.image_folder import images_in
from fl_labelskew_plugins.data.npz import read_archive
from fl_labelskew_plugins.data.table import PARQUET, TEXT, Table
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import available_cores
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runs.model_file import About
from fl_labelskew_plugins.trained.network import Trained, known, made

FAR = 8.0
"""How many times the training's standard deviation an array's may be, or how far from its mean the array's."""


class Batch(NamedTuple):
    """Some samples ``(B, ...)`` as the data set gives them, and what each of them is called."""

    names: list[str]
    samples: NDArray[Any]


def listed(places: Sequence[Path]) -> list[Path]:
    """The files that are meant by files and folders.

    Raises:
        MistakesError: some are not there, or a folder has no pictures; with a line for each.
    """
    files: list[Path] = []
    wrong = []
    for place in places:
        if place.is_dir():
            inside = images_in(place)
            files += inside
            wrong += [] if inside else [f"{clean(place, 4096)}: has no pictures; name .npz files and tables one by one"]
        elif place.exists():
            files.append(place)
        else:
            use = "give pictures, folders of them, .npz files or tables"
            wrong.append(f"{clean(place, 4096)}: does not exist; {use}")
    if wrong:
        raise MistakesError(wrong)
    return files


def batches(
    trained: Trained,
    files: Sequence[Path],
    size: int,
    unreadable: list[str],
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Batch]:
    """The samples of files, in their order, at most ``size`` at a time; of what cannot be read, a line each.

    ``settings``: ``data_args`` in place of the training's.

    Raises:
        LabelSkewError: the model takes neither pictures nor tables, or no pictures of this shape.
    """
    for picture, group in groupby(files, key=lambda file: not holds_many(file)):
        if picture:
            yield from _pictures(trained, list(group), size, unreadable, settings or {})
            continue
        for file in group:
            where = clean(file, 4096)
            numbers = None
            try:
                if file.suffix.lower() == ".npz":
                    samples = _array(trained.about, file)
                else:
                    numbers, samples = table_of(trained, settings).samples(file, where)
            except LabelSkewError as error:
                unreadable.append(str(error))
                continue
            yield from cut(samples, size, where, numbers)


def holds_many(file: Path) -> bool:
    """Whether a file holds any number of samples: an archive or a table."""
    return file.suffix.lower() in (".npz", *TEXT, *PARQUET)


def cut(samples: NDArray[Any], size: int, name: str, numbers: NDArray[np.int64] | None = None) -> Iterator[Batch]:
    """Samples in batches, each sample called ``name[number]``; by default they count from 0."""
    numbers = np.arange(len(samples)) if numbers is None else numbers
    for start in range(0, len(samples), size):
        part = slice(start, start + size)
        yield Batch([f"{name}[{number}]" for number in numbers[part]], samples[part])


def table_of(trained: Trained, settings: Mapping[str, Any] | None = None) -> Table:
    """The data set that reads further tables for a model.

    Raises:
        LabelSkewError: the model was not trained on tables, or a setting is wrong.
    """
    about, where = trained.about, clean(trained.file, 4096)
    if about.dataset != "table":
        what = f"was trained on {about.dataset}, whose samples are not rows of a table"
        raise mistake(where, what, "pictures" if about.picture else _archives(about))
    dataset = reader(trained, {}, settings or {})
    assert isinstance(dataset, Table)
    return dataset


def reader(trained: Trained, recipe: Mapping[str, Any], settings: Mapping[str, Any], place: str = "") -> Dataset:
    """The data set that reads further samples for a model, as those of its training were read.

    Args:
        trained: the model.
        recipe: ``data_args`` of its recipe, where it is known.
        settings: ``data_args`` in place of these.
        place: of the recipe, for messages.

    Raises:
        LabelSkewError: the data set is not installed, or does not have such parameters.
    """
    about, where = trained.about, clean(trained.file, 4096)
    kind = catalog.load("datasets", known("datasets", about.dataset, where))
    place = place or f"{where}: data set {about.dataset}: "
    made(kind, settings, "--set data_args.")
    if about.dataset != "table":
        made_of: Dataset = made(kind, {**(about.picture or {}), **recipe, **settings}, place)
        return made_of
    if about.table is None:
        what = "does not say how the rows of a table become samples"
        use = "a model of this version whose recipe has data_args.features and categorical"
        raise mistake(where, what, use)
    if fixed := [key for key in ("features", "categorical") if key in settings]:
        raise mistake(f"--set data_args.{fixed[0]}", "the model's training decided it", "a table with those columns")
    of_model = {key: getattr(about.table, key) for key in ("label", "group", "missing")}
    of_model |= {"features": [feature.name for feature in about.table.features], "class_names": about.class_names}
    table: Table = made(Table, {**recipe, "categorical": "refuse", **of_model, **settings}, place)
    table.encoding = about.table
    return table


def _pictures(
    trained: Trained, files: Sequence[Path], size: int, unreadable: list[str], settings: Mapping[str, Any]
) -> Iterator[Batch]:
    about, where = trained.about, clean(trained.file, 4096)
    if not about.picture:
        what = f"was trained on {about.dataset}, whose samples are not made of picture files"
        raise mistake(where, what, f"{'tables, or ' if about.table else ''}{_archives(about)}")
    dataset = reader(trained, {}, settings)

    def read(file: Path) -> NDArray[Any] | str:
        try:
            return dataset.picture(file)
        except LabelSkewError as error:
            return clean(error, 4096)

    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(files), size):
            part = files[start : start + size]
            batch = Batch([], np.empty((0, *about.input_shape), np.uint8))
            sound = []
            for file, sample in zip(part, pool.map(read, part), strict=True):
                if isinstance(sample, str):
                    unreadable.append(sample)
                    continue
                if list(sample.shape) != about.input_shape:
                    shape = f"{tuple(sample.shape)}, and the network takes {tuple(about.input_shape)}"
                    raise mistake(where, f"its pictures become samples of shape {shape}", "the file as it was written")
                batch.names.append(clean(file, 4096))
                sound.append(sample)
            if sound:
                yield batch._replace(samples=np.stack(sound))


def _archives(about: About) -> str:
    """The archives that a model takes."""
    return f".npz files with x of shape (N, {', '.join(map(str, about.input_shape))})"


def _array(about: About, file: Path) -> NDArray[Any]:
    """The samples of an archive: its ``x``, or the only array that it has."""
    where = clean(file, 4096)
    arrays = read_archive(file, ["x"]) or read_archive(file)
    if "x" not in arrays and len(arrays) != 1:
        raise mistake(where, f"has no x (it has {clean(', '.join(arrays) or 'nothing')})", "an array x (N, ...)")
    return fitted(about, arrays.get("x", next(iter(arrays.values()))), where)


def fitted(about: About, x: NDArray[Any], where: str) -> NDArray[Any]:
    """Samples ``(N, ...)`` of the model's shape and type, made of an array of numbers.

    Axes may be the model's, ``(N, H, W, C)``, ``(N, H, W)`` for one channel, or any where the model takes rows; one
    sample alone is a batch of one. What is plainly not of the training's scale is warned of, see :func:`warn_of_scale`.

    Raises:
        LabelSkewError: it is no such array.
    """
    shape = tuple(about.input_shape)
    if x.dtype.kind not in "biuf":
        raise mistake(where, f"is of type {x.dtype}", "numbers")
    if x.shape == shape:
        x = x[None]
    elif x.shape[1:] != shape:
        if x.ndim == 3 and (1, *x.shape[1:]) == shape:
            x = x[:, None]
        elif x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == shape:
            x = x.transpose(0, 3, 1, 2)
        elif x.ndim > 2 and (prod(x.shape[1:]),) == shape:
            x = x.reshape(len(x), -1)
        else:
            wanted = ", ".join(map(str, shape))
            raise mistake(where, f"has shape {x.shape}", f"(N, {wanted}), as the model was trained on")
    if about.mean == [] and about.dtype == "uint8":  # characters by number
        if x.dtype.kind == "f" or (x.size and (x.min() < 0 or x.max() > 255)):
            raise mistake(where, f"holds {x.dtype}, and the model takes numbers of characters", "uint8")
        return np.ascontiguousarray(x, np.uint8)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, np.uint8 if x.dtype == about.dtype == "uint8" else np.float32)
    if x.dtype != np.uint8 and not np.isfinite(x).all():
        bad = int(np.argwhere(~np.isfinite(x))[0][0])
        raise mistake(where, f"sample {bad} is not finite", "finite numbers")
    warn_of_scale(about, x, where)
    return x


def warn_of_scale(about: About, x: NDArray[Any], where: str) -> None:
    """Warn where samples ``(N, ...)`` are plainly not of the training's scale.

    Normalised by the training's mean and standard deviation, what was trained on has mean 0 and standard deviation 1.
    An array whose mean is further than 8 from that, or whose standard deviation is above 8 or below 1/8, is of another
    scale, such as 0 to 255 for 0 to 1, or all of one value. Where training did not normalise, nobody can tell.
    """
    plain = about.mean == [0.0] and about.std == [1.0] and about.dtype == "float32"
    if not about.mean or not about.std or plain or not x.size:
        return
    axes = (0, *range(2, x.ndim))
    unit = 255.0 if about.dtype == "uint8" else 1.0
    mean = (x.mean(axes, dtype=np.float64) / unit - about.mean) / about.std
    spread = x.std(axes, dtype=np.float64) / unit / about.std
    if np.abs(mean).max() <= FAR and spread.max() <= FAR and spread.max() >= 1 / FAR:
        return
    usual = unit * np.mean(about.mean), unit * np.mean(about.std)
    log.warn(
        f"{where}: not of the scale that was trained on: mean {x.mean():.3g}, standard deviation {x.std():.3g}, and in "
        f"training {usual[0]:.3g} and {usual[1]:.3g}; predictions may mean nothing"
    )
