"""Tables: a CSV or Parquet file with a row for each sample, a column of classes, and the other columns as features.

A column of groups, such as hospitals, is for the partition natural. What is no number, and what is missing, is refused
in a line or encoded as ``data_args`` say. How a file is read: :mod:`.columns`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.columns import (
    PARQUET,
    TEXT,
    Encoding,
    Feature,
    header,
    measured,
    no_numbers,
    ordered,
    repeated,
    rows,
    texts,
)
from fl_labelskew_plugins.data.files import gathered, only_file, refuse, size_text
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.split import picked, stratified
from fl_labelskew_plugins.data.stats import moments
from fl_labelskew_plugins.machine.log import warn
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.params import Params

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 1000
NOTE = "encoding.json"
"""The note with the :class:`.Encoding`."""
FAKE_CLASSES, FAKE_GROUPS, FAKE_FEATURES = ("benign", "malign", "unsure"), ("coast", "north", "south"), 8


class Table(Dataset):
    """A user's own table; samples are ``(F,)`` float32, normalised feature by feature.

    ``encoding``: that of a trained model, whose further tables are read; by default the training file decides.
    """

    encoding: Encoding | None = None

    class Params(Params):
        """Parameters of table."""

        file: str | None = Field(None, description="Name of the file in data_cache_dir; default: the only one there.")
        test_file: str | None = Field(
            None, description="Name of a file of the test part beside it; default: the test part is split off."
        )
        label: str = Field("label", description="Column of the classes: names, or whole numbers.")
        class_names: tuple[str, ...] | None = Field(
            None, min_length=1, description="All classes in order; default: those of the training file, sorted."
        )
        features: tuple[str, ...] | None = Field(
            None, min_length=1, description="Columns that the network gets, in order; default: all the others."
        )
        group: str | None = Field(None, description="Column of the groups, such as hospitals; default: no groups.")
        categorical: Literal["refuse", "one_hot"] | dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
            "refuse",
            description="What a feature that is no number leads to; one_hot: a feature for each of its categories in "
            "training. A mapping of columns to lists says which categories there are, as silos have to.",
        )
        missing: Literal["refuse", "drop", "mean"] = Field(
            "refuse",
            description="What a missing value leads to: drop leaves its row out, mean puts the feature's mean in "
            "training there.",
        )
        test_fraction: float = Field(
            0.2, gt=0, lt=1, description="Share of each class, of each group, in test where there is no test_file."
        )

    @property
    def measured(self) -> bool:
        """Always: nobody knows more of these columns."""
        return True

    def paths(self, data_dir: Path | None) -> list[Path]:
        """The file of the training part, and that of the test part where it has one.

        Raises:
            LabelSkewError: one is not there, or it is not clear which it is.
        """
        options, endings = self.params, [*TEXT, *PARQUET]
        paths = [only_file(data_dir, options.file, endings, "table")]
        if options.test_file is not None:
            paths.append(only_file(paths[0].parent, options.test_file, endings, "table"))
        for path in paths:
            if path.suffix.lower() not in endings:
                raise mistake("data set table", f"{path} is none", f"a file that ends in {few(endings)}")
        if len(paths) == 2 and paths[0] == paths[1]:
            raise mistake("data_args.test_file", f"{paths[1]} is the training part as well", "another data_args.file")
        return paths

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        """Raise LabelSkewError if a file is missing; it cannot be downloaded."""
        self.paths(data_dir)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        """As :meth:`check`, for the test part alone where it is a file of its own."""
        if self._test_alone(data_dir) is None:
            self.paths(data_dir)

    def splits_off(self, data_dir: Path | None) -> bool:
        """Whether there is no file of the test part."""
        return self.params.test_file is None

    def _test_alone(self, data_dir: Path | None) -> Path | None:
        """The file of the test part, where there is none of the training part."""
        if self.params.test_file is not None:
            try:
                self.paths(data_dir)
            except LabelSkewError:
                return only_file(data_dir, self.params.test_file, [*TEXT, *PARQUET], "table")
        return None

    def columns(self, path: Path) -> list[str]:
        """Label, group and features of a file, in this order.

        Raises:
            LabelSkewError: the file has no such columns, or one is to be two things.
        """
        options, there = self.params, header(path)
        grouped = options.group is not None and (self.encoding is None or options.group in there)
        special = [options.label, *([options.group] if grouped else [])]
        features = [name for name in there if name not in special] if options.features is None else options.features
        named = {"label": special[:1], "group": special[1:], "features": features}
        if isinstance(options.categorical, dict):
            named["categorical"] = list(options.categorical)
        known = set(there)
        for key, names in named.items():
            if absent := [name for name in names if name not in known]:
                lacks = f"{path} has no column {few(absent, 20)}"
                raise mistake(f"data_args.{key}", lacks, f"one of {few(there, 20)}")
        if not features:
            raise mistake(path, f"has no column beside {few(special)}", "a column for each feature")
        columns = [*special, *features]
        if twice := repeated(columns):
            use = "each as label, as group or as a feature"
            raise mistake("data_args", f"column {clean(twice[0], 40)} is named twice", use)
        return columns

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read and check the rows; ``seed`` chooses the test part where there is none."""
        return self._read(self.paths(data_dir), seed)

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """Read and check the rows; without a file of the test part, all of them are the test part."""
        paths = self.paths(data_dir)
        return self._read(paths, None if len(paths) == 1 else seed)

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        """The test part; a file of it that is alone is normalised by its own moments."""
        path = self._test_alone(data_dir)
        if path is None:
            return super().load_test(data_dir, download=download, seed=seed)
        return self._read([path], None)

    def _read(self, paths: Sequence[Path], seed: int | None) -> Data:
        """The files' data; ``seed``: of the test part that is split off from one file, None: it is the test part."""
        columns = self.columns(paths[0])
        for path in paths[1:]:
            there = set(header(path))
            if absent := [name for name in columns if name not in there]:
                lacks = f"has no column {clean(absent[0], 40)}, as {paths[0].name} has"
                raise mistake(path, lacks, "the same columns in both files")
        frames = [self._complete(rows(path, columns), path) for path in paths]
        wrong: list[str] = []
        with gathered(wrong):
            encoding = self.encoding or self._encoding(frames[0], paths[0])
        with gathered(wrong):
            names, labels = self._classes(frames, paths)
        refuse(wrong)
        groups, of_groups = self._groups(frames)
        parts = [
            Arrays(encoding.encoded(frame, str(path)), y, group)
            for frame, path, y, group in zip(frames, paths, labels, of_groups, strict=True)
        ]
        fingerprint, train, test = digest(parts, names), parts[0], parts[-1]
        if len(parts) == 1 and seed is not None:
            fraction = self.params.test_fraction
            drawn = stratified(train.y, train.groups, test_fraction=fraction, seed=seed, where=str(paths[0]))
            train, test = (picked(train, part) for part in drawn)
        if self.encoding is None:
            encoding = encoding.model_copy(update={"means": _means(train.x, encoding.shown, paths[0])})
        for part in (train, test):
            _fill(part.x, encoding, paths[0])
        mean, std = moments(train.x)
        if seed is None:
            train = picked(train, np.zeros(0, np.int64))
        notes = {"features.txt": "".join(f"{name}\n" for name in encoding.shown)}
        notes[NOTE] = encoding.model_dump_json(indent=1) + "\n"
        return Data(train, test, names, mean, std, notes, fingerprint, groups)

    def declared(self) -> Encoding | None:
        """The encoding without means, if the parameters decide it without a file."""
        options = self.params
        if options.features is None or options.categorical == "one_hot":
            return None
        categories = {} if options.categorical == "refuse" else options.categorical
        features = [Feature(name=name, categories=categories.get(name, [])) for name in options.features]
        return Encoding(label=options.label, group=options.group, missing=options.missing, features=features)

    def samples(self, table: Path | pd.DataFrame, where: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The numbers ``(N,)`` of a table's rows, from 0, and their samples ``(N, F)`` for the model of ``encoding``.

        Raises:
            LabelSkewError: the table cannot be read, lacks a column, or has values that were not in training.
        """
        assert self.encoding is not None
        names = [feature.name for feature in self.encoding.features]
        there = header(table) if isinstance(table, Path) else list(table.columns)
        known = set(there)
        if absent := [name for name in names if name not in known]:
            raise mistake(where, f"has no column {few(absent)}", f"a table with the columns {few(names, 40)}")
        self._note_unused(there, where)
        frame = (rows(table, names) if isinstance(table, Path) else table[names]).reset_index(drop=True)
        frame = self._complete(frame, where)
        x = self.encoding.encoded(frame, where)
        _fill(x, self.encoding, where)
        return frame.index.to_numpy(), x

    def _note_unused(self, there: Sequence[str], where: object) -> None:
        """Name the columns of a further table that neither the model nor its measures use."""
        assert self.encoding is not None
        used = {self.params.label, self.params.group, *(feature.name for feature in self.encoding.features)}
        if unused := [name for name in there if name not in used]:
            warn(f"{where}: the model does not use {'column' if len(unused) == 1 else 'columns'} {few(unused)}")

    def _complete(self, frame: pd.DataFrame, path: Path | str) -> pd.DataFrame:
        """The rows that have all values, or all that cannot be replaced by a mean.

        Raises:
            LabelSkewError: there are others, or there is no row.
        """
        options = self.params
        needed = [name for name in (options.label, options.group) if name in frame]
        lacking = (frame[needed] if options.missing == "mean" else frame).isna()
        without = lacking.any(axis=1)
        if len(frame) and not without.any():
            return frame
        if without.all():
            if not len(frame):
                raise mistake(path, "has no row", "a file with one for each sample")
            what = f"has no row with all values, and most are missing in {clean(lacking.sum().idxmax(), 40)}"
            raise mistake(path, what, "data_args.missing: mean, or data_args.features without it")
        if options.missing == "drop":
            warn(f"{path}: {counted(int(without.sum()), 'row')} of {len(frame)} without all values; left out")
            return frame[~without]
        first, *others = [name for name in lacking if lacking[name].any()]
        count, row = counted(int(lacking[first].sum()), "row"), int(lacking[first].to_numpy().argmax()) + 1
        more = f"; and so have {few(others)}" if others else ""
        use = "data_args.missing: drop" + ("" if first in needed else " or mean")
        what = f"has no value in {count} of {len(frame)}, first in row {row}{more}"
        raise mistake(f"{path}: column {clean(first, 40)}", what, use)

    def _encoding(self, frame: pd.DataFrame, path: Path) -> Encoding:
        """The encoding of the training part's columns, without means.

        Raises:
            LabelSkewError: :meth:`_categories` raises it for some columns.
        """
        wrong: list[str] = []
        options, features = self.params, []
        for name in frame.columns[1 if options.group is None else 2 :]:
            with gathered(wrong):
                categories = self._categories(frame[name], f"{path}: column {clean(name, 40)}")
                features.append(Feature(name=name, categories=categories))
        refuse(wrong)
        return Encoding(label=options.label, group=options.group, missing=options.missing, features=features)

    def _categories(self, column: pd.Series[Any], where: str) -> list[str]:
        """The categories of a feature; empty if it is a number.

        Raises:
            LabelSkewError: it is no number, or has another category, and nothing says what becomes of it.
        """
        categorical = self.params.categorical
        categories: Sequence[str] = ()
        if isinstance(categorical, dict) and column.name in categorical:
            categories = categorical[str(column.name)]
            if unknown := [text for text in ordered(texts(column)) if text not in categories]:
                raise mistake(where, f"{few(unknown)}: not in data_args.categorical", f"one of {few(categories)}")
        elif measured(column, where) is None:
            if categorical != "one_hot":
                use = "data_args.categorical: one_hot, or data_args.features without it"
                raise mistake(where, f"contains text ({no_numbers(column)}); expected numbers", use)
            categories = ordered(texts(column))
        if len(categories) > MOST_CATEGORIES:
            raise mistake(where, f"has {len(categories)} categories", "data_args.features without it")
        return list(categories)

    def _classes(
        self, frames: Sequence[pd.DataFrame], paths: Sequence[Path]
    ) -> tuple[list[str], list[NDArray[np.int64]]]:
        """The names of all classes, and each file's labels ``(N,)``.

        Raises:
            LabelSkewError: the column holds no classes, or one that is not known.
        """
        label, given, labels = self.params.label, self.params.class_names, []
        names = list(given or ordered(texts(frames[0][label])))
        if given is None and not 1 < len(names) <= MOST_CATEGORIES:
            held = f"has the one class {names[0]}" if len(names) == 1 else f"has {len(names)} different values"
            use = "data_args.class_names of all" if len(names) == 1 else "a column of classes"
            raise mistake(f"{paths[0]}: column {clean(label, 40)}", held, use)
        for frame, path in zip(frames, paths, strict=True):
            where = f"{path}: column {clean(label, 40)}"
            values = measured(frame[label], where)
            if values is not None and len(parts := values[values % 1 != 0]):
                raise mistake(where, f"holds {parts[0]:g}, which is no class", "names or whole numbers")
            of_rows = texts(frame[label])
            if unknown := [name for name in ordered(of_rows) if name not in names]:
                use = "it in data_args.class_names" if given else "classes of the training part alone"
                use = use if self.encoding is None else "rows of the model's classes"
                raise mistake(where, f"{few(unknown)}: not among the classes {few(names)}", use)
            labels.append(_numbered(of_rows, names))
        return names, labels

    def _groups(self, frames: Sequence[pd.DataFrame]) -> tuple[list[str], list[NDArray[np.int64] | None]]:
        """The names of all groups, and each file's groups ``(N,)``; none where no column says."""
        if self.params.group not in frames[0]:
            return [], [None] * len(frames)
        columns = [texts(frame[self.params.group]) for frame in frames]
        names = ordered(np.concatenate(columns))
        return names, [_numbered(column, names) for column in columns]

    def survey(self, data_dir: Path | None) -> fakes.Rows:
        """Files, columns, rows, classes and groups; what features hold is not looked at."""
        try:
            paths = self.paths(data_dir)
            columns, *_ = (self.columns(path) for path in paths)
            special = columns[: 1 if self.params.group is None else 2]
            frames = [rows(path, special) for path in paths]
        except LabelSkewError as error:
            return [("table", "missing", str(error))]
        parts = dict(zip(("training", "test"), paths, strict=False))
        facts = {f"{part} file": f"{path.name}, {size_text(path.stat().st_size)}" for part, path in parts.items()}
        facts["features"] = f"{len(columns) - len(special)}: {few(columns[len(special) :])}"
        facts |= {f"{part} rows": str(len(frame)) for part, frame in zip(parts, frames, strict=False)}
        names = ordered(texts(frames[0][special[0]]))
        facts |= {"classes": str(len(names)), "names": few(names)}
        if len(special) == 2:
            groups = texts(frames[0][special[1]])
            for name in ordered(groups):
                held = ordered(texts(frames[0][special[0]][groups == name]))
                facts[f"group {name}"] = f"{int((groups == name).sum())} training; {few(held)}"
        return [(what, text, "any") for what, text in facts.items()]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        """Write ``table.csv``: 300 rows by default, three classes, and three groups where ``group`` is a column."""
        options, rng = self.params, seeds.numpy_generator(seed, "fake table")
        names = options.class_names or FAKE_CLASSES
        features = options.features or [f"feature {i}" for i in range(1, FAKE_FEATURES + 1)]
        number, least = samples or 300, 20 * len(names)
        if number < least:
            raise mistake(f"--samples {number}", f"too few for {len(names)} classes", f"at least {least}")
        centres = rng.normal(0, 1.5, (len(names), len(features)))
        fakes.fresh_folder(out)
        with (out / "table.csv").open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow([*features, *([] if options.group is None else [options.group]), options.label])
            for i in range(number):
                label = int(rng.integers(len(names)))
                group = [] if options.group is None else [FAKE_GROUPS[(label if i % 4 else i // 4) % len(FAKE_GROUPS)]]
                values = (centres[label] + rng.normal(0, 1, len(features))).round(3)
                lines.writerow([*values.tolist(), *group, names[label]])


def _numbered(names: NDArray[np.object_], order: Sequence[str]) -> NDArray[np.int64]:
    """The places of texts ``(N,)`` in their order."""
    number = {name: i for i, name in enumerate(order)}
    return np.array([number[name] for name in names], np.int64)


def _means(train: NDArray[np.float32], names: Sequence[str], path: Path) -> list[float]:
    """The means ``(F,)`` of the training samples ``(N, F)`` without missing values.

    Raises:
        LabelSkewError: a feature has no value in training.
    """
    known = ~np.isnan(train)
    if len(empty := np.flatnonzero(~known.any(axis=0))):
        use = "data_args.features without it"
        raise mistake(f"{path}: column {names[empty[0]]}", "has no value in the training part", use)
    means = np.where(known, train, 0).sum(axis=0, dtype=np.float64) / known.sum(axis=0)
    return list(map(float, means))


def _fill(x: NDArray[np.float32], encoding: Encoding, path: Path | str) -> None:
    """Put the means of training where samples ``(N, F)`` have NaN.

    Raises:
        LabelSkewError: they are not known.
    """
    at = np.isnan(x)
    if at.any() and not encoding.means:
        raise mistake(path, "has missing values, and the model's file has no means of training", "complete rows")
    if at.any():
        x[at] = np.broadcast_to(encoding.means, x.shape)[at]
