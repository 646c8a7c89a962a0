"""Read inputs of a model in batches: pictures, arrays and tables."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fl_labelskew_registry import Dataset, LabelSkewError, MistakesError, mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.data.image_folder import images_in
from fl_labelskew_plugins.data.npz import read_archive
from fl_labelskew_plugins.data.table import PARQUET, TEXT, Table
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import available_cores
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runs.model_file import About
from fl_labelskew_plugins.trained.network import Trained, create, load_plugin

MAX_DEVIATION = 8.0  # from the training's mean, in standard deviations, and ratio to these


class InputBatch(NamedTuple):
    """Samples ``(B, ...)`` before normalisation."""

    names: list[str]
    samples: NDArray[Any]


def listed(places: Sequence[Path]) -> list[Path]:
    """Replace folders by their pictures; raises MistakesError for missing files and empty folders."""
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
    trained: Trained, files: Sequence[Path], size: int, unreadable: list[str], settings: Mapping[str, Any] = {}
) -> Iterator[InputBatch]:
    """Read samples, at most ``size`` at a time; append errors of bad files to ``unreadable``.

    ``settings``: ``data_args`` that override the training's. Raises LabelSkewError if the model takes other inputs.
    """
    for picture, group in groupby(files, key=lambda file: not holds_many(file)):
        if picture:
            yield from _pictures(trained, list(group), size, unreadable, settings)
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
    """Whether a file is an archive or a table."""
    return file.suffix.lower() in (".npz", *TEXT, *PARQUET)


def cut(samples: NDArray[Any], size: int, name: str, numbers: NDArray[np.int64] | None = None) -> Iterator[InputBatch]:
    """Divide samples into batches; samples have the name ``name[number]``, by default from 0."""
    numbers = np.arange(len(samples)) if numbers is None else numbers
    for start in range(0, len(samples), size):
        part = slice(start, start + size)
        yield InputBatch([f"{name}[{number}]" for number in numbers[part]], samples[part])


def table_of(trained: Trained, settings: Mapping[str, Any] = {}) -> Table:
    """The data set that reads tables for a model; raises LabelSkewError for other models."""
    about, where = trained.about, clean(trained.file, 4096)
    if about.dataset != "table":
        problem = f"was trained on {about.dataset}, whose samples are not rows of a table"
        raise mistake(where, problem, "pictures" if about.picture else _archives(about))
    dataset = reader(trained, {}, settings)
    assert isinstance(dataset, Table)
    return dataset


def reader(trained: Trained, recipe: Mapping[str, Any], settings: Mapping[str, Any], place: str = "") -> Dataset:
    """The data set that reads samples as in training; raises LabelSkewError if it is missing, or a setting is wrong.

    ``settings`` override ``recipe``, its known ``data_args``; ``place``: for messages.
    """
    about, where = trained.about, clean(trained.file, 4096)
    kind = load_plugin("datasets", about.dataset, where)
    place = place or f"{where}: data set {about.dataset}: "
    create(kind, settings, "--set data_args.")
    if about.dataset != "table":
        dataset: Dataset = create(kind, {**(about.picture or {}), **recipe, **settings}, place)
        return dataset
    if about.table is None:
        problem = "does not say how the rows of a table become samples"
        use = "a model of this version whose recipe has data_args.features and categorical"
        raise mistake(where, problem, use)
    if fixed := [key for key in ("features", "categorical") if key in settings]:
        raise mistake(f"--set data_args.{fixed[0]}", "is fixed by the model's training", "a table with those columns")
    of_model = {key: getattr(about.table, key) for key in ("label", "group", "missing")}
    of_model |= {"features": [feature.name for feature in about.table.features], "class_names": about.class_names}
    table: Table = create(Table, {**recipe, "categorical": "refuse", **of_model, **settings}, place)
    table.encoding = about.table
    return table


def _pictures(
    trained: Trained, files: Sequence[Path], size: int, unreadable: list[str], settings: Mapping[str, Any]
) -> Iterator[InputBatch]:
    about, where = trained.about, clean(trained.file, 4096)
    if not about.picture:
        problem = f"was trained on {about.dataset}, whose samples are not picture files"
        raise mistake(where, problem, f"{'tables, or ' if about.table else ''}{_archives(about)}")
    dataset = reader(trained, {}, settings)

    def read(file: Path) -> NDArray[Any] | str:
        try:
            return dataset.picture(file)
        except LabelSkewError as error:
            return clean(error, 4096)

    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(files), size):
            part = files[start : start + size]
            names, samples = [], []
            for file, sample in zip(part, pool.map(read, part), strict=True):
                if isinstance(sample, str):
                    unreadable.append(sample)
                    continue
                if list(sample.shape) != about.input_shape:
                    shape = f"{tuple(sample.shape)}, but the network takes {tuple(about.input_shape)}"
                    raise mistake(where, f"its pictures become samples of shape {shape}", "the original file")
                names.append(clean(file, 4096))
                samples.append(sample)
            if samples:
                yield InputBatch(names, np.stack(samples))


def _archives(about: About) -> str:
    return f".npz files with x of shape (N, {', '.join(map(str, about.input_shape))})"


def _array(about: About, file: Path) -> NDArray[Any]:
    where = clean(file, 4096)
    arrays = read_archive(file, ["x"]) or read_archive(file)
    if "x" not in arrays and len(arrays) != 1:
        raise mistake(where, f"has no x (it has {clean(', '.join(arrays) or 'nothing')})", "an array x (N, ...)")
    return fitted(about, arrays.get("x", next(iter(arrays.values()))), where)


def fitted(about: About, x: NDArray[Any], where: str) -> NDArray[Any]:
    """Convert an array to samples ``(N, ...)`` of the model's shape and type; raises LabelSkewError for other shapes.

    It may have the model's shape, with or without ``N``; ``(N, H, W, C)``; ``(N, H, W)`` for one channel; or any if the
    model takes rows.
    """
    shape = tuple(about.input_shape)
    if x.dtype.kind not in "biuf":
        raise mistake(where, f"has type {x.dtype}", "numbers")
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
            raise mistake(where, f"contains {x.dtype}, but the model takes numbers of characters", "uint8")
        return np.ascontiguousarray(x, np.uint8)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, np.uint8 if x.dtype == about.dtype == "uint8" else np.float32)
    if x.dtype != np.uint8 and not np.isfinite(x).all():
        bad = int(np.argwhere(~np.isfinite(x))[0][0])
        raise mistake(where, f"sample {bad} is not finite", "finite numbers")
    warn_of_scale(about, x, where)
    return x


def warn_of_scale(about: About, x: NDArray[Any], where: str) -> None:
    """Warn if samples ``(N, ...)`` have another scale than in training."""
    plain = about.mean == [0.0] and about.std == [1.0] and about.dtype == "float32"  # without normalisation
    if not about.mean or not about.std or plain or not x.size:
        return
    axes = (0, *range(2, x.ndim))
    unit = 255.0 if about.dtype == "uint8" else 1.0
    mean = (x.mean(axes, dtype=np.float64) / unit - about.mean) / about.std
    spread = x.std(axes, dtype=np.float64) / unit / about.std
    if np.abs(mean).max() <= MAX_DEVIATION and spread.max() <= MAX_DEVIATION and spread.max() >= 1 / MAX_DEVIATION:
        return
    log.warn(
        f"{where}: scale differs from training: mean {x.mean():.3g}, standard deviation {x.std():.3g}, in training "
        f"{unit * np.mean(about.mean):.3g} and {unit * np.mean(about.std):.3g}; predictions may be meaningless"
    )
