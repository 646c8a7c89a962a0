"""Inspect the user's own data."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fl_labelskew_registry import Data, LabelSkewError, catalog, mistake

from fl_labelskew_plugins.data.files import readable, refuse
from fl_labelskew_plugins.data.image_folder import ImageFolder
from fl_labelskew_plugins.data.npz import KNOWN, read_archive
from fl_labelskew_plugins.data.pictures import FORMATS
from fl_labelskew_plugins.data.stats import Moments
from fl_labelskew_plugins.data.table import PARQUET, TEXT, header, ordered, parse_numbers, rows, texts
from fl_labelskew_plugins.machine.files import check_regular
from fl_labelskew_plugins.machine.text import clean, few
from fl_labelskew_plugins.recipe import mistakes

KINDS = "a folder of pictures, an .npz file, or a CSV or Parquet table"
SAMPLED = 60
SIDES = (8, 16, 28, 32, 64)  # pixels; larger ones are slow without a GPU
GREY = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}
LABELS = ("label", "labels", "class", "target", "diagnosis", "y")
GROUPS = ("group", "hospital", "site", "centre", "center", "client", "silo")
MAX_CLASSES = 10_000
ROW_NUMBERS = r"(.*[_ ])?id|index|unnamed: 0"
CATEGORY = (0.5, 0.5)  # mean and std of a category, 0 or 1, in data that are elsewhere
MAX_VALUES = 20


@dataclass(frozen=True)
class OwnData:
    """The user's own data."""

    dataset: str
    path: Path | None  # None if the data are elsewhere
    args: dict[str, Any]  # the data set's parameters
    shape: tuple[int, ...]  # of a sample
    classes: list[str]
    groups: list[str]  # in the order of their numbers; of pictures also the folders in `path`
    samples: int  # for training; 0 if unknown
    notes: tuple[str, ...] = ()
    moments: Moments | None = None  # of each channel or feature, if known


def described(classes: Sequence[str], size: int, columns: str | None, label: str | None) -> OwnData:
    """Describe data that are elsewhere: pictures of ``size`` pixels, or a table; raise MistakesError for mistakes.

    ``columns``: features, such as ``age,bmi=10..60,sex=f/m``.
    """
    if columns is None:
        if label is not None:
            raise mistake("--label", "is for tables", "--columns with the table's features, or no --label")
        return OwnData("image_folder", None, {"image_size": size, "channels": 3}, (3, size, size), [*classes], [], 0)
    categories: dict[str, list[str]] = {}
    moments, wrong = dict[str, list[tuple[float, float]]](), []
    for text in columns.split(","):
        name, _, form = (part.strip() for part in text.partition("="))
        low, dots, high = form.partition("..")
        try:
            if not name or name in moments:
                raise ValueError
            if dots:
                moments[name] = [_range_moments(float(low), float(high))]
            elif form:
                categories[name] = [value.strip() for value in form.split("/")]
                moments[name] = [CATEGORY] * len(categories[name])
                if len({*categories[name]} - {""}) < max(len(categories[name]), 2):
                    raise ValueError
            else:
                moments[name] = []
        except ValueError:
            use = "different names, such as age, age=0..100 for a range, or sex=f/m for categories"
            wrong.append(str(mistake(f"--columns: {clean(text, 40)}", "not a column", use)))
    without = [name for name, pairs in moments.items() if not pairs]
    if len(without) + len(categories) < len(moments):
        problem = "has no range, but others do; give all of them a range, or none"
        wrong += [f"--columns: {clean(name, 40)}: {problem}" for name in without]
    label = label or LABELS[0]
    if label in moments:
        use = "--columns without it, or another --label"
        wrong.append(str(mistake(f"--columns: {clean(label, 40)}", "is the label, not a feature", use)))
    refuse(wrong)
    args: dict[str, Any] = {"label": label, "features": [*moments]}
    if categories:
        args["categorical"] = categories
    mean, std = zip(*(pair for pairs in moments.values() for pair in pairs or [(0.0, 1.0)]), strict=True)
    return OwnData("table", None, args, (len(mean),), [*classes], [], 0, moments=None if without else (mean, std))


def _range_moments(low: float, high: float) -> tuple[float, float]:
    if not -math.inf < low < high < math.inf:
        raise ValueError
    return (low + high) / 2, (high - low) / 4  # normalises to -2 .. 2


def look(path: Path, label: str | None = None, group: str | None = None, classes: Sequence[str] = ()) -> OwnData:
    """Inspect data of :data:`KINDS`; raise LabelSkewError for other data. ``label``, ``group``: a table's columns."""
    path = Path(os.path.abspath(path.expanduser()))
    if not os.path.exists(path):
        raise mistake(clean(path), "does not exist", KINDS)
    if path.is_file() and path.suffix.lower() in {*TEXT, *PARQUET}:
        own_data = _table(path, label, group, classes)
    elif label is not None or group is not None:
        option = "--label" if label is not None else "--group"
        raise mistake(option, "is for tables, and these data are not a table", "neither")
    elif not path.is_file():
        own_data = _pictures(path, classes)
    elif classes:
        raise mistake("--classes", "is for pictures and tables; an archive's classes are numbers", "no --classes")
    else:
        own_data = _archive(path)
    if len(own_data.classes) < 2:
        raise mistake(clean(path), f"has only one class ({few(own_data.classes)})", "data with at least two classes")
    return own_data


def _pictures(path: Path, classes: Sequence[str]) -> OwnData:
    dataset = ImageFolder(ImageFolder.Params(class_names=tuple(classes) or None))
    with readable(clean(path)):
        groups = dataset.groups(path)
        train, test = dataset.find(path, groups)
    names = dataset.names(train, test or [])
    side, channels = _sampled(path, [file for file, _ in train])
    size = max((s for s in SIDES if s <= side), default=SIDES[0])
    args: dict[str, Any] = {"image_size": size, "channels": channels}
    if classes:
        args["class_names"] = names
    notes = (f"pictures: {dataset.layout(groups, names, tests=test is not None)}",)
    group_names = [folder.name for folder in groups]
    return OwnData("image_folder", path, args, (channels, size, size), names, group_names, len(train), notes)


def _sampled(path: Path, files: Sequence[Path]) -> tuple[float, int]:
    """Median of the shorter sides, in pixels, and channels."""
    from PIL import Image

    sides, modes = [], set()
    for file in files[:: -(-len(files) // SAMPLED)]:
        try:
            check_regular(file)
            with Image.open(file, formats=FORMATS) as image:
                sides.append(min(image.size))
                modes.add(image.mode)
        except Exception:  # Pillow's decoders raise a dozen types
            continue  # reported by a run
    if not sides:
        raise mistake(clean(path), "none of the sampled pictures can be opened", "valid pictures")
    return float(np.median(sides)), 1 if modes <= GREY else 3


def _archive(path: Path) -> OwnData:
    if path.suffix.lower() != ".npz":
        raise mistake(clean(path), "is neither folder, archive nor table", KINDS)
    arrays = read_archive(path, KNOWN)
    args: dict[str, Any] = {}
    x, notes = arrays.get("x_train", arrays.get("x")), []
    if x is not None and x.ndim == 4 and sum(x.shape[axis] in (1, 3) for axis in (1, 3)) != 1:
        args["layout"] = "nchw" if x.shape[1] <= x.shape[3] else "nhwc"
        notes = [f"layout: a guess, since the shape {x.shape} does not show which axis the channels are on"]
    labels = [arrays[name] for name in ("y", "y_train", "y_test") if name in arrays and arrays[name].size]
    if labels and all(y.dtype.kind in "iu" and y.min() >= 0 and y.max() < MAX_CLASSES for y in labels):
        args["classes"] = int(max(y.max() for y in labels)) + 1  # a gap in the labels is a class without samples
    return _loaded("npz", path, args, notes)


def _loaded(name: str, path: Path, args: dict[str, Any], notes: Sequence[str]) -> OwnData:
    plugin = catalog.load("datasets", name)
    params, lines = mistakes.checked(plugin.Params, args, f"data set {name}: ")
    refuse(lines)
    data: Data = plugin(params).load(path, download=False, seed=0)
    numbers = [] if data.train.groups is None else np.unique(data.train.groups).tolist()
    groups = [str(data.group_names[g]) if g < len(data.group_names) else str(g) for g in numbers]
    shape, moments = data.train.x.shape[1:], (data.mean, data.std)
    return OwnData(name, path, args, shape, data.class_names, groups, len(data.train.y), (*notes,), moments)


def _table(path: Path, label: str | None, group: str | None, classes: Sequence[str]) -> OwnData:
    catalog.load("datasets", "table")
    columns = header(path)
    label = _column(path, columns, label, LABELS, "--label")
    if label is None:
        problem = "has no column called label, class, target or the like"
        raise mistake(clean(path), problem, f"--label with one of {few(columns)}")
    group = _column(path, columns, group, GROUPS, "--group")
    frame = rows(path, columns)
    args: dict[str, Any] = {"label": label}
    if group is not None:
        args["group"] = group
    if classes:
        args["class_names"] = list(classes)
    rest = [column for column in columns if column not in (label, group)]
    categories = {
        column: ordered(texts(frame[column]))
        for column in rest
        if parse_numbers(frame[column], f"{path}: column {clean(column, 40)}") is None
    }
    dropped = [c for c in rest if len(categories.get(c, ())) > MAX_VALUES or re.fullmatch(ROW_NUMBERS, c.lower())]
    # always listed, since other tables may have another order
    args["features"] = features = [column for column in rest if column not in {*dropped}]
    notes = []
    if dropped:
        notes.append(f"features: columns that identify or number the rows are omitted ({few(dropped)})")
    if kept := {column: categories[column] for column in features if column in categories}:
        args["categorical"] = kept
        notes.append("categorical: the values of the non-numeric columns; each value is a feature")
    gaps = [column for column in (label, *([group] if group else []), *features) if frame[column].isna().any()]
    if gaps:
        args["missing"] = "drop" if {*gaps} & {label, group} else "mean"
        action = "these rows are dropped" if args["missing"] == "drop" else "replaced by the mean of the column"
        notes.append(f"missing: {few(gaps)} lack values; {action}")
    return _loaded("table", path, args, notes)


def _column(path: Path, columns: Sequence[str], wanted: str | None, names: Sequence[str], option: str) -> str | None:
    """Choose the wanted column, or the only one with one of ``names``, if any."""
    if wanted is not None and wanted not in columns:
        raise LabelSkewError(f"{option} {mistakes.unknown(wanted, [clean(column, 40) for column in columns])}")
    fits = [wanted] if wanted is not None else [column for column in columns if column.lower() in names]
    if len(fits) > 1:
        raise mistake(clean(path), f"the columns {few(fits)} all fit", f"{option} with one of them")
    return fits[0] if fits else None
